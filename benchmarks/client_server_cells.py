"""One cell of the client-server study in virtual time: a link, a device, a mode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from outrider.netsim.faults import Schedule
from outrider.netsim.settings import LinkSettings
from outrider.netsim.traces import Trace
from outrider.netsim.virtual.modes import MODES
from outrider.netsim.virtual.outcome import together
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.run import Setup, simulate
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.session import Answer

TRACE_STEP_S = 41.0
"""Every answer begins so much later in a trace than the one before."""
PROMPT, TOKENS, SEED = 64, 128, 7
EXCESS_S, ROWS_S = 0.002, 0.004
"""What a verdict takes beyond its pass, and rows after it: the goals, which the verifier met on an idle core."""
SHIPPED = "moa (shipped)"


@dataclass(frozen=True, slots=True)
class Place:
    """A link of the grid."""

    name: str
    settings: LinkSettings
    schedule: Schedule = Schedule()
    down: Trace | None = None
    up: Trace | None = None

    def at(self, number: int) -> LinkSettings:
        """The link of answer number ``number``."""
        return self.settings if self.down is None else _shifted(self.settings, self.down, self.up, number)


@cache
def _shifted(settings: LinkSettings, down: Trace, up: Trace | None, number: int) -> LinkSettings:
    by_s = TRACE_STEP_S * number
    return settings.following(down.shifted(by_s), None if up is None else up.shifted(by_s))


def answer(number: int) -> Answer:
    """What is asked for, number by number."""
    return Answer(prompt=PROMPT, tokens=TOKENS, seed=SEED + number)


def cell(place: Place, device: Device, cost: VerifierCost, mode: str, answers: int) -> dict[str, Any]:
    """One cell's figures."""
    outcomes = []
    for number in range(answers):
        setup = Setup(
            device=device,
            cost=cost,
            link=place.at(number),
            schedule=place.schedule,
            answer=answer(number),
        )
        outcomes.append(simulate(setup, MODES[mode]))
    return together(outcomes).figures()
