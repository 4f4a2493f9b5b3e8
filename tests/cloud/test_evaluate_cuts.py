"""Cuts and outages: what is written alone, and the arithmetic of how much of it an outage has time for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.cost import pass_s
from outrider.client.drafter import Budget, Proposal
from outrider.client.drafters.none import NoDrafter
from outrider.client.drafters.oracle import OracleDrafter
from outrider.cloud.evaluate.cuts import Alone, cut_after, during, kept_of, write_alone
from outrider.cloud.evaluate.rounds import DEPTH, Case
from outrider.shared.frames import CostCurve

PROMPT, ANSWER, STOP = 10, 40, 1
COST = CostCurve((1, 8, 64), (30_000, 31_000, 60_000), 128, 500)


def make_case() -> Case:
    """A random text that ends with its stop id."""
    ids = np.random.default_rng(0).integers(2, 97, size=PROMPT + ANSWER).tolist()
    ids[-1] = STOP
    return Case(ids=ids, prompt=PROMPT, tokens=ANSWER)


class Watched(OracleDrafter):
    """Remembers what it was asked for."""

    asked: list[Budget]
    began: int

    def __init__(self, case: Case) -> None:
        super().__init__(case.ids)
        self.asked = []

    def propose(self, budget: Budget) -> Proposal:
        """The oracle's."""
        if not self.asked:
            self.began = self.length
        self.asked.append(budget)
        return super().propose(budget)


@given(st.integers(2, 400), st.floats(0, 1))
def test_a_cut_leaves_something_on_both_sides(answer: int, share: float) -> None:
    """At least one token is there and one is missing; otherwise it is the nearest whole number of tokens."""
    cut = cut_after(answer, share)
    assert 1 <= cut <= answer - 1
    assert abs(cut - share * answer) <= 0.5 or cut in (1, answer - 1)


@pytest.mark.parametrize("answer", [0, 1])
def test_what_cannot_be_cut_is_refused(answer: int) -> None:
    """An answer of one token has no middle."""
    with pytest.raises(ValueError, match="cannot be cut"):
        cut_after(answer, 0.5)


@pytest.mark.parametrize("cut", [1, 7, ANSWER - 1])
def test_an_oracle_writes_the_rest(cut: int) -> None:
    """From the first missing token to the end, all of it kept; asked as a device that is alone asks."""
    case = make_case()
    drafter = Watched(case)
    alone = write_alone(drafter, case, cut, 256, (STOP,))
    rest = case.ids[PROMPT + cut :]
    assert list(alone.ids) == list(rest) and alone.ended and alone.step_s >= 0
    assert kept_of(alone.ids, rest) == ANSWER - cut
    assert drafter.began == PROMPT + cut
    assert {budget.alone_from for budget in drafter.asked} == {PROMPT + cut}
    assert {budget.max_nodes for budget in drafter.asked[1:]} == {DEPTH}


def test_writing_ends_at_the_limit_and_at_the_stop() -> None:
    """Exactly so many tokens, or up to the stop id and nothing behind it."""
    case = make_case()
    short = write_alone(OracleDrafter(case.ids), case, 5, 11, (STOP,))
    assert list(short.ids) == list(case.ids[PROMPT + 5 : PROMPT + 16]) and not short.ended
    early = case.ids[PROMPT + 9]
    ended = write_alone(OracleDrafter(case.ids), case, 5, 256, (early,))
    assert ended.ids[-1] == early and len(ended.ids) <= 5 and ended.ended


def test_who_has_nothing_to_say_writes_nothing() -> None:
    """No tokens, no end."""
    alone = write_alone(NoDrafter(), make_case(), 5, 256, (STOP,))
    assert (alone.ids, alone.ended) == (Alone((), False, 0.0).ids, False)


@pytest.mark.parametrize("wrong", [0, 1, 20])
def test_what_is_kept_ends_at_the_first_difference(wrong: int) -> None:
    """Agreement further on does not count: the target would have gone on from another token."""
    case = make_case()
    rest = list(case.ids[PROMPT + 5 :])
    line = rest.copy()
    line[wrong] += 100
    assert kept_of(line, rest) == wrong


TIMES = st.floats(0, 1e4, allow_nan=False)


@given(TIMES, st.integers(0, 256), st.integers(0, 256), st.floats(0, 1), st.floats(0, 2))
def test_laws_of_an_outage(seconds: float, whole: int, kept: int, step_s: float, rtt_s: float) -> None:
    """No more than there is or there is time for, each token kept or revised, and the price of one pass over them."""
    kept = min(kept, whole)
    found = during(seconds, whole=whole, kept=kept, step_s=step_s, rtt_s=rtt_s, cost=COST)
    assert 0 <= found.drafted <= whole
    assert found.drafted * step_s <= seconds * (1 + 1e-9) or found.drafted == 0
    assert found.drafted == whole or (found.drafted + 1) * step_s > seconds * (1 - 1e-9)
    assert found.kept + found.revised == found.drafted and found.kept <= kept
    assert found.finished == (found.drafted == whole)
    assert found.reconcile_s == rtt_s + pass_s(COST, found.drafted + 1)
    longer = during(seconds + 1, whole=whole, kept=kept, step_s=step_s, rtt_s=rtt_s, cost=COST)
    assert longer.drafted >= found.drafted and longer.kept >= found.kept


def test_an_outage_by_hand() -> None:
    """One second at 50 ms a token: twenty of thirty, of which the first twelve stand."""
    found = during(1.0, whole=30, kept=12, step_s=0.05, rtt_s=0.1, cost=COST)
    assert (found.drafted, found.kept, found.revised, found.finished) == (20, 12, 8, False)
    # 21 rows are padded to 24: 31 + (24 - 8) * 29 / 56 ms.
    assert found.reconcile_s == pytest.approx(0.1 + 0.031 + 16 * 0.029 / 56)


def test_a_cut_for_good_is_an_outage_without_end() -> None:
    """All that would be written is."""
    found = during(math.inf, whole=30, kept=12, step_s=0.05, rtt_s=0.1, cost=COST)
    assert (found.drafted, found.kept, found.finished) == (30, 12, True)
