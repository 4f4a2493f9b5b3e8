"""Named links: numbers of our own, rounded from public measurements. No trace is copied.

Sources, by preset:

wifi      home Wi-Fi and fibre to a near cloud; a rounded everyday figure, not a measurement campaign.
5g-sa     ITU-R M.2410 (radio part 4 ms, mobility interruption near 0) plus 20 ms of transport to a near cloud;
          Opensignal (SA lowers latency against NSA, not speed).
5g-nsa    UCC 5G drive set, Ireland (static RTT 69/76/220 ms at p50/p90/p99 to a far server, 1.7 % of pings lost);
          Rohde & Schwarz, Munich NSA. The preset is a near server; for the far one take it with a round trip of 70 ms.
4g-good   the same drive set's LTE part at its better half, and Chicago's tuned mid-band 4G.
4g-medium LTE driving, Ireland (84/101/330 ms, 2.8 % of pings lost, 6.8 and 21 Mbit/s down at p50 and p90); ERRANT's
          4G of Norway and Sweden (85/167/282 ms; 27 down, 10.6 up at p50).
4g-bad    LTE driving at p10; mahimahi's LTE drives (capacity gaps over 1 s up to 4 per minute).
3g        HSPA+ driving, Ireland (123/295/535 ms, 2.6 Mbit/s down); ERRANT's 3G; HSDPA Oslo.
subway    NYU-METS subway lines 7 and Q: outages begin in 0.3-14 % of seconds, 1-3.4 s in the mean, longest 164 s.
train     NYU-METS Long Island line: outages begin in 4.2 % of seconds, 2.7 s in the mean, longest 27 s.
leo       Starlink: a 15 s reallocation cycle with spikes of 75-140 ms at its edges (arXiv:2601.08439).
geo       geostationary satellite: 4 x 35,786 km at the speed of light is 477 ms; with terminals about 620 ms.
flight    the disconnection case of the Mixture of Attentions paper: one cut, for good, at a token.
loopback  no delay, no limit: only the proxy's own cost.

Jitter is the deviation of the round trip. Loss is a share of packets in each direction. An outage's tail is read as its
99th percentile: with the log-normal through median and tail, means and maxima then match the on/off chains above.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Outage, OutageProcess, Schedule
from outrider.netsim.settings import LinkSettings, Spike


@dataclass(frozen=True, slots=True)
class Profile:
    """A named link. Its outages are separate: a proxy has none unless asked."""

    name: str
    summary: str
    link: LinkSettings
    outages: OutageProcess | None = None
    cut_for_good: bool = False
    """The link's one outage begins at a token and never ends."""

    def schedule(self, *, token: int = 20) -> Schedule:
        """The profile's own outages; for `flight` one that begins at `token` and never ends."""
        if self.cut_for_good:
            return Schedule().at_token(token, Outage())
        return Schedule(random_outages=self.outages)


_of, _out = LinkSettings.of, OutageProcess
_LEO_SPIKE = Spike(period_s=15, width_s=0.2, extra_ms=50)
"""Each way: +100 ms a round trip."""

_ALL = (
    Profile(
        "wifi",
        "home Wi-Fi, near cloud",
        _of(rtt_ms=15, jitter_ms=3, down_mbit=100, up_mbit=40, loss=0.001, burst=2),
    ),
    Profile(
        "5g-sa",
        "5G standalone",
        _of(rtt_ms=25, jitter_ms=4, down_mbit=150, up_mbit=40, loss=0.003, burst=3),
        _out(600, 0.3, 2),
    ),
    Profile(
        "5g-nsa",
        "5G on a 4G core (far server: round trip 70 ms)",
        _of(rtt_ms=40, jitter_ms=8, down_mbit=60, up_mbit=20, loss=0.01, burst=4),
        _out(300, 0.5, 3),
    ),
    Profile(
        "4g-good",
        "4G, good coverage",
        _of(rtt_ms=55, jitter_ms=15, down_mbit=30, up_mbit=12, loss=0.01, burst=4),
        _out(300, 1, 4),
    ),
    Profile(
        "4g-medium",
        "4G, driving",
        _of(rtt_ms=85, jitter_ms=30, down_mbit=20, up_mbit=4, loss=0.02, burst=5),
        _out(150, 1, 8),
    ),
    Profile(
        "4g-bad",
        "4G at the cell's edge",
        _of(rtt_ms=110, jitter_ms=60, down_mbit=7, up_mbit=1, loss=0.04, burst=8),
        _out(60, 2, 15),
    ),
    Profile(
        "3g",
        "HSPA+, driving",
        _of(rtt_ms=125, jitter_ms=80, down_mbit=2.5, up_mbit=1, loss=0.05, burst=8),
        _out(60, 2, 15),
    ),
    Profile(
        "subway",
        "4G in a subway",
        _of(rtt_ms=85, jitter_ms=60, down_mbit=7, up_mbit=2, loss=0.03, burst=6),
        _out(30, 2, 60),
    ),
    Profile(
        "train",
        "4G in a commuter train",
        _of(rtt_ms=85, jitter_ms=50, down_mbit=3, up_mbit=1, loss=0.04, burst=8),
        _out(24, 1, 30),
    ),
    Profile(
        "leo",
        "low-orbit satellite, +100 ms for 0.2 s every 15 s",
        _of(rtt_ms=35, jitter_ms=8, down_mbit=100, up_mbit=12, loss=0.01, burst=5, spike=_LEO_SPIKE),
        _out(300, 1, 5),
    ),
    Profile(
        "geo",
        "geostationary satellite",
        _of(rtt_ms=620, jitter_ms=20, down_mbit=20, up_mbit=3, loss=0.005, burst=3),
        _out(1200, 2, 20),
    ),
    Profile("flight", "one cut at a token, for good", _of(), cut_for_good=True),
    Profile("loopback", "no delay, no limit", _of()),
)

PROFILES: dict[str, Profile] = {p.name: p for p in _ALL}
"""All presets by name."""


def profile(name: str) -> Profile:
    """The preset of that name. Raises `BadConfig` listing the names if there is none."""
    found = PROFILES.get(name)
    if found is None:
        raise BadConfig("profile", f"expected one of {', '.join(PROFILES)}, got {name!r}")
    return found
