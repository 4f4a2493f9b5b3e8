"""One cell of an experiment through the real proxy: a profile, a mode, prompts; figures as the virtual engine's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outrider.client.eventlog import Line
from outrider.netsim.faults import Outage, Scheduled
from outrider.netsim.profiles import Profile
from outrider.netsim.scenario.device import Server
from outrider.netsim.scenario.drive import Watching, drive
from outrider.netsim.scenario.model import DeviceSpec, Phase, Question, Scenario
from outrider.netsim.scenario.summary import figures


def cell_of(
    profile: Profile,
    spec: DeviceSpec,
    questions: Sequence[Question],
    *,
    seed: int = 0,
    outages: bool = False,
    cut_at_token: int | None = None,
) -> Scenario:
    """The scenario of a cell: one endless phase with the profile's link; with `outages` also the profile's own.

    For a measured link replace the profile's: `replace(profile, link=profile.link.following(trace))`.
    """
    phase = Phase(
        name=profile.name,
        link=profile.link,
        link_name=profile.name,
        outages=profile.outages if outages else None,
    )
    cut = () if cut_at_token is None else (Scheduled(Outage(), token=cut_at_token),)
    return Scenario(
        name=profile.name,
        phases=(phase,),
        after="stay",
        seed=seed,
        device=spec,
        questions=tuple(questions),
        faults=cut,
    )


def run_cell(
    scenario: Scenario, server: Server, *, put: Callable[[Line], None] | None = None, check: bool = False
) -> dict[str, Any]:
    """Ride it; its figures (`summary.figures`) with `link`, `mode`, `drafter` and `seed`. `put` takes the event log.

    Raises as `drive`.
    """
    outcome = drive(scenario, server, Watching(put=put), check=check)
    spec = scenario.device
    named = {"link": scenario.name, "mode": spec.mode, "drafter": spec.drafter, "seed": scenario.seed}
    return named | figures(outcome)
