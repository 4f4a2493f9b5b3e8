"""The short cuts for constant links give what the general moves give."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from outrider.netsim.faults import Outage, Schedule
from outrider.netsim.profiles import profile
from outrider.netsim.virtual.acceptance import by_alpha
from outrider.netsim.virtual.journal import Journal
from outrider.netsim.virtual.modes import MODES
from outrider.netsim.virtual.outcome import Outcome
from outrider.netsim.virtual.run import Setup, simulate
from outrider.netsim.virtual.server import serve_alone
from outrider.netsim.virtual.session import Answer
from outrider.netsim.virtual.steady import steady_of
from tests.netsim.virtual.rig import COST, constant, device


def at_length(setup: Setup, name: str) -> Outcome:
    """The same answer by the general moves."""
    session = setup.session(MODES[name])
    serve_alone(MODES[name].run(session), setup.cost)
    return Outcome.of(session)


@pytest.mark.parametrize("name", list(MODES))
@pytest.mark.parametrize("rtt_ms", [0, 7, 40, 85, 300])
@pytest.mark.parametrize("mbit", [None, 10, 1])
def test_short_cuts_change_nothing(name: str, rtt_ms: float, mbit: float | None) -> None:
    """Every figure, every gap and every round to a nanosecond, with and without state rows."""
    for alpha, row_bytes in ((0.2, 0), (0.7, 1960), (0.95, 500)):
        of = device(by_alpha(alpha), row_bytes=row_bytes)
        setup = Setup(device=of, cost=COST, link=constant(rtt_ms, mbit), answer=Answer(tokens=160, seed=3))
        quick, general = asdict(simulate(setup, MODES[name])), asdict(at_length(setup, name))
        for field, value in general.items():
            assert quick[field] == pytest.approx(value, abs=1e-9, rel=1e-12), field


def test_where_something_can_happen_there_are_none() -> None:
    """Jitter, loss, an outage to come, a log to write or company at the verifier: the general moves."""
    plain = Setup(device=device(), cost=COST, link=constant(50))
    setups = [
        Setup(device=device(), cost=COST, link=profile("wifi").link),
        Setup(device=device(), cost=COST, link=profile("loopback").link.override(loss=0.01)),
        Setup(device=device(), cost=COST, link=constant(50), schedule=Schedule().at(9, Outage(), for_s=1)),
        Setup(device=device(), cost=COST, link=constant(50), schedule=Schedule().at_token(9, Outage())),
    ]
    mode = MODES["tree"]
    for setup in setups:
        session = setup.session(mode)
        session.solo = True
        assert steady_of(session) is None
    logged, shared, alone = plain.session(mode, Journal()), plain.session(mode), plain.session(mode)
    logged.solo = alone.solo = True
    assert steady_of(logged) is None
    assert steady_of(shared) is None
    assert steady_of(alone) is not None
