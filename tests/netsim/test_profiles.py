"""The presets."""

from __future__ import annotations

import itertools

import pytest

from outrider.netsim import profiles
from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Outage, Scheduled
from outrider.netsim.link import Link
from outrider.netsim.profiles import PROFILES, profile

NAMES = "wifi 5g-sa 5g-nsa 4g-good 4g-medium 4g-bad 3g subway train leo geo flight loopback"
TABLE = {
    "wifi": (15, 3, 100, 40, 0.001, 2, None),
    "5g-sa": (25, 4, 150, 40, 0.003, 3, (600, 0.3, 2)),
    "5g-nsa": (40, 8, 60, 20, 0.01, 4, (300, 0.5, 3)),
    "4g-good": (55, 15, 30, 12, 0.01, 4, (300, 1, 4)),
    "4g-medium": (85, 30, 20, 4, 0.02, 5, (150, 1, 8)),
    "4g-bad": (110, 60, 7, 1, 0.04, 8, (60, 2, 15)),
    "3g": (125, 80, 2.5, 1, 0.05, 8, (60, 2, 15)),
    "subway": (85, 60, 7, 2, 0.03, 6, (30, 2, 60)),
    "train": (85, 50, 3, 1, 0.04, 8, (24, 1, 30)),
    "leo": (35, 8, 100, 12, 0.01, 5, (300, 1, 5)),
    "geo": (620, 20, 20, 3, 0.005, 3, (1200, 2, 20)),
    "flight": (0, 0, None, None, 0, 1, None),
    "loopback": (0, 0, None, None, 0, 1, None),
}


def test_every_preset_is_there() -> None:
    """The names are those of the documentation, each says what it is, and each drives a link."""
    assert list(PROFILES) == NAMES.split() == list(TABLE)
    for name, chosen in PROFILES.items():
        assert chosen.name == name and chosen.summary
        assert Link(chosen.link, 1).lanes()["up"].admit(0.0, 100) >= 0


@pytest.mark.parametrize("name", TABLE)
def test_presets_carry_their_published_numbers(name: str) -> None:
    """Round trip, jitter, rates, loss, burst and outages as published, both directions together."""
    chosen = profile(name)
    rtt, jitter, down, up, loss, burst, outages = TABLE[name]
    link = chosen.link
    assert link.rtt_s * 1000 == pytest.approx(rtt)
    assert (link.up.jitter_ms**2 + link.down.jitter_ms**2) ** 0.5 == pytest.approx(jitter)
    assert (link.down.rate_mbit, link.up.rate_mbit) == (down, up)
    assert (link.up.loss, link.down.loss, link.up.burst) == (loss, loss, burst)
    process = chosen.outages
    assert (None if process is None else (process.gap_s, process.median_s, process.tail_s)) == outages


def test_the_satellite_spikes_both_ways() -> None:
    """A low-orbit handover adds 100 ms to the round trip at the beginning of each 15 s."""
    link = profile("leo").link
    spikes = [lane.spike for lane in (link.up, link.down) if lane.spike is not None]
    assert sum(s.extra_ms for s in spikes) == 100
    assert {(s.period_s, s.width_s) for s in spikes} == {(15, 0.2)}


def test_flight_is_one_outage_for_good_at_a_token() -> None:
    """The disconnection case: a fault that waits for a token and has no end."""
    assert profile("flight").schedule(token=9).entries == (Scheduled(Outage(), token=9),)


def test_a_profiles_schedule_is_its_random_outages() -> None:
    """Asked for, a preset's outages come from the seed; `wifi` has none."""
    process = profile("train").schedule().random_outages
    assert process is not None
    assert len(list(itertools.islice(process.outages(1), 3))) == 3
    assert profile("wifi").schedule().random_outages is None


def test_an_unknown_name_lists_the_known() -> None:
    """A wrong name is answered with all the right ones."""
    with pytest.raises(BadConfig, match=r"profile: expected one of wifi, .*loopback, got '6g'"):
        profile("6g")


def test_every_preset_names_its_source() -> None:
    """The module's docstring has a paragraph of sources for each name."""
    listed = {line.split()[0] for line in (profiles.__doc__ or "").splitlines() if line and line[0] != " "}
    assert set(PROFILES) <= listed
