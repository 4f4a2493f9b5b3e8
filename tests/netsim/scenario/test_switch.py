"""A link that changes while bytes are on their way, in virtual time."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.netsim.link import Lane, Link
from outrider.netsim.pipe import Pipe
from outrider.netsim.profiles import PROFILES
from outrider.netsim.settings import LinkSettings

SLOW = LinkSettings.of(rtt_ms=400, up_mbit=1)
FAST = LinkSettings.of(rtt_ms=20, up_mbit=100)
NAMES = tuple(name for name in PROFILES if name != "flight")
LONG_S = 1e6


def switch(lane: Lane, now: float, link: LinkSettings, name: str = "next") -> None:
    time = lane.clock.lane_time(now)
    lane.switch(time, link.up, rtt_s=link.rtt_s, redraw_s=link.redraw_s, name=name)


def test_the_new_figures_hold_from_the_switch_on() -> None:
    """A byte before it takes the old delay, one after it the new one."""
    lane = Link(SLOW).lanes()["up"]
    assert abs(lane.flow().admit(1.0, 0) - 1.2) < 1e-9
    switch(lane, 2.0, FAST)
    assert abs(lane.flow().admit(2.0, 0) - 2.01) < 1e-9
    assert (lane.settings, lane.since) == (FAST.up, 2.0)


def test_what_is_on_its_way_keeps_its_time_and_nothing_overtakes_it() -> None:
    """On one connection a faster link waits for what the slow one still holds; another connection does not."""
    lane = Link(SLOW).lanes()["up"]
    first, second = Pipe(lane), Pipe(lane)
    first.push(0.0, b"slow")
    due = first.wake_at(0.0)
    switch(lane, 0.01, FAST)
    first.push(0.01, b"fast")
    second.push(0.01, b"free")
    assert first.wake_at(0.01) == due
    assert due is not None and due > 0.2
    assert second.wake_at(0.01) is not None and (second.wake_at(0.01) or 1.0) < 0.03
    assert first.pull(due - 1e-6) == []
    assert first.pull(due + 1e-9) == [b"slowfast"]


def test_a_rate_starts_behind_what_the_old_one_still_sends() -> None:
    """Bytes that wait for the old rate leave first; the queue is counted at the new rate."""
    lane = Link(SLOW).lanes()["up"]
    lane.admit(0.0, 12_500)  # 100 ms at 1 Mbit/s
    switch(lane, 0.05, FAST)
    assert abs(lane.admit(0.05, 125_000) - (0.1 + 0.01 + 0.01)) < 1e-9


def test_delays_after_a_switch_are_those_of_seed_and_time_alone() -> None:
    """Traffic before the switch does not change what follows; its name does, and so does the seed."""

    def after(busy: bool, name: str = "a", seed: int = 1) -> list[float]:
        lane = Link(PROFILES["4g-bad"].link, seed).lanes()["up"]
        if busy:
            for step in range(40):
                lane.admit(step / 10, 10)
        switch(lane, 5.0, LinkSettings.of(rtt_ms=85, jitter_ms=60), name)
        return [lane.admit(5.0 + step / 3, 0) for step in range(20)]

    assert after(True) == after(False)
    assert len({tuple(after(False, name, seed)) for name in "ab" for seed in (1, 2)}) == 4


@given(
    seed=st.integers(0, 2**32),
    plan=st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_bytes_are_conserved_and_in_order_through_any_ride(seed: int, plan: list[tuple[str, bool]]) -> None:
    """Whatever links follow each other, with stalls between, what comes out is what went in; no time goes back."""
    rng = random.Random(seed)
    lane = Link(PROFILES[plan[0][0]].link, seed).lanes()["up"]
    pipes = [Pipe(lane, connection=number) for number in (1, 2)]
    sent, got = [b"", b""], [b"", b""]
    now = 0.0

    def take(until: float) -> None:
        for number, pipe in enumerate(pipes):
            got[number] += b"".join(item for item in pipe.pull(until) if isinstance(item, bytes))

    for number, (name, stalled) in enumerate(plan):
        now += rng.random()
        take(now)
        switch(lane, now, PROFILES[name].link, str(number))
        if stalled:
            lane.clock.stall(now)
        for _ in range(rng.randrange(8)):
            now += rng.expovariate(20)
            which = rng.randrange(2)
            data = rng.randbytes(min(rng.randrange(4000), pipes[which].room(now)))
            pipes[which].push(now, data)
            sent[which] += data
            take(now)
            assert all(whole.startswith(part) for whole, part in zip(sent, got, strict=True))
        if stalled:
            lane.clock.resume(now)
    take(LONG_S)
    assert got == sent
    assert [pipe.unreleased for pipe in pipes] == [0, 0]
