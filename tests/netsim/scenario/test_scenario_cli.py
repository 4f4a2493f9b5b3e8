"""`outrider-sim scenarios` and `run --dry-run`: what ships can be ridden, and nothing bad gets as far as a verifier."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.netsim.cli import app
from outrider.netsim.errors import BadConfig
from outrider.netsim.scenario import BadScenario, Ride, read
from outrider.netsim.scenario.shipped import FOLDER, names, shipped
from outrider.netsim.scenario.timeline import entries

RIDES = ("commuter", "elevator", "flight", "subway")
"""Those that need no file of the user's."""


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("name", RIDES)
def test_every_shipped_scenario_is_one(name: str) -> None:
    """It parses, says what it is, and its timeline has a phase at 0."""
    scenario = read(shipped(name))
    assert (scenario.name, bool(scenario.summary)) == (name, True)
    first = entries(Ride(scenario))[0]
    assert (first["at_s"], first["phase"]) == (0.0, scenario.phases[0].name)


def test_the_template_for_traces_says_which_file_is_missing() -> None:
    """It parses once the path is right; as it ships, it points at the line to edit."""
    with pytest.raises(BadScenario) as caught:
        read(shipped("trace"))
    assert caught.value.line == 12
    assert "cannot read" in str(caught.value) and "my-drive.down" in str(caught.value)


def test_scenarios_are_listed_and_printed_as_they_are() -> None:
    """The list names all of them; a name prints the file, to be copied."""
    listed = run("scenarios")
    assert set(names()) == {*RIDES, "trace"}
    assert all(name in listed for name in names())
    printed = run("scenarios", "flight")
    assert printed == (FOLDER / "flight.toml").read_text()
    assert tomllib.loads(printed)["cut_at_token"] == 32


def test_a_dry_run_says_what_will_happen_when() -> None:
    """Phases and faults in order, the cut last; the same seed the same timeline, another seed other outages."""
    told = json.loads(run("run", "subway", "--dry-run", "--json"))["timeline"]
    assert [entry["at_s"] for entry in told] == sorted(entry["at_s"] for entry in told)
    assert [entry["phase"] for entry in told if "phase" in entry] == ["station", "line"]
    assert any(entry.get("fault") == "outage" for entry in told)
    assert json.loads(run("run", "subway", "--dry-run", "--json"))["timeline"] == told
    assert json.loads(run("run", "subway", "--dry-run", "--json", "--seed", "12"))["timeline"] != told
    cut = json.loads(run("run", "flight", "--dry-run", "--json"))["timeline"][-1]
    assert cut == {"fault": "outage", "direction": None, "for_s": None, "token": 32}
    people = run("run", "commuter", "--dry-run", "--mode", "stream")
    assert "tunnel: 4g-bad (110 ms" in people and "mode stream" in people


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "nowhere"), "expected a file or one of commuter"),
        (("run", "nowhere.toml"), "expected a file that can be read"),
        (("run", "flight", "--mode", "fast"), "expected one of stream"),
        (("run", "flight", "--text"), "add --log FILE"),
        (("run", "flight", "--server", "host.example:50051"), "add --insecure"),
        (("scenarios", "nowhere"), "expected a file or one of commuter"),
    ],
)
def test_what_cannot_be_ridden_is_refused_before_anything_starts(
    arguments: tuple[str, ...], words: str
) -> None:
    """A `BadConfig`, which the program ends with 78 for."""
    result = CliRunner().invoke(app, arguments, standalone_mode=False)
    assert isinstance(result.exception, BadConfig)
    assert words in str(result.exception)


def test_a_bad_scenario_leaves_no_log_behind(tmp_path: Path) -> None:
    """Nothing half-written: the log is opened only once everything is known to be right."""
    ride, log = tmp_path / "ride.toml", tmp_path / "events.jsonl"
    ride.write_text("[[phases]]\nlink = 'no such'\n")
    result = CliRunner().invoke(app, ("run", str(ride), "--log", str(log)), standalone_mode=False)
    assert isinstance(result.exception, BadScenario)
    assert not log.exists()


def test_the_example_of_the_documentation_is_a_scenario(tmp_path: Path) -> None:
    """What `docs/simulations.md` shows can be copied: with its files beside it, it parses and has a timeline."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "simulations.md").read_text(encoding="utf-8")
    text = page.split("```toml\n")[1].split("```")[0]
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "questions.jsonl").write_text('{"prompt": "why?"}\n' * 8)
    for name in ("drive.down", "drive.up"):
        (tmp_path / name).write_text("".join(f"{moment}\n" for moment in range(1, 1001)))
    scenario = read(tmp_path / "mine.toml")
    assert [phase.name for phase in scenario.phases] == ["station", "tunnel", "my own", "measured"]
    assert len(scenario.faults) == 2 and len(scenario.questions) == 8
    assert len(entries(Ride(scenario))) > len(scenario.phases)
