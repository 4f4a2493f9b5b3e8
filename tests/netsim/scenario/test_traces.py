"""Phases that follow measured links."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.netsim.link import Link
from outrider.netsim.profiles import PROFILES
from outrider.netsim.scenario import BadScenario, parse
from outrider.netsim.traces import BadTrace

PHASE = "[[phases]]\nlink = { preset = '4g-good', trace = 'seconds:drive.txt' }\n"


def drive(folder: Path, text: str) -> Path:
    (folder / "drive.txt").write_text(text)
    return folder / "ride.toml"


def test_a_phase_follows_a_trace_beside_the_scenario(tmp_path: Path) -> None:
    """Down by the trace, up and the round trip by the preset; a switch begins the trace at the switch."""
    path = drive(tmp_path, "0\t8\n1\t0.8\n2\t8\n")
    phase = parse(PHASE, path).phases[0]
    preset = PROFILES["4g-good"].link
    assert (phase.link.up, phase.link.rtt_s) == (preset.up, preset.rtt_s)
    assert phase.link.down.trace is not None
    assert phase.link_name == "4g-good trace=seconds:drive.txt"
    lane = Link(preset).lanes()["down"]
    still = parse("[[phases]]\nlink = { rtt_ms = 0, trace = 'seconds:drive.txt' }\n", path).phases[0].link
    lane.switch(100.0, still.down, rtt_s=0.0, redraw_s=still.redraw_s, name="next")
    # 1 MB/s in the first second, a tenth of it in the second.
    assert lane.admit(100.0, 1_000_000) == pytest.approx(101.0)
    assert lane.admit(101.0, 50_000) == pytest.approx(101.5)


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        ("[[phases]]\nlink = { trace = 'nowhere.txt' }\n", 2, 18, "cannot read"),
        ("[[phases]]\nlink = { trace = 'seconds:drive.txt?x=1' }\n", 2, 18, "knows the options"),
        ("[[phases]]\nlink = { trace = 'drive.txt', down_mbit = 3 }\n", 2, 31, "not both"),
        ("[[phases]]\nlink = { up_mbit = 3, trace_up = 'drive.txt' }\n", 2, 10, "not both"),
    ],
)
def test_a_trace_that_cannot_be_followed_is_the_scenarios_fault(
    tmp_path: Path, text: str, line: int, column: int, expected: str
) -> None:
    """A wrong path or option is named where the scenario says it."""
    with pytest.raises(BadScenario) as caught:
        parse(text, drive(tmp_path, "0\t8\n1\t8\n"))
    assert (caught.value.line, caught.value.column) == (line, column)
    assert expected in caught.value.expected


def test_a_bad_trace_is_named_by_its_own_place(tmp_path: Path) -> None:
    """Line and column are the trace's, not the scenario's."""
    with pytest.raises(BadTrace) as caught:
        parse(PHASE, drive(tmp_path, "0\t8\n1\tfast\n"))
    assert (Path(caught.value.path).name, caught.value.line, caught.value.column) == ("drive.txt", 2, 2)
