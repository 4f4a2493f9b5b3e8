"""Drafting under biases and penalties: a drafter that knows the target's logits drafts what the target will say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.client.drafter import Budget, Proposal
from outrider.client.drafters.graph import Answer, Layout, Step
from outrider.client.drafters.moa import GraphDrafter
from outrider.shared.sampling import History, Sampling, law, pick

VOCABULARY = 12
"""No larger than what is asked for, so that the whole law is known."""
PROMPT = (3, 1, 4, 1, 5)
ALL: dict[str, Any] = {
    "repetition_penalty": 1.8,
    "presence_penalty": 0.7,
    "frequency_penalty": 0.5,
    "min_tokens": 4,
    "logit_bias": ((7, 1.5), (2, -2.0)),
}
SAMPLINGS = [Sampling(**{name: value}) for name, value in ALL.items()]
SAMPLINGS += [Sampling(**ALL), *(Sampling(0.8, seed=seed, **ALL) for seed in range(4))]
LOGITS = np.random.default_rng(5).normal(0.5, 1.0, (VOCABULARY, VOCABULARY)).astype(np.float32)
LOGITS[np.arange(VOCABULARY), np.arange(VOCABULARY)] += 3.0
"""After each id: it likes to be said again."""


class Knowing:
    """A graph that gives the target's own logits, by the last id alone, in a vocabulary in another order."""

    layout = Layout(
        kind="knowing",
        own_layers=1,
        own_width=1,
        tli_layers=0,
        row_widths=(),
        vocabulary=np.random.default_rng(2).permutation(VOCABULARY).astype(np.int64),
        kappa=1.0,
        max_position=64,
    )

    def run(self, step: Step) -> Answer:
        """Scores of the selected rows, best first."""
        vocabulary = self.layout.vocabulary
        rows = LOGITS[step.ids[step.select]][:, vocabulary]
        scores = rows.astype(np.float64) * step.inv_temperature + step.noise
        best = np.argsort(-scores, axis=1, kind="stable")[:, : step.children]
        top = np.take_along_axis(scores, best, axis=1)
        # Calibrated as the real one: of sampled answers the temperature is taken out again.
        slope = 1.0 if not step.noise.any() else 1.0 / step.inv_temperature
        log_probs = top * slope - np.log(np.exp(scores * slope).sum(axis=1, keepdims=True))
        own = [np.zeros((len(step.ids), 1), np.float32)]
        return Answer(log_probs, vocabulary[best], own, own, scores=top)


def alone(sampling: Sampling, count: int) -> tuple[int, ...]:
    """The target's own text."""
    text = History(PROMPT, len(PROMPT), (0, 7))
    for _ in range(count):
        text = text.then((pick(LOGITS[text.ids[-1]], sampling, text.position, text),))
    return text.ids[len(PROMPT) :]


def draft(sampling: Sampling, **budget: Any) -> Proposal:
    """What is drafted after the prompt."""
    drafter = GraphDrafter(Knowing())
    drafter.begin(PROMPT)
    told = {"sampling": sampling, "generated_from": len(PROMPT), "stop_ids": (0, 7)}
    return drafter.propose(Budget(**{"max_nodes": 6, "max_depth": 6, **budget, **told}))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_chain_is_the_targets_text(sampling: Sampling) -> None:
    """Every node's children are adjusted with the text of its own path, noise and all."""
    assert draft(sampling).draft.ids == alone(sampling, 6)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_trees_first_children_are_too(sampling: Sampling) -> None:
    """The likeliest line of a tree is the target's text, its siblings are others, and none is certain."""
    proposal = draft(sampling, max_nodes=14, max_depth=4, tree=True)
    truth = alone(sampling, 4)
    assert proposal.best_ids == truth[: len(proposal.best_ids)] and len(proposal.best_ids) >= 2
    assert len(set(zip(proposal.draft.parents, proposal.draft.ids, strict=True))) == 14
    assert max(proposal.log_probs) <= 0.0


def test_what_is_foreseen_is_a_law() -> None:
    """Greedy, with all entries known: the children's probabilities are the adjusted law's."""
    sampling = Sampling(**ALL)
    proposal = draft(sampling, max_nodes=3, max_depth=1, tree=True)
    text = History(PROMPT, len(PROMPT), (0, 7))
    adjusted = law(LOGITS[PROMPT[-1]], Sampling(1.0, **ALL), text)
    np.testing.assert_allclose(np.exp(proposal.log_probs), adjusted[list(proposal.draft.ids)], rtol=1e-5)


def test_without_adjustments_nothing_changes() -> None:
    """A plain sampling asks for no more entries than it wants."""
    asked: list[int] = []

    class Watching(Knowing):
        def run(self, step: Step) -> Answer:
            asked.append(step.children)
            return super().run(step)

    for sampling in (Sampling(), Sampling(0.8, 5, 0.9, 1, 0.1)):
        drafter = GraphDrafter(Watching())
        drafter.begin(PROMPT)
        drafter.propose(Budget(4, 4, sampling=sampling))
    assert set(asked) == {1}
