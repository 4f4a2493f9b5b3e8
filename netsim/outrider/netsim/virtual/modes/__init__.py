"""How tokens come: one file a mode. Each has a NAME, the pacing that sizes its drafts (None: no drafter), and `run`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.client.pacing import DraftPacing
from outrider.netsim.errors import BadConfig
from outrider.netsim.virtual.modes import auto, chain, streaming, tree, unary
from outrider.netsim.virtual.server import Passes
from outrider.netsim.virtual.session import Session


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to get an answer's tokens."""

    name: str
    pacing: DraftPacing | None
    run: Callable[[Session], Passes]


MODES: dict[str, Mode] = {
    module.NAME: Mode(module.NAME, module.DRAFTS, module.run)
    for module in (streaming, unary, chain, tree, auto)
}
"""All modes by name, the baseline first."""


def mode(name: str) -> Mode:
    """The mode of that name. Raises `BadConfig` listing the names if there is none."""
    found = MODES.get(name)
    if found is None:
        raise BadConfig("mode", f"expected one of {', '.join(MODES)}, got {name!r}")
    return found
