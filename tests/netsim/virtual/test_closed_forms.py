"""On a link without chance the simulator is arithmetic, to a nanosecond."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.client.pacing import DraftPacing
from outrider.netsim.settings import LinkSettings
from outrider.netsim.virtual.acceptance import by_alpha
from outrider.netsim.virtual.modes import MODES, Mode
from outrider.netsim.virtual.opening import begin, first_token
from outrider.netsim.virtual.rounds import rounds
from outrider.netsim.virtual.server import Passes
from outrider.netsim.virtual.session import Session
from outrider.netsim.virtual.sizes import (
    FIRST_UP,
    FRAMING,
    commit_bytes,
    draft_bytes,
    open_bytes,
    rows_bytes,
    verdict_bytes,
)
from outrider.netsim.virtual.wire import VirtualLink, Way
from tests.netsim.virtual.rig import COST, STEP, constant, device, play, verdicts

RTT_S, MBIT = 0.080, 4.0
LINK = constant(RTT_S * 1e3, MBIT)
HOPEFUL = device(by_alpha(0.0), expected=by_alpha(0.8).law)
"""Drafts, and is always wrong: nothing drafted ahead ever comes of use, so that rounds do not overlap."""


def bits(nbytes: int) -> float:
    """Seconds of a message on the link."""
    return (nbytes + FRAMING) * 8 / (MBIT * 1e6)


def round_trip_errors(mode: Mode, link: LinkSettings = LINK) -> list[float]:
    """Per round: measured seconds from sending to verdict, less the closed form."""
    _, lines = play(mode, link, of=HOPEFUL)
    errors = []
    for line in verdicts(lines):
        chain = line.depth == line.nodes
        form = (
            bits(draft_bytes(line.nodes, chain))
            + RTT_S
            + COST.seconds(line.nodes + 1)
            + bits(verdict_bytes(1))
        )
        errors.append(line.got_s - line.sent_s - form)
    return errors


@pytest.mark.parametrize("name", ["chain", "tree"])
def test_a_round_is_draft_up_round_trip_pass_down(name: str) -> None:
    """up/BW + RTT + t_verify + down/BW from sending to verdict, k t_draft from one verdict to the next sending."""
    errors = round_trip_errors(MODES[name])
    assert len(errors) > 50
    assert max(map(abs, errors)) < 1e-9
    _, lines = play(MODES["chain"], LINK, of=HOPEFUL)
    found = list(verdicts(lines))
    drafting = [after.sent_s - before.got_s for before, after in zip(found, found[1:], strict=False)]
    for seconds, line in zip(drafting, found[1:], strict=True):
        assert seconds == pytest.approx(line.nodes * STEP.level_s(1), abs=1e-9)


def test_jitter_and_loss_of_zero_change_nothing() -> None:
    """The random parts of the link, set to 0, are not there."""
    plain, _ = play(MODES["tree"], LINK)
    zero = LinkSettings.of(rtt_ms=80, up_mbit=MBIT, down_mbit=MBIT, jitter_ms=0, loss=0, burst=7)
    same, _ = play(MODES["tree"], zero)
    assert same.now == plain.now


class _Twice(Way):
    """A way that asks whether it may send, and waits for the answer, before it sends."""

    def __init__(self, link: VirtualLink) -> None:
        super().__init__(link.up.lane, link.up.stalls)
        self._back = link.down

    def send(self, nbytes: int, now: float) -> float:
        """An empty message there and back, then the message."""
        return super().send(nbytes, self._back.send(0, super().send(0, now)))


def _pays_twice(session: Session) -> Passes:
    ready = yield from begin(session)
    yield from first_token(session, ready)
    session.link.up = _Twice(session.link)
    yield from rounds(session)


def test_a_mode_that_pays_the_round_trip_twice_is_told_apart() -> None:
    """Negative control: the closed form does not hold for it, by just one round trip."""
    errors = round_trip_errors(Mode("twice", DraftPacing(tree=False, may_stream=False), _pays_twice))
    assert len(errors) > 50
    assert errors == pytest.approx([RTT_S] * len(errors), abs=1e-9)


def beginning() -> float:
    """When the verifier has made the first token: handshake, Open, prefill, a pass."""
    opening = (open_bytes(64, 0) + FRAMING + FIRST_UP) * 8 / (MBIT * 1e6)
    return RTT_S + opening + RTT_S / 2 + COST.seconds(-63) + COST.seconds(1)


def test_streaming_is_one_token_a_pass() -> None:
    """After the first one, every pass brings one, whatever the round trip."""
    session, _ = play(MODES["stream"], LINK, tokens=50)
    assert session.display.first_at == pytest.approx(
        beginning() + RTT_S / 2 + bits(verdict_bytes(1)), abs=1e-9
    )
    last = beginning() + 49 * COST.seconds(1) + RTT_S / 2 + bits(commit_bytes(1))
    assert session.now == pytest.approx(last, abs=1e-9)


def test_unary_calls_pay_the_round_trip_for_every_token() -> None:
    """Two messages, two half trips and a pass a token."""
    session, _ = play(MODES["unary"], LINK, tokens=20)
    gaps = session.display.gaps_s
    assert len(gaps) == 19
    assert max(gaps) - min(gaps) < 1e-9
    assert gaps[0] > RTT_S + COST.seconds(1)


def test_state_rows_hold_up_only_what_is_behind_them() -> None:
    """Rows leave after their verdict: they cost bytes, and time only where the link has not sent them by then."""
    mode = MODES["chain"]
    bare, _ = play(mode, constant(80, None))
    rows, _ = play(mode, constant(80, None), of=device(row_bytes=2000))
    assert rows.now == bare.now
    assert rows.counts.bytes_down - bare.counts.bytes_down >= rows_bytes(90, 2000)
    slow, _ = play(mode, constant(80, 0.5), of=device(row_bytes=2000))
    assert slow.now > rows.now + 1


@pytest.mark.parametrize("rtt_ms", [0, 5, 20, 40, 60, 85, 120, 200, 400])
@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.7, 0.9])
def test_run_ahead_is_never_much_slower_than_streaming(rtt_ms: float, alpha: float) -> None:
    """Within 5 % of plain streaming at any round trip, or faster; the first window costs at most a round trip.

    A mean over eight texts, since drafting is chosen for what it brings on average.
    """
    link, of = constant(rtt_ms, None), device(by_alpha(alpha))
    auto, plain = (
        sum(play(MODES[name], link, of=of, tokens=256, seed=seed)[0].now for seed in range(8)) / 8
        for name in ("auto", "stream")
    )
    assert auto <= 1.05 * plain + rtt_ms / 1e3


def test_a_dearer_verifier_makes_every_mode_slower() -> None:
    """More seconds a pass, more seconds an answer."""
    dear = replace(COST, excess_s=0.05)
    for mode in MODES.values():
        assert play(mode, LINK, cost=dear)[0].now > play(mode, LINK)[0].now
