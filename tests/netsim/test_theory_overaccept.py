"""Theorems 4 and 5: what over-acceptance costs per token and per text, against linear programmes and simulation."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory import lp
from outrider.netsim.theory.chains import golden_chain, random_chain, random_history
from outrider.netsim.theory.experiments import FAMILIES, Family
from outrider.netsim.theory.overaccept import (
    best_replacement,
    epsilon_price,
    epsilon_rule,
    is_best,
    least_loss,
    lenience_rule,
    opt,
    priced,
    top_rule,
    uno,
)
from outrider.netsim.theory.pairs import G2, Pair, positive, random_pairs, residual, tv
from outrider.netsim.theory.rejections import expected_rejections
from outrider.netsim.theory.sequence import account, opt_rule, text_distance, uno_rule
from outrider.netsim.theory.simulate import MOST_DEVIATIONS, estimate, play_rule
from outrider.netsim.theory.unbiased import standard


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def some_pairs(number: int, seed: int) -> Pair:
    return random_pairs(rng(seed), (number,), 5, concentration=0.5)


@pytest.mark.parametrize(
    ("epsilon", "reject", "opt_loss", "uno_loss"),
    [
        (0.0, 0.50, 0.0, 0.15),
        (0.05, 0.40, 0.10, 0.22),
        (0.10, 0.30, 0.20, 0.29),
        (0.20, 0.15, 0.35, 0.395),
        (0.30, 0.05, 0.45, 0.465),
        (0.35, 0.0, 0.50, 0.50),
        (0.90, 0.0, 0.50, 0.50),
    ],
)
def test_the_epsilon_table_of_g2(epsilon: float, reject: float, opt_loss: float, uno_loss: float) -> None:
    """The published rejection and losses, from the rule, from its closed form, and from a linear programme."""
    accept = epsilon_rule(G2, epsilon)
    best, closed = opt(G2, accept), epsilon_price(G2, epsilon)
    assert float(best.rejection) == pytest.approx(reject, abs=1e-12)
    assert float(best.loss) == pytest.approx(opt_loss, abs=1e-12)
    assert float(uno(G2, accept).loss) == pytest.approx(uno_loss, abs=1e-12)
    assert (float(closed.rejection), float(closed.loss)) == pytest.approx((reject, opt_loss), abs=1e-12)
    assert lp.least_loss(G2, accept) == pytest.approx(opt_loss, abs=1e-7)


def test_theorem_4_the_least_loss_by_linear_programming() -> None:
    """For 100 random pairs and any b the programme over P finds Σ [b·draft - target]+, and OPT reaches it."""
    pairs, source = some_pairs(100, 1), rng(2)
    accept = source.random((100, 5))
    assert opt(pairs, accept).loss == pytest.approx(least_loss(pairs, accept), abs=1e-12)
    for row in range(100):
        pair = Pair(pairs.target[row], pairs.draft[row])
        assert lp.least_loss(pair, accept[row]) == pytest.approx(
            float(least_loss(pairs, accept)[row]), abs=1e-7
        )


def test_theorem_4_all_optimal_replacements() -> None:
    """Any P within what is missing loses as little as OPT's; a P outside it loses more."""
    pairs, source = some_pairs(200, 3), rng(4)
    accept = np.maximum(standard(pairs), source.random((200, 5)))
    missing = positive(pairs.target - accept * pairs.draft)
    need = ((1 - accept) * pairs.draft).sum(axis=-1)
    # Fill what is missing from the left until the rejected mass is placed: within bounds, and rarely OPT's own choice.
    before = missing.cumsum(axis=-1) - missing
    filled = np.minimum(missing, positive(need[:, None] - before))
    some = need > 1e-6
    other = filled[some] / need[some, None]
    chosen = Pair(pairs.target[some], pairs.draft[some])
    best = opt(chosen, accept[some])
    assert is_best(chosen, accept[some], other)
    assert priced(chosen, accept[some], other).loss == pytest.approx(best.loss, abs=1e-12)
    outside = np.flip(other, axis=-1)
    assert not is_best(chosen, accept[some], outside)
    assert (priced(chosen, accept[some], outside).loss > best.loss + 1e-6).any()


@pytest.mark.parametrize("name", FAMILIES)
def test_theorem_5_every_rule_above_standard_is_on_the_line(name: str) -> None:
    """With b ≥ min(1, target/draft), rejection + loss = TV, OPT's residual is the standard one, and UNO loses more."""
    rule: Family = FAMILIES[name]
    pairs = some_pairs(500, 5)
    accept = rule(pairs)
    assert (accept >= standard(pairs)).all()
    best, other = opt(pairs, accept), uno(pairs, accept)
    assert best.gap == pytest.approx(np.zeros(500), abs=1e-12)
    assert (other.loss >= best.loss - 1e-12).all() and (other.gap > 1e-3).any()
    rejecting = best.rejection > 1e-9
    assert best_replacement(pairs, accept)[rejecting] == pytest.approx(residual(pairs)[rejecting], abs=1e-9)


def test_theorem_5_nothing_is_below_the_line() -> None:
    """For any b and P the sum is at least TV, for b below the ratio more; a programme over all b and P agrees."""
    pairs, source = some_pairs(500, 6), rng(7)
    accept, replacement = source.random((500, 5)), source.dirichlet(np.ones(5), size=500)
    assert (priced(pairs, accept, replacement).gap >= -1e-12).all()
    assert (opt(pairs, 0.7 * standard(pairs)).gap > 0.05).any()
    for row in range(40):
        pair = Pair(pairs.target[row], pairs.draft[row])
        rejected = float(source.random()) * float(tv(pair))
        assert lp.least_loss_at(pair, rejected) == pytest.approx(float(tv(pair)) - rejected, abs=1e-7)


def test_rules_refuse_what_makes_no_sense() -> None:
    """A negative or undefined ε and a lenience outside (0, 1] are named."""
    for epsilon in (-0.1, float("nan")):
        with pytest.raises(BadConfig, match="epsilon"):
            epsilon_rule(G2, epsilon)
    for lenience in (0.0, 1.5):
        with pytest.raises(BadConfig, match="lenience"):
            lenience_rule(G2, lenience)


def test_ties_in_the_target_go_to_the_lower_id() -> None:
    """Of two equally likely tokens the first counts as the likelier."""
    pair = Pair(np.array([0.4, 0.4, 0.2]), np.array([0.2, 0.2, 0.6]))
    assert top_rule(pair, 1)[0] == 1.0 and top_rule(pair, 3).tolist() == [1, 1, 1]


@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.1, 0.4])
def test_whole_texts_pay_what_their_own_prefixes_say(epsilon: float) -> None:
    """Where every prefix counts: rejections + loss = TV exactly for OPT, more for UNO; loss bounds distance."""
    process = random_history(rng(10), vocabulary=3, horizon=5)
    best, other = account(process, opt_rule(epsilon)), account(process, uno_rule(epsilon))
    assert best.gap == pytest.approx(0, abs=1e-12) and other.gap > 0.01
    assert text_distance(process, opt_rule(epsilon)) <= best.loss + 1e-12
    assert text_distance(process, uno_rule(epsilon)) <= other.loss + 1e-12


def test_at_epsilon_0_opt_is_lossless_and_uno_is_not() -> None:
    """OPT's texts have the target's law and Theorem 1's rejections; UNO's texts have neither."""
    chain = random_chain(rng(11), states=3, horizon=5)
    best = account(chain, opt_rule(0))
    assert best.loss == pytest.approx(0, abs=1e-12)
    assert best.rejections == pytest.approx(expected_rejections(chain), abs=1e-12)
    assert text_distance(chain, opt_rule(0)) == pytest.approx(0, abs=1e-12)
    assert text_distance(chain, uno_rule(0)) > 0.05


def test_over_acceptance_adds_up() -> None:
    """With ε rejections fall and the distance of whole texts grows, beyond the loss of a single token."""
    process = random_history(rng(12), vocabulary=3, horizon=5)
    rows = [(account(process, opt_rule(e)), text_distance(process, opt_rule(e))) for e in (0, 0.05, 0.1, 0.2)]
    rejections, distances = [paid.rejections for paid, _ in rows], [distance for _, distance in rows]
    assert rejections == sorted(rejections, reverse=True) and distances == sorted(distances)
    assert distances[-1] > rows[-1][0].loss / process.horizon


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_played_rules_pay_what_the_account_says(epsilon: float) -> None:
    """3,000 runs on the golden chain: OPT's rejections + loss - TV averages 0, UNO's its exact gap, which is not 0."""
    chain = golden_chain()
    best = play_rule(chain, opt_rule(epsilon), 3000, rng(13))
    assert abs(estimate(account(chain, opt_rule(epsilon)).rejections, best.rejections).z) < MOST_DEVIATIONS
    assert abs(estimate(0.0, best.gap).z) < MOST_DEVIATIONS
    other = play_rule(chain, uno_rule(epsilon), 3000, rng(14))
    assert abs(estimate(account(chain, uno_rule(epsilon)).gap, other.gap).z) < MOST_DEVIATIONS
    assert estimate(0.0, other.gap).z > 20
