"""Each theorem as an experiment: its exact values, and the same by simulation, on the golden chain and small pairs."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np

from outrider.netsim.theory.batch import (
    ENDLESS,
    batched,
    bernoulli_root,
    root_rejection,
    uniform_root,
)
from outrider.netsim.theory.chains import Process, golden_chain, iid, random_chain, random_history
from outrider.netsim.theory.overaccept import (
    epsilon_rule,
    least_loss,
    lenience_rule,
    opt,
    priced,
    top_rule,
    uno,
)
from outrider.netsim.theory.pairs import G1, G2, Array, Pair, bernoulli, random_pairs, tv, uniform
from outrider.netsim.theory.rejections import expected_rejections, windowed, windowed_rate
from outrider.netsim.theory.report import (
    GOLDEN_BATCHES,
    ChainRow,
    ClosedForm,
    EpsilonRow,
    OverAcceptance,
    Programmes,
    RateRow,
    SequenceRow,
    Settings,
    Theorem1,
    Theorem2,
    Theorem3,
    WindowRow,
)
from outrider.netsim.theory.sequence import account, opt_rule, text_distance, uno_rule
from outrider.netsim.theory.simulate import Estimate, estimate, play_batch, play_rule, play_window
from outrider.netsim.theory.unbiased import member_rejections, standard

LONG = 200
"""Positions after which a chain of independent positions counts as settled: its memory of the start is below 1e-12."""


def coins(settings: Settings, *which: int) -> np.random.Generator:
    """A stream of its own for each experiment, so that one more run here changes no figure there."""
    return np.random.default_rng([settings.seed, *which])


def golden_estimates(settings: Settings) -> dict[str, Estimate]:
    """Algorithm 4 played on the golden chain."""
    chain = golden_chain()
    return {
        str(batch): estimate(
            batched(chain, batch).rejections,
            play_batch(chain, batch, settings.runs, coins(settings, 1, batch)).rejections,
        )
        for batch in GOLDEN_BATCHES
    }


def theorem1(settings: Settings) -> Theorem1:
    """Theorem 1 on the golden chain, without and with windows and bonus tokens."""
    chain = golden_chain()
    expected = expected_rejections(chain)
    played = play_batch(chain, 1, settings.runs, coins(settings, 1, 1)).rejections
    means = played.cumsum() / np.arange(1, settings.runs + 1)
    shown = np.unique(np.geomspace(1, settings.runs, 60).astype(int))
    return Theorem1(
        expected,
        chain.horizon / expected,
        [_window_row(chain, window, settings) for window in settings.windows],
        [rate_row(acceptance, window) for acceptance in (0.3, 0.6, 0.8) for window in (1, 2, 4, 8)],
        [(int(runs), float(means[runs - 1])) for runs in shown],
        float(played.std(ddof=1)),
    )


def _window_row(chain: Process, window: int, settings: Settings) -> WindowRow:
    exact = windowed(chain, window)
    played = play_window(chain, window, settings.runs, coins(settings, 2, window))
    return WindowRow(
        exact,
        windowed(chain, window, bonus=False),
        estimate(exact.rejections, played.rejections),
        estimate(exact.rounds, played.rounds),
    )


def rate_row(acceptance: float, window: int) -> RateRow:
    """Long-run rejections per token: the formula beside what the recursion adds per token late in a long chain."""
    pair = bernoulli(1.0, acceptance)  # drafts always say 1, which the target says with this probability
    late = [windowed(iid(pair, horizon), window).rejections for horizon in (LONG, LONG + window + 1)]
    formula = windowed_rate(acceptance, window)
    return RateRow(acceptance, window, formula, (late[1] - late[0]) / (window + 1))


def theorem2(settings: Settings) -> Theorem2:
    """Unbiased members of the class that accept a share c of what they might; and the best by linear programming."""
    chain = golden_chain()
    members = {f"{scale:g}": member_rejections(chain, scale) for scale in (0.2, 0.4, 0.6, 0.8, 1.0)}
    least: dict[str, tuple[float, float | None]] = {}
    for name, pair in (("G1", G1), ("G2", G2)):
        optimum = None
        if find_spec("scipy") is not None:
            from outrider.netsim.theory.lp import least_rejection

            optimum = least_rejection(pair)
        least[name] = (float(tv(pair)), optimum)
    return Theorem2(members, least)


CLOSED_FORMS: dict[str, tuple[Pair, Callable[[int], float]]] = {
    "Bernoulli, u 0.5, v 0.2": (bernoulli(0.5, 0.2), lambda batch: bernoulli_root(0.5, 0.2, batch)),
    "Bernoulli, u 0.9, v 0.5": (bernoulli(0.9, 0.5), lambda batch: bernoulli_root(0.9, 0.5, batch)),
    "uniform, U 50, V 10": (uniform(50, 10), lambda batch: uniform_root(50, 10, batch)),
    "uniform, U 50, V 40": (uniform(50, 40), lambda batch: uniform_root(50, 40, batch)),
}


def theorem3(settings: Settings) -> Theorem3:
    """Theorem 3's recursion on the golden chain, its floor, and the root rejection where it has a closed form."""
    chain = golden_chain()
    found = {str(batch): batched(chain, batch) for batch in settings.batches}
    return Theorem3(
        {batch: one.rejections for batch, one in found.items()},
        {batch: one.improvement for batch, one in found.items()},
        batched(chain, ENDLESS).rejections,
        [_closed_form(name, batch) for name in CLOSED_FORMS for batch in range(1, 21)],
        {str(batch): float(root_rejection(G2, batch)) for batch in (1, 2, 3, 4, 5, 10, 20)},
    )


def _closed_form(name: str, batch: int) -> ClosedForm:
    pair, formula = CLOSED_FORMS[name]
    root = float(root_rejection(pair, batch))
    return ClosedForm(name, batch, formula(batch), root, float(tv(pair)) - root)


Family = Callable[[Pair], Array]

FAMILIES: dict[str, Family] = {
    "standard": standard,
    "epsilon 0.1": lambda pair: epsilon_rule(pair, 0.1),
    "lenience 0.5": lambda pair: lenience_rule(pair, 0.5),
    "top 2 of the target": lambda pair: top_rule(pair, 2),
}


def overacceptance(settings: Settings) -> OverAcceptance:
    """Theorems 4 and 5: the ε table on G2, the line for four families on random pairs, any b and P above it."""
    rng = coins(settings, 3)
    pairs = random_pairs(rng, (settings.instances,), 5)
    excess = [uno(pairs, rule(pairs)).loss - opt(pairs, rule(pairs)).loss for rule in FAMILIES.values()]
    accept = rng.random(pairs.target.shape)
    free = priced(pairs, accept, rng.dirichlet(np.ones(5), size=settings.instances))
    return OverAcceptance(
        [_epsilon_row(epsilon) for epsilon in settings.epsilons],
        {name: float(np.abs(opt(pairs, rule(pairs)).gap).max()) for name, rule in FAMILIES.items()},
        float(np.mean(excess)),
        float(np.min(excess)),
        float(free.gap.min()),
        float(free.gap.mean()),
        _programmes(pairs, accept),
    )


def _epsilon_row(epsilon: float) -> EpsilonRow:
    accept = epsilon_rule(G2, epsilon)
    best, other = opt(G2, accept), uno(G2, accept)
    lp_loss = None
    if find_spec("scipy") is not None:
        from outrider.netsim.theory import lp

        lp_loss = lp.least_loss(G2, accept)
    return EpsilonRow(
        epsilon, float(best.rejection), float(best.loss), float(other.loss), float(best.distance), lp_loss
    )


def _programmes(pairs: Pair, accept: Array) -> Programmes | None:
    if find_spec("scipy") is None:
        return None
    from outrider.netsim.theory import lp

    worst, shares = np.zeros(3), np.linspace(0, 1, len(accept))
    for row, share in enumerate(shares):
        pair = Pair(pairs.target[row], pairs.draft[row])
        distance = float(tv(pair))
        rejected = share * distance
        errors = (
            lp.least_rejection(pair) - distance,
            lp.least_loss(pair, accept[row]) - float(least_loss(pair, accept[row])),
            lp.least_loss_at(pair, rejected) - (distance - rejected),
        )
        worst = np.maximum(worst, np.abs(errors))
    return Programmes(len(shares), *(float(error) for error in worst))


def sequence(settings: Settings) -> list[SequenceRow]:
    """The account over whole texts, on the golden chain and on a small process with every prefix its own law."""
    chain, small = golden_chain(), random_history(coins(settings, 4), 3, 5)
    rows = []
    for number, epsilon in enumerate(settings.epsilons):
        best, other = account(chain, opt_rule(epsilon)), account(chain, uno_rule(epsilon))
        played = play_rule(chain, opt_rule(epsilon), settings.runs, coins(settings, 5, number))
        biased = play_rule(chain, uno_rule(epsilon), settings.runs, coins(settings, 6, number))
        rows.append(
            SequenceRow(
                epsilon,
                best,
                other,
                estimate(best.gap, played.gap),
                estimate(best.rejections, played.rejections),
                estimate(other.gap, biased.gap),
                account(small, opt_rule(epsilon)),
                text_distance(small, opt_rule(epsilon)),
            )
        )
    return rows


def random_chains(settings: Settings) -> list[ChainRow]:
    """Theorems 1, 3 and 5 on random chains of several sizes and kinds of laws, each exact and played."""
    rows = []
    for number in range(settings.chains):
        rng = coins(settings, 7, number)
        states, horizon = int(rng.integers(2, 9)), int(rng.integers(3, 31))
        concentration = float(rng.choice([0.2, 1.0, 4.0]))
        chain = random_chain(rng, states, horizon, concentration)
        exact, runs = expected_rejections(chain), settings.runs
        batch, best = batched(chain, 4).rejections, account(chain, opt_rule(0.1))
        rows.append(
            ChainRow(
                states,
                horizon,
                concentration,
                exact,
                estimate(batch, play_batch(chain, 4, runs, rng).rejections),
                estimate(exact, play_batch(chain, 1, runs, rng).rejections),
                estimate(best.gap, play_rule(chain, opt_rule(0.1), runs, rng).gap),
            )
        )
    return rows
