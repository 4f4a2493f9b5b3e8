"""Text written alone does not go round in circles; text that the target will judge may."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client.drafter import Budget, Drafter
from outrider.client.drafters.graph import Answer, Layout, Step
from outrider.client.drafters.hybrid import HybridDrafter
from outrider.client.drafters.loops import PHRASE, repeats
from outrider.client.drafters.moa import GraphDrafter
from outrider.client.drafters.ngram import NgramDrafter
from outrider.client.events import Label, Propose
from tests.client.machine_bench import PROMPT, online

VOCABULARY = 64
START = (9, 1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5, 9, 1, 2)
"""A text that has begun to repeat itself, so that a copy goes on for ever."""


class Circular:
    """A graph that likes the id after the last one best, in a circle of ``period`` ids; the rest is lukewarm."""

    layout = Layout(
        kind="circular",
        own_layers=1,
        own_width=1,
        tli_layers=0,
        row_widths=(),
        vocabulary=np.arange(VOCABULARY, dtype=np.int64),
        kappa=1.0,
        max_position=4096,
    )

    def __init__(self, period: int) -> None:
        noise = np.random.default_rng(period).normal(size=(VOCABULARY, VOCABULARY))
        self.logits = np.asarray(noise, np.float32)
        for last in range(VOCABULARY):
            self.logits[last, (last + 1) % period] += 6.0

    def run(self, step: Step) -> Answer:
        """Scores of the selected rows, best first."""
        scores = self.logits[step.ids[step.select]].astype(np.float64)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : step.children]
        top = np.take_along_axis(scores, best, axis=1)
        own = [np.zeros((len(step.ids), 1), np.float32)]
        return Answer(top - np.log(np.exp(scores).sum(axis=1, keepdims=True)), best, own, own, scores=top)


def too_often(text: Sequence[int]) -> bool:
    """By the definition, at the end of ``text``: short words in a row, or a phrase for the third time."""
    for length, most in ((1, 4), (2, 3), (3, 3), (4, 2), (5, 2)):
        words, times = list(text[-length:]), 0
        while list(text[len(text) - (times + 1) * length : len(text) - times * length]) == words:
            times += 1
        if len(text) >= length and times > most:
            return True
    ends = [list(text[place : place + PHRASE]) for place in range(len(text) - PHRASE + 1)]
    return bool(ends) and ends.count(ends[-1]) > 2


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(0, 1))
def test_repetition_is_found_by_its_definition(text: list[int], token_id: int) -> None:
    """What is found by comparing ends is what counting says."""
    assert repeats(text, token_id) == too_often([*text, token_id])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_whatever_is_said_again_and_again_is_refused(words: list[int]) -> None:
    """No words can be said a sixth time in a row."""
    text: list[int] = []
    for token_id in words * 6:
        if repeats(text, token_id):
            return
        text.append(token_id)
    pytest.fail(f"{words} was repeated")


KINDS: dict[str, Callable[[int], Drafter]] = {
    "model": lambda period: GraphDrafter(Circular(period)),
    "copy": lambda period: NgramDrafter(),
    "hybrid": lambda period: HybridDrafter(GraphDrafter(Circular(period))),
}


def written(drafter: Drafter, alone_from: int | None, count: int = 200) -> list[int]:
    """What it writes behind `START`, eight tokens at a time."""
    drafter.begin(START)
    text: list[int] = []
    while len(text) < count:
        said = drafter.propose(Budget(8, 8, alone_from=alone_from)).best_ids
        if not said:
            break
        drafter.accept(said)
        text += said
    return text


@pytest.mark.parametrize("period", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_writes_in_circles_alone(kind: str, period: int) -> None:
    """No kind repeats itself more often than allowed, and one with a model goes on for a hundred tokens at least."""
    text = written(KINDS[kind](period), len(START))
    assert not any(too_often(text[: end + 1]) for end in range(len(text)))
    assert kind == "copy" or len(text) >= 100


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_target_judges_may_repeat(kind: str) -> None:
    """The control: the same drafters go round in circles where the target will judge, as it does itself."""
    text = written(KINDS[kind](7), None)
    assert len(text) >= 200 and too_often(text)


def test_a_loop_of_the_targets_is_continued() -> None:
    """Only text written alone counts: a circle in what was verified does not forbid its next round."""
    drafter = NgramDrafter()
    drafter.begin([1, 2, 3, 4] * 6)
    assert drafter.propose(Budget(8, 8, alone_from=24)).best_ids == (1, 2, 3, 4, 1, 2, 3, 4)


def test_the_machine_says_from_where_it_is_alone() -> None:
    """Drafts for a judge carry no such length; those of a device without one carry the committed length."""
    bench = online()
    assert {asked.budget.alone_from for asked in bench.take(Propose)} == {None}
    bench.wait(20.0)
    assert bench.text(Label.PROVISIONAL)
    assert bench.take(Propose)[-1].budget.alone_from == len(PROMPT)
