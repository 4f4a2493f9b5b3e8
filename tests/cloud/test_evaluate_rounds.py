"""Laws of the evaluation's rounds: drafters whose figures are known in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from outrider.client.drafter import Budget, Drafter, Proposal
from outrider.client.drafters.hybrid import HybridDrafter
from outrider.client.drafters.ngram import NgramDrafter
from outrider.client.drafters.noisy import NoisyDrafter
from outrider.client.drafters.none import NoDrafter
from outrider.client.drafters.oracle import OracleDrafter
from outrider.cloud.evaluate.rounds import (
    CHAINS,
    DEPTH,
    TREES,
    Case,
    Times,
    accepted_of,
    chain_acceptance,
    measure_offline,
    measure_rounds,
    run,
)
from outrider.shared.draft import Draft

VOCABULARY = 97
PROMPT = 10


def make_case(tokens: int, seed: int = 0, after: int = DEPTH + 1) -> Case:
    """A random text whose answer goes ``after`` tokens beyond the measured ones."""
    ids = np.random.default_rng(seed).integers(VOCABULARY, size=PROMPT + tokens + after).tolist()
    return Case(ids=ids, prompt=PROMPT, tokens=tokens)


def quotient(pair: tuple[float, float]) -> float:
    """A tally's figure."""
    return pair[0] / pair[1]


def test_an_oracle_brings_one_more_than_it_drafts() -> None:
    """tau = k + 1 exactly, for chains and trees, and every depth is right: the end of the measure costs nothing."""
    case = make_case(50)
    tally = measure_rounds(OracleDrafter(case.ids), case)
    for chain in CHAINS:
        assert quotient(tally[f"tau_chain{chain}"]) == chain + 1
    for nodes in TREES:
        assert quotient(tally[f"tau_tree{nodes}"]) == min(nodes, DEPTH) + 1
    assert all(quotient(tally[f"acceptance_{depth}"]) == 1.0 for depth in range(1, DEPTH + 1))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.6])
def test_a_noisy_drafter_matches_the_closed_form(rate: float) -> None:
    """Wrong at each place with probability r: tau of chains of k is (1 - (1-r)^(k+1)) / r, acceptance 1 - r."""
    case = make_case(2500, seed=1)
    tally = measure_rounds(NoisyDrafter(case.ids, rate, 5, VOCABULARY), case)
    for chain in CHAINS:
        expected = (1 - (1 - rate) ** (chain + 1)) / rate
        # One round's tokens have a variance below (1-r)/r^2; four standard errors of the mean over all rounds.
        bound = 4 * np.sqrt((1 - rate) / rate**2 / tally[f"tau_chain{chain}"][1])
        assert abs(quotient(tally[f"tau_chain{chain}"]) - expected) < bound
    right, tried = tally["acceptance_1"]
    assert abs(right / tried - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / tried)


def test_drafters_that_are_always_wrong_or_silent_bring_one() -> None:
    """With nothing right, or nothing said, every round brings the target's own token."""
    case = make_case(40)
    # A noisy tree's second guesses may be right, so it is judged by its chains.
    for drafter, measures in (
        (NoisyDrafter(case.ids, 1.0, 5, VOCABULARY), "tau_chain"),
        (NoDrafter(), "tau"),
    ):
        tally = measure_rounds(drafter, case)
        assert all(quotient(value) == 1.0 for name, value in tally.items() if name.startswith(measures))
        assert tally["acceptance_1"] == (0.0, 39.0) and tally["acceptance_2"] == (0.0, 0.0)


def test_chains_that_are_probed_first_agree_as_drafted_whole() -> None:
    """Drafting the whole chain only where its first tokens are right counts the same, place for place."""
    case = make_case(300, seed=4)
    probed, whole = (
        chain_acceptance(NoisyDrafter(case.ids, 0.4, 5, VOCABULARY), case, Times(), nested=nested)
        for nested in (True, False)
    )
    assert probed == whole and set(range(6)) <= set(whole)


def test_walked_chains_are_the_rounds_that_really_run() -> None:
    """One draft of eight per length, walked, gives the tokens and rounds of chains of four and six run for real."""
    case = make_case(200, seed=2)
    tally = measure_rounds(NoisyDrafter(case.ids, 0.3, 5, VOCABULARY), case)
    for chain in CHAINS:
        real = run(NoisyDrafter(case.ids, 0.3, 5, VOCABULARY), case, Budget(chain, chain))
        assert tally[f"tau_chain{chain}"] == real


def test_chains_that_are_no_beginnings_of_longer_ones_are_run() -> None:
    """A hybrid chooses between its two chains by their length, so its short chains are drafted, not cut."""
    case = make_case(60, seed=3)

    def hybrid() -> Drafter:
        return HybridDrafter(NoisyDrafter(case.ids, 0.3, 5, VOCABULARY), NgramDrafter())

    tally = measure_rounds(hybrid(), case, nested=False)
    for chain in CHAINS:
        assert tally[f"tau_chain{chain}"] == run(hybrid(), case, Budget(chain, chain))


def test_a_text_that_ends_within_the_measure_ends_its_rounds() -> None:
    """No round is credited with tokens behind the end, and the last one counts what was left."""
    case = make_case(50, after=-21)  # 29 answer tokens, one of them committed by the prefill
    tally = measure_rounds(OracleDrafter(case.ids), case)
    assert tally["tau_chain4"] == (28.0, 6.0) and tally["tau_chain8"] == (28.0, 4.0)
    assert tally["acceptance_8"] == (21.0, 21.0)


@pytest.mark.parametrize(
    ("truth", "accepted"), [([1, 5, 9], 2), ([2, 9], 1), ([3], 0), ([1, 6, 7], 3), ([], 0)]
)
def test_a_tree_accepts_along_the_text(truth: list[int], accepted: int) -> None:
    """The longest beginning of the text that is a path from the base."""
    draft = Draft(ids=(1, 2, 5, 6, 7), parents=(0, 0, 1, 1, 4))
    assert accepted_of(draft, truth) == accepted


class Watcher(NoisyDrafter):
    """Notes at every proposal which rows it was given, beside its length."""

    def __init__(self, truth: Sequence[int]) -> None:
        super().__init__(truth, 0.3, 5, VOCABULARY)
        self.have: set[int] = set()
        self.seen: list[tuple[int, int]] = []

    def add_rows(self, plane: int, start: int, rows: np.ndarray) -> None:
        """Note their positions."""
        self.have |= set(range(start, start + len(rows)))

    def rollback(self, length: int) -> None:
        """Forget rows as well."""
        super().rollback(length)
        self.have = {place for place in self.have if place < length}

    def propose(self, budget: Budget) -> Proposal:
        """Note, and propose."""
        assert self.have == set(range(len(self.have)))
        self.seen.append((self.length, len(self.have)))
        return super().propose(budget)


def test_rows_come_of_everything_but_the_last_token_and_stop_at_the_cut() -> None:
    """In rounds a draft sees the rows of all committed tokens but the last; after a cut, none that are newer."""
    case = make_case(40)
    rows = (np.zeros((len(case.ids), 3), np.float32),)
    case = Case(ids=case.ids, prompt=PROMPT, tokens=40, rows=rows)
    drafter = Watcher(case.ids)
    measure_rounds(drafter, case)
    assert all(have == length - 1 for length, have in drafter.seen)
    drafter.seen.clear()
    measure_offline(drafter, case, (), lambda position, token: 0.0, None)
    first = len(case.ids) - PROMPT - 1
    assert [have for _, have in drafter.seen[:first]] == [PROMPT] * first
    assert {have for _, have in drafter.seen[first:]} == {PROMPT + 20}


def test_offline_figures_fold_by_depth_after_both_cuts() -> None:
    """An oracle with one wrong token: each span counts its own places, once per cut."""
    case = make_case(140)
    wrong = PROMPT + 1 + 24  # depth 25 after the first cut, inside the rows after the second

    class Slip(OracleDrafter):
        def propose(self, budget: Budget) -> Proposal:
            if self.length == wrong:
                return self.count(Proposal.chain(((self.truth[wrong] + 1) % VOCABULARY,), (-1.0,)))
            return super().propose(budget)

    def surprise(position: int, token: int) -> float:
        return 0.5 if token == case.ids[position] else 3.0

    tally = measure_offline(Slip(case.ids), case, (), surprise, None)
    assert tally["standalone_1_20"] == (40.0, 40.0)
    assert tally["standalone_20"] == (108 + 58 - 1, 108 + 58)
    assert tally["agree_21_64"] == (87.0, 88.0) and tally["agree_129_256"] == (20.0, 20.0)
    assert tally["nll_forced_21_64"] == (87 * 0.5 + 3.0, 88.0) and tally["nll_text_21_64"] == (44.0, 88.0)


def test_what_a_drafter_writes_alone_is_judged_as_it_stands() -> None:
    """After the cut in the middle: the line ends with a stop id or where the text does, and counts by depth."""
    case = make_case(60)
    stop = case.ids[PROMPT + 42]
    judged: list[tuple[int, list[int]]] = []

    def judge(prefix: Sequence[int], line: Sequence[int]) -> list[float]:
        judged.append((len(prefix), list(line)))
        return [2.0] * len(line)

    first = next(place for place in range(PROMPT + 31, len(case.ids)) if case.ids[place] == stop)
    tally = measure_offline(OracleDrafter(case.ids), case, (stop,), lambda position, token: 0.0, judge)
    measure_offline(OracleDrafter(case.ids), case, (), lambda position, token: 0.0, judge)
    assert judged == [
        (PROMPT + 31, list(case.ids[PROMPT + 31 : first + 1])),
        (PROMPT + 31, list(case.ids[PROMPT + 31 :])),
    ]
    total = sum(value[0] for name, value in tally.items() if name.startswith("nll_free"))
    assert total == 2.0 * len(judged[0][1])
