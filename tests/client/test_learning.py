"""What a session learns while it runs: how often first guesses are right, and how long the drafter's runs take."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.conn import Round, first_guesses
from outrider.client.cost import StepTimes
from outrider.client.drafter import Confidence, Law
from outrider.client.pacing import MEASURED_GUESSES, estimate_alpha, law_of, sizes, trunk_mean
from outrider.shared.draft import Draft
from outrider.shared.frames import Commit, RoundOutcome, TokenKind, Verdict
from tests.client.test_pacing import LOCAL, laws


@pytest.mark.parametrize(("alpha", "depth"), [*itertools.product((0.2, 0.5, 0.8, 0.95), (3, 6))])
def test_acceptance_is_learnt(alpha: float, depth: int) -> None:
    """From a thousand simulated rounds of chains, the rate that made them comes back within three points."""
    right = np.random.default_rng(1).random((1000, depth)) < alpha
    accepted = np.cumprod(right, axis=1).sum(axis=1)
    judged = np.minimum(accepted + 1, depth)
    inputs = replace(LOCAL, rounds=1000, judged=int(judged.sum()), accepted=int(accepted.sum()))
    assert estimate_alpha(inputs) == pytest.approx(100 * alpha, abs=3)


@given(laws)
def test_a_measured_law_is_the_prior(law: Law) -> None:
    """Before any round the bundle's law stands as it is; a session that bears it out leaves it alone."""
    found = law_of(law, estimate_alpha(replace(LOCAL, law=law)))
    for ranks, measured in zip(found, law, strict=True):
        assert ranks[0] == pytest.approx(measured[0], abs=0.02)
    judged = 10 * MEASURED_GUESSES
    more = replace(LOCAL, law=law, judged=judged, accepted=round(judged * trunk_mean(law)), rounds=judged)
    assert abs(estimate_alpha(more) - estimate_alpha(replace(LOCAL, law=law))) <= 1


@given(laws, st.integers(1, 98))
def test_a_session_moves_the_whole_law(law: Law, alpha: int) -> None:
    """More accepted than expected raises every depth's first guess; ranks stay in order and sum to one at most."""
    less, more = law_of(law, alpha), law_of(law, alpha + 1)
    for low, high in zip(less, more, strict=True):
        assert high[0] > low[0]
        for ranks in (low, high):
            assert list(ranks) == sorted(ranks, reverse=True) and sum(ranks) <= 1 + 1e-9


def test_a_depth_that_cannot_be_predicted_is_never_drafted() -> None:
    """Heads for three tokens: a law of nought beyond them bounds every draft."""
    law: Law = ((0.8, 0.1), (0.7, 0.1), (0.6, 0.1), (0.0, 0.0))
    for tree in (False, True):
        every = sizes(law_of(law, 60), tree, (31, 12))
        assert max(size.depth for size in every) == 3


def test_confidence_between_the_temperatures() -> None:
    """Greedy answers have their own law, sampled ones theirs; in between it lies between them."""
    confidence = Confidence(((0.8, 0.1),), ((0.6, 0.2),))
    assert confidence.at(0.0) == ((0.8, 0.1),) and confidence.at(1.0) == confidence.at(2.0) == ((0.6, 0.2),)
    assert confidence.at(0.5)[0] == pytest.approx((0.7, 0.15))
    assert Confidence().at(0.7) == () and Confidence(((0.8,),)).at(0.7) == ((0.8,),)


# ----------------------------------------------------------------------------------------------- the device's step time


@given(st.floats(1e-4, 0.02), st.floats(1e-5, 0.005), st.integers(0, 1000))
def test_step_times_are_fitted(per_pass_s: float, per_node_s: float, seed: int) -> None:
    """From drafts of different widths both parts of a pass come back."""
    rng = np.random.default_rng(seed)
    times = StepTimes()
    for _ in range(60):
        passes = int(rng.integers(1, 8))
        nodes = passes * int(rng.integers(1, 9))
        times.add(passes, nodes, passes * per_pass_s + nodes * per_node_s)
    found = times.cost()
    assert found is not None
    for width in (1, 4, 8):
        true = per_pass_s + width * per_node_s
        assert found.level_s(width) == pytest.approx(true, rel=0.1, abs=0.1 * per_pass_s)


def test_chains_tell_nothing_about_width() -> None:
    """Drafts of one node a pass give the time of such a pass exactly; wider ones are assumed to cost more, not as many
    times as much."""
    times = StepTimes()
    for passes in (3, 5, 4, 6):
        times.add(passes, passes, 0.003 * passes)
    found = times.cost()
    assert found is not None and found.level_s(1) == pytest.approx(0.003)
    assert 0.004 < found.level_s(8) < 0.024 / 2


def test_a_busy_moment_is_not_taken_for_the_device() -> None:
    """One draft that took a hundred times as long moves the fit by less than half; nonsense moves nothing."""
    times = StepTimes()
    assert times.cost() is None
    for passes, nodes, seconds in ((0, 0, 1.0), (2, 1, 1.0), (1, 1, 0.0), (1, 1, float("inf")), (1, 1, -1.0)):
        times.add(passes, nodes, seconds)
    assert times.cost() is None
    for _ in range(30):
        times.add(4, 4, 0.012)
    times.add(4, 4, 1.2)
    found = times.cost()
    assert found is not None and found.level_s(1) < 1.5 * 0.003


# ------------------------------------------------------------------------------------------------ what a session learns


def judged_round(draft: Draft, path: int, accepted: tuple[int, ...]) -> int:
    """First guesses right of a draft whose accepted tokens are these, with a recovered one behind them."""
    kinds = (TokenKind.ACCEPTED,) * len(accepted) + (TokenKind.RECOVERED,)
    verdict = Verdict(1, RoundOutcome.VERIFIED, Commit(1, 10, (*accepted, 99), kinds), accepted=len(accepted))
    return first_guesses(Round(1, 1, 10, draft, path, 0, 0.0, 1.0), verdict)


def test_first_guesses_are_those_along_the_best_path() -> None:
    """Of a chain all accepted tokens; of a tree those until the path of first children is left."""
    chain = Draft.chain((1, 2, 3))
    assert [judged_round(chain, 3, ids) for ids in ((), (1,), (1, 2, 3))] == [0, 1, 3]
    tree = Draft((1, 2, 3, 4, 5), (0, 0, 1, 1, 2))  # 1 → 3 or 4; 2 → 5
    assert [judged_round(tree, 2, ids) for ids in ((), (1,), (1, 3), (1, 4), (2, 5))] == [0, 1, 2, 1, 0]
