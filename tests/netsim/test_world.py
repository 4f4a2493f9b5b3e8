"""The simulated world finds nothing in the real cores and everything that was planted."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from outrider.netsim.cli import app
from outrider.netsim.world.cli import run_range
from outrider.netsim.world.mutants import MUTANTS
from outrider.netsim.world.schedule import FAULT_KINDS, make_schedule
from outrider.netsim.world.shrink import command, shrink
from outrider.netsim.world.world import run

BOUND = 600
"""Seeds within which every planted bug must be found."""


def test_every_law_holds() -> None:
    """No violation over a few hundred schedules that between them have every kind of fault."""
    tally = run_range(0, 250)
    assert tally.failing == {}
    assert set(tally.faults) == set(FAULT_KINDS)
    assert tally.figures["provisional"] and tally.figures["revised"] and tally.figures["shared_passes"]


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_every_planted_bug_is_caught(name: str) -> None:
    """One wrong line in one core is found within the bound."""
    tally = run_range(0, BOUND, name, until_caught=True)
    assert tally.failing, f"{name} survived {tally.schedules} schedules"


def test_ten_bugs_are_planted() -> None:
    """The list is the one that the protocol's page asks for."""
    assert len(MUTANTS) == 10


def test_a_seed_is_one_schedule() -> None:
    """The same seed gives the same history, entry by entry."""
    for seed in (3, 11, 40):
        assert run(make_schedule(seed)).history.lines() == run(make_schedule(seed)).history.lines()


def test_a_failing_schedule_is_made_small() -> None:
    """Shrinking keeps the failure, drops faults, and names the command that shows it."""
    build = MUTANTS["no-catch-up"]
    tally = run_range(0, BOUND, "no-catch-up", until_caught=True)
    seed = next(iter(tally.failing))
    small = shrink(run(make_schedule(seed), build), build)
    assert small.violations
    for number in range(len(small.schedule.faults)):
        kept = small.schedule.kept or ()
        fewer = tuple(n for n in kept if n != kept[number]) if kept else ()
        assert not run(make_schedule(seed).keep(fewer), build).violations
    assert command(small, "no-catch-up").startswith(f"outrider-sim faults --seed {seed}")


def test_the_command_ends_with_one_json_object() -> None:
    """Schedules and violations, for machines; the exit code says the same."""
    done = CliRunner().invoke(app, ["faults", "--seeds", "5", "--start", "100", "--json"])
    last = json.loads(done.stdout.strip().splitlines()[-1])
    assert (done.exit_code, last["schedules"], last["violations"]) == (0, 5, 0)


def test_one_schedule_can_be_shown() -> None:
    """--trace prints what happened, and --mutant makes it fail."""
    seed = next(iter(run_range(0, BOUND, "accepted-path-shifted", until_caught=True).failing))
    arguments = ["faults", "--seed", str(seed), "--mutant", "accepted-path-shifted", "--trace"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1 and "emit" in done.stdout


@pytest.mark.long
def test_many_schedules() -> None:
    """Twenty thousand schedules without a violation."""
    assert run_range(100_000, 120_000).failing == {}
