"""Which drafter a device uses: by name, or the one its verifier recommends.

A name is a kind of trained drafter (`moa`, `eagle2`, …: whatever the verifier lists), alone; `ngram` (copying from the
text itself, no bundle); or `hybrid` (the bundle's drafter and copying in one tree). `auto` is `hybrid`: it drafts more
that is accepted than either of its halves, on every set of prompts measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from outrider.client.bundle import Bundle
from outrider.client.drafter import Drafter
from outrider.client.drafters.hybrid import HybridDrafter
from outrider.shared.errors import ConfigError
from outrider.shared.frames import BundleInfo

AUTO = "auto"
NGRAM = "ngram"
HYBRID = "hybrid"


def bundle_kind(drafter: str) -> str | None:
    """The kind of bundle that ``--drafter`` asks for; None leaves it to the verifier."""
    return None if drafter in (AUTO, NGRAM, HYBRID) else drafter


def pick(offered: Sequence[BundleInfo], recommended: bytes, kind: str | None, server: str) -> bytes:
    """SHA-256 of the bundle to use: the recommended one, or the first of the ``kind`` asked for; empty if none is.

    Raises ConfigError ("--drafter") for a kind that is not offered.
    """
    if kind is None:
        return recommended
    for info in offered:
        if info.drafter_kind == kind:
            return info.sha256
    kinds = ", ".join(dict.fromkeys(info.drafter_kind for info in offered))
    raise ConfigError(
        "--drafter",
        f"{server} serves no {kind!r} drafter; it offers {kinds or 'none'}",
        remedy="choose one of those, or auto" if kinds else "leave it out",
    )


class HybridBundle(Bundle):
    """A bundle whose drafters copy from the text as well."""

    __slots__ = ()

    def drafter(self) -> Drafter:
        """The bundle's own drafter and prompt lookup, in one tree."""
        return HybridDrafter(super().drafter())


def adapted(bundle: Bundle, drafter: str) -> Bundle:
    """The bundle as ``--drafter`` wants it used. Raises ConfigError if it holds another kind."""
    kind = bundle_kind(drafter)
    if kind is not None and bundle.kind != kind:
        raise ConfigError("--drafter", f"{bundle.path} holds a {bundle.kind!r} drafter, not {kind!r}")
    if drafter not in (AUTO, HYBRID):
        return bundle
    return HybridBundle(**{field.name: getattr(bundle, field.name) for field in fields(bundle)})
