"""Makes a failing schedule small: drops faults one at a time as long as it still fails."""

from __future__ import annotations

from outrider.netsim.world.schedule import Schedule, make_schedule
from outrider.netsim.world.world import Build, Result, run


def shrink(result: Result, build: Build) -> Result:
    """A failing result with as few faults as one-at-a-time dropping gives."""
    schedule = result.schedule
    kept = schedule.kept if schedule.kept is not None else tuple(range(len(schedule.faults)))
    whole = _whole(schedule)
    best = result
    dropped = True
    while dropped:
        dropped = False
        for number in kept:
            fewer = tuple(n for n in kept if n != number)
            attempt = run(whole.keep(fewer), build)
            if attempt.violations:
                kept, best, dropped = fewer, attempt, True
                break
    return best


def _whole(schedule: Schedule) -> Schedule:
    return schedule if schedule.kept is None else make_schedule(schedule.seed)


def command(result: Result, mutant: str = "") -> str:
    """The command that runs this schedule again."""
    kept = result.schedule.kept
    faults = "" if kept is None else f" --keep {','.join(map(str, kept)) or 'none'}"
    bug = f" --mutant {mutant}" if mutant else ""
    return f"outrider-sim faults --seed {result.schedule.seed}{faults}{bug} --trace"
