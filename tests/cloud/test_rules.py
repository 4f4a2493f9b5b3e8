"""Laws of the rules: the text is the target's, whatever was drafted."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.cloud.rules import RULES, Nodes, find_rule
from outrider.shared import frames
from outrider.shared.draft import Draft
from outrider.shared.errors import InvalidField
from outrider.shared.frames import TokenKind
from outrider.shared.noise import gumbel
from outrider.shared.sampling import Sampling, law, pick

VOCABULARY = 6
ACCEPTED, RECOVERED, BONUS = TokenKind.ACCEPTED, TokenKind.RECOVERED, TokenKind.BONUS
Law = NDArray[np.float64]


@cache
def logits_after(path: tuple[int, ...], scale: float = 1.5) -> NDArray[np.float32]:
    """A target: logits are a function of the path."""
    return np.random.default_rng((7, *path)).normal(0, scale, VOCABULARY).astype(np.float32)


def nodes_of(draft: Draft, sampling: Sampling, length: int = 10, **more: Any) -> Nodes:
    """What a rule sees of a draft under that target."""
    paths = [(), *(tuple(draft.ids[above] for above in draft.path_to(node)) for node in range(len(draft)))]
    return Nodes(draft, np.stack([logits_after(path) for path in paths]), sampling, length, **more)


def alone(sampling: Sampling, count: int, length: int = 10) -> tuple[int, ...]:
    """The target's own text."""
    path: tuple[int, ...] = ()
    for step in range(count):
        path += (pick(logits_after(path), sampling, length + step),)
    return path


def every_tree(nodes: int) -> list[Draft]:
    """Trees of that size with distinct siblings, over three ids."""
    drafts = []
    for parents in itertools.product(*(range(node + 1) for node in range(nodes))):
        for ids in itertools.product(range(3), repeat=nodes):
            if len(set(zip(parents, ids, strict=True))) == nodes:
                drafts.append(Draft(ids, parents))
    return drafts


@pytest.mark.parametrize(
    ("name", "sampling"),
    [("greedy", Sampling())] + [("coupled", Sampling(0.9, 0, 0.0, seed)) for seed in range(4)],
)
def test_any_tree_gives_the_targets_text(name: str, sampling: Sampling) -> None:
    """All trees of up to three nodes: committed tokens are the target's own, as far as the draft allows."""
    truth = alone(sampling, 6)
    for draft in (draft for size in range(4) for draft in every_tree(size)):
        decision = RULES[name](nodes_of(draft, sampling))
        committed = (*(draft.ids[node] for node in decision.path), decision.next_id)
        assert committed == truth[: len(committed)]
        assert decision.path == (() if not decision.path else draft.path_to(decision.path[-1]))
        last = decision.path[-1] + 1 if decision.path else 0
        assert decision.next_id not in {draft.ids[child] for child in draft.children(last)}
        assert decision.kinds[:-1] == (ACCEPTED,) * len(decision.path)
        assert decision.kinds[-1] == (RECOVERED if draft.children(last) else BONUS)


def test_id_zero_and_siblings_are_ordinary() -> None:
    """A child with id 0 is found like any other, also as the last of several siblings."""
    sampling = Sampling()
    truth = alone(sampling, 3)
    others = tuple(token for token in range(VOCABULARY) if token != truth[0])
    draft = Draft((*others, truth[0], truth[1]), (*(0,) * len(others), 0, len(others) + 1))
    decision = find_rule(frames.Rule("greedy"), sampling)(nodes_of(draft, sampling))
    assert decision.path == (len(others), len(others) + 1) and decision.next_id == truth[2]


def test_every_depth_throws_its_own_coin() -> None:
    """Noise belongs to the absolute position: siblings share it, depths and session lengths do not."""
    sampling = Sampling(1.0, seed=3)
    draft = Draft((0, 1, 2), (0, 0, 1))
    nodes = nodes_of(draft, sampling, 10)
    assert [nodes.position(row) for row in range(4)] == [10, 11, 11, 12]
    for row, path in enumerate(((), (0,), (1,), (0, 2))):
        assert nodes.choice(row).token == pick(logits_after(path), sampling, 10 + len(path))


@pytest.mark.parametrize(
    "draws", [3_000, pytest.param(300_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_the_coupled_law_is_the_targets_law(draws: int) -> None:
    """Over many seeds the first two tokens have the target's joint law, under a drafter that reads the same coins."""
    temperature = 1.0
    counts = np.zeros((VOCABULARY, VOCABULARY))
    first = law(logits_after(()), Sampling(temperature))
    for seed in range(draws):
        sampling = Sampling(temperature, seed=seed)
        guess = int(np.argmax(logits_after((99,)) + gumbel(seed, 10, None, VOCABULARY)))
        draft = Draft.chain((guess, (guess + 1) % VOCABULARY))
        decision = RULES["coupled"](nodes_of(draft, sampling))
        committed = [*(draft.ids[node] for node in decision.path), decision.next_id]
        if len(committed) < 2:
            committed.append(pick(logits_after((committed[0],)), sampling, 11))
        counts[committed[0], committed[1]] += 1
    expected = (
        np.stack([first[x] * law(logits_after((x,)), Sampling(temperature)) for x in range(VOCABULARY)])
        * draws
    )
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < 66.6  # chi-square, 35 degrees of freedom, 99.9 %


def match_rate(target: Law, draft: Law) -> float:
    """Probability that both maximise the same id under the same noise: sum of 1 / sum of max(t(y)/t(x), d(y)/d(x))."""
    return float(sum(1 / np.maximum(target / target[x], draft / draft[x]).sum() for x in range(len(target))))


def test_a_drafter_on_the_same_coins_matches_as_often_as_the_formula_says() -> None:
    """Acceptance over 10,000 positions is the Gumbel coupling's rate, below the optimum 1 - TV and above half of it."""
    rng = np.random.default_rng(5)
    for _ in range(3):
        target, draft = rng.dirichlet(np.ones(VOCABULARY), 2)
        hits = 0
        for position in range(10_000):
            noise = gumbel(11, position, None, VOCABULARY)
            hits += int(np.argmax(np.log(target) + noise) == np.argmax(np.log(draft) + noise))
        rate = match_rate(target, draft)
        overlap = float(np.minimum(target, draft).sum())
        assert abs(hits / 10_000 - rate) < 4 * (rate * (1 - rate) / 10_000) ** 0.5
        assert overlap / (2 - overlap) - 1e-12 <= rate <= overlap


def test_near_ties_are_counted_and_distrusted_off_the_line() -> None:
    """At an exact row a near tie is counted; at an inexact one the round ends a token earlier."""
    logits = np.asarray([[0, 9, 0, 0], [0, 0, 5, 5.0001], [1, 0, 0, 0]], np.float32)
    draft = Draft.chain((1, 3))
    trusted = RULES["greedy"](Nodes(draft, logits, Sampling(), 5))
    assert (trusted.path, trusted.next_id, trusted.near_ties) == ((0, 1), 0, 1)
    cautious = RULES["greedy"](Nodes(draft, logits, Sampling(), 5, exact=(True, False, False)))
    assert (cautious.path, cautious.next_id, cautious.near_ties) == ((), 1, 0)
    assert cautious.kinds == (ACCEPTED,)


def test_unknown_rules_and_parameters_are_refused() -> None:
    """The name, a parameter no rule takes, and greedy with a temperature each raise InvalidField."""
    for asked, sampling, field in (
        (frames.Rule("judge"), Sampling(), "rule.name"),
        (frames.Rule(""), Sampling(), "rule.name"),
        (frames.Rule("greedy"), Sampling(0.5), "rule.name"),
        (frames.Rule("coupled", (("tau", 0.5),)), Sampling(0.5), "rule.parameters"),
    ):
        with pytest.raises(InvalidField) as refused:
            find_rule(asked, sampling)
        assert refused.value.field == field


def test_the_view_is_lazy_and_complete() -> None:
    """Laws, scores and argmax are those of the row; hidden states only exist when they were asked for."""
    nodes = nodes_of(Draft.chain((1,)), Sampling(0.7, 3))
    assert nodes.law(1).sum() == pytest.approx(1.0) and (nodes.law(1) > 0).sum() == 3
    assert (
        nodes.argmax(1) == int(np.argmax(nodes.scores(1)))
        and nodes.child(0, 1) == 0
        and nodes.child(0, 2) is None
    )
    with pytest.raises(ValueError, match="needs_hidden"):
        nodes.hidden(0)
