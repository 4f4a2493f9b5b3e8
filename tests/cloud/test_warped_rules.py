"""Rules under warps that read the text: every node has the law of its own root path, and drafting changes nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.cloud.rules import RULES, Nodes
from outrider.shared.draft import Draft
from outrider.shared.frames import TokenKind
from outrider.shared.sampling import History, Sampling, choose, law, log_probs, pick, scores

VOCABULARY = 6
PROMPT = (0, 1, 1)
START = History(PROMPT, 2, (5,))
"""One prompt token more than generated: ids 0 and 1 are seen, id 1 was generated once."""

ALL = {
    "min_p": 0.05,
    "repetition_penalty": 1.6,
    "presence_penalty": 0.8,
    "frequency_penalty": 0.9,
    "min_tokens": 4,
    "logit_bias": ((2, 1.5), (4, -1.0)),
}
SAMPLINGS = [
    *(Sampling(**{name: value}) for name, value in ALL.items() if name != "min_p"),  # type: ignore[arg-type]
    Sampling(**ALL),  # type: ignore[arg-type]
    *(Sampling(0.9, 5, 0.95, seed, **ALL) for seed in range(3)),  # type: ignore[arg-type]
]


@cache
def logits_after(path: tuple[int, ...]) -> NDArray[np.float32]:
    """A target that likes to repeat itself: logits are a function of the path, and its last id is likely."""
    logits = np.random.default_rng((3, *path)).normal(0, 1.2, VOCABULARY)
    if path:
        logits[path[-1]] += 1.5
    return logits.astype(np.float32)


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    """Per row, the drafted ids from the base to it."""
    return [(), *(tuple(draft.ids[n] for n in draft.path_to(node)) for node in range(len(draft)))]


def nodes_of(draft: Draft, sampling: Sampling, **more: Any) -> Nodes:
    """What a rule sees of a draft after PROMPT."""
    logits = np.stack([logits_after(path) for path in paths_of(draft)])
    return Nodes(draft, logits, sampling, len(PROMPT), history=START, **more)


def alone(sampling: Sampling, count: int) -> tuple[int, ...]:
    """The target's own text, each token from the whole text before it."""
    path: tuple[int, ...] = ()
    for _ in range(count):
        text = History(PROMPT + path, START.generated_from, START.stop_ids)
        path += (pick(logits_after(path), sampling, text.position, text),)
    return path


TREE = Draft((1, 2, 1, 1, 5, 3, 1, 1), (0, 0, 1, 3, 3, 2, 4, 7))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_nodes_law_is_that_of_its_root_path_alone(sampling: Sampling) -> None:
    """In any order of asking, a row's law, scores and choice are computed from prefix + path, and from nothing else."""
    for order in (range(9), reversed(range(9))):
        nodes = nodes_of(TREE, sampling)
        paths = paths_of(TREE)
        for row in order:
            text = History(PROMPT + paths[row], START.generated_from, START.stop_ids)
            logits = logits_after(paths[row])
            assert nodes.text(row) == text
            assert (nodes.law(row) == law(logits, sampling, text)).all()
            assert (nodes.scores(row) == scores(logits, sampling, text)).all()
            assert nodes.choice(row) == choose(logits, sampling, text.position, text)
            assert nodes.argmax(row) == int(np.argmax(scores(logits, sampling, text)))


def test_siblings_and_depths_have_different_laws() -> None:
    """With the same logits at every node, the penalties alone make the laws differ as the paths do."""
    logits = np.zeros((9, VOCABULARY), np.float32)
    nodes = Nodes(TREE, logits, Sampling(1.0, frequency_penalty=1.0), len(PROMPT), history=START)
    for row, path in enumerate(paths_of(TREE)):
        counts = [(PROMPT[2:] + path).count(token) for token in range(VOCABULARY)]
        expected = np.exp(-np.asarray(counts, np.float64))
        np.testing.assert_allclose(nodes.law(row), expected / expected.sum(), atol=1e-12)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_any_draft_gives_the_targets_text(sampling: Sampling) -> None:
    """Chains along the truth and off it, and trees: committed tokens are the target's own under every warp."""
    truth = alone(sampling, 7)
    drafts = [Draft.chain(truth[:n]) for n in range(7)]
    drafts += [Draft.chain((*truth[:n], (truth[n] + 1) % VOCABULARY, truth[n])) for n in range(5)]
    drafts += [TREE, Draft((truth[0], (truth[0] + 1) % VOCABULARY, truth[1], truth[2]), (0, 0, 1, 3))]
    for draft in drafts:
        decision = RULES["coupled"](nodes_of(draft, sampling), {})
        committed = (*(draft.ids[node] for node in decision.path), decision.next_id)
        assert committed == truth[: len(committed)]
    assert len(committed) == 4


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_log_probs_are_those_of_the_target_alone(sampling: Sampling) -> None:
    """Whatever was drafted, each committed token is told with the log-probabilities of its own position."""
    truth = alone(sampling, 5)
    for draft in (
        Draft.chain(()),
        Draft.chain(truth[:4]),
        Draft.chain((truth[0], (truth[1] + 1) % VOCABULARY)),
    ):
        nodes = nodes_of(draft, sampling)
        decision = RULES["coupled"](nodes, {})
        told = nodes.log_probs(decision.path, decision.next_id)
        assert len(told) == len(decision.path) + 1
        for index, one in enumerate(told):
            text = History(PROMPT + truth[:index], START.generated_from, START.stop_ids)
            assert one == log_probs(logits_after(truth[:index]), sampling, truth[index], text)


def test_told_log_probs_never_come_from_an_inexact_row() -> None:
    """With log-probabilities asked for, a round ends before the first row off the line, near tie or not."""
    truth = alone(Sampling(), 4)
    draft = Draft.chain(truth[:3])
    exact = (True, True, False, False)
    usual = RULES["greedy"](nodes_of(draft, Sampling(), exact=exact), {})
    assert (usual.path, usual.next_id) == ((0, 1, 2), truth[3])
    careful = RULES["greedy"](nodes_of(draft, Sampling(), exact=exact, wants_log_probs=True), {})
    assert (careful.path, careful.next_id) == ((0,), truth[1])
    assert careful.kinds == (TokenKind.ACCEPTED, TokenKind.ACCEPTED)
