"""The whole report, and the laws it checks."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

import numpy as np

from outrider.netsim.theory import experiments
from outrider.netsim.theory.batch import batched
from outrider.netsim.theory.chains import golden_chain
from outrider.netsim.theory.measured import read
from outrider.netsim.theory.predict import predict
from outrider.netsim.theory.report import (
    GOLDEN_BATCHES,
    ChainRow,
    Check,
    OverAcceptance,
    Report,
    SequenceRow,
    Settings,
    Theorem1,
    Theorem2,
    Theorem3,
)
from outrider.netsim.theory.simulate import MOST_DEVIATIONS, Estimate
from outrider.shared.program import version

Say = Callable[[str], None]


def quiet(line: str) -> None:
    """Say nothing."""


def compute(settings: Settings, *, pair: Path | None = None, say: Say = quiet) -> Report:
    """Compute everything. `say` hears what is being done. Raises `BadConfig` for a bad file of laws."""
    prediction = None
    if pair is not None:  # first, so that a bad file is said before anything is computed
        say("the measured pair")
        prediction = predict(read(pair), settings.batches, settings.windows, settings.epsilons)
    say("golden chain")
    chain = golden_chain()
    golden = {str(batch): batched(chain, batch).rejections for batch in GOLDEN_BATCHES}
    played = experiments.golden_estimates(settings)
    say("Theorems 1, 2 and 3")
    first, second = experiments.theorem1(settings), experiments.theorem2(settings)
    third = experiments.theorem3(settings)
    say("Theorems 4 and 5")
    over, texts = experiments.overacceptance(settings), experiments.sequence(settings)
    say("random chains")
    chains = experiments.random_chains(settings)
    checks = [
        *exact_checks(first, second, third, over, texts, golden),
        check(
            "Monte Carlo within 4.5 s.e. of exact (largest)",
            worst_z(played, first, texts, chains),
            MOST_DEVIATIONS,
        ),
    ]
    return Report(
        golden, played, first, second, third, over, texts, chains, checks, prediction, settings, versions()
    )


def check(law: str, value: float, limit: float) -> Check:
    """A law that holds if value ≤ limit (never with NaN)."""
    return Check(law, value + 0.0, limit, bool(value <= limit))  # + 0.0: no minus in front of a zero


def exact_checks(
    first: Theorem1,
    second: Theorem2,
    third: Theorem3,
    over: OverAcceptance,
    texts: list[SequenceRow],
    golden: dict[str, float],
) -> list[Check]:
    """The laws that need no sampling; each value is an error, or the wrong side of an inequality."""
    no_bonus = [abs(row.without_bonus.rejections - first.expected) for row in first.windows]
    ordered = [third.rejections[key] for key in sorted(third.rejections, key=int)]
    rises = [later - sooner for sooner, later in zip(ordered, ordered[1:], strict=False)]
    members = [first.expected - value for value in second.members.values()]
    table = [abs(row.rejection + row.opt_loss - row.distance) for row in over.g2]
    checks = [
        check("without bonus, any window has Theorem 1's rejections", max(no_bonus), 1e-9),
        check(
            "rejections per token with bonus: recursion = formula",
            worst(row.recursion - row.formula for row in first.rates),
            1e-9,
        ),
        check("no unbiased member rejects less than Theorem 1", max(members), 1e-9),
        check("M = 1 is Theorem 1", abs(golden["1"] - first.expected), 1e-9),
        check("more drafts never reject more", max(rises, default=0.0), 1e-9),
        check("no M is below the floor", third.floor - min(ordered), 1e-9),
        check(
            "root rejection: recursion = closed form",
            worst(form.recursion - form.formula for form in third.closed_forms),
            1e-12,
        ),
        check("OPT is on the line, four families", max(over.line.values()), 1e-12),
        check("OPT is on the line, table of G2", max(table), 1e-12),
        check("UNO never loses less than OPT", -over.uno_least, 1e-12),
        check("no b and P is below the line", -over.any_least_gap, 1e-12),
        check("whole texts: rejections + loss = TV", worst(row.opt.gap for row in texts), 1e-9),
        check(
            "whole texts: distance ≤ summed loss",
            max(row.text_distance - row.small_opt.loss for row in texts),
            1e-9,
        ),
    ]
    if over.programmes is not None:
        largest = max(over.programmes.theorem2, over.programmes.theorem4, over.programmes.theorem5)
        checks.append(check("linear programmes = closed forms", largest, 1e-7))
    return checks


def worst(errors: Iterable[float]) -> float:
    """Largest absolute value."""
    return max(abs(error) for error in errors)


def worst_z(
    played: dict[str, Estimate], first: Theorem1, texts: list[SequenceRow], chains: list[ChainRow]
) -> float:
    """The Monte Carlo mean furthest from its exact value, in standard errors."""
    every = list(played.values())
    for window in first.windows:
        every += [window.rejections, window.rounds]
    for row in texts:
        every += [row.opt_gap, row.opt_rejections, row.uno_gap]
    for chain in chains:
        every += [chain.batch4, chain.standard, chain.opt_gap]
    return worst(one.z for one in every)


def versions() -> dict[str, str]:
    """What it was computed with: the golden chain depends on numpy's streams."""
    found = {"outrider": version(), "python": platform.python_version(), "numpy": np.__version__}
    try:
        found["scipy"] = installed("scipy")
    except PackageNotFoundError:
        pass
    return found
