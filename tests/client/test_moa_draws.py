"""Drawn drafts of a graph drafter: the laws that are sent are the graph's own, and its work is reused as ever."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Drawing
from outrider.client.drafters.graph import Answer, Layout, OnnxGraph, Step
from outrider.shared.draft import DraftKind
from outrider.shared.laws import quantise
from outrider.shared.sampling import Sampling
from tests.client.test_moa import IDS, fresh, give, graph, planes
from tests.tiny_drafter import VOCABULARY


@dataclass
class Recorder:
    """Beside every answer, the logits of the whole draft vocabulary, by a run of the same step without noise."""

    inner: OnnxGraph
    layout: Layout
    logits: list[NDArray[np.float64]] = field(default_factory=list)
    """Of every row that was looked at, by draft vocabulary entry."""

    def run(self, step: Step) -> Answer:
        """Compute one step."""
        size = len(self.layout.vocabulary)
        place = {token: index for index, token in enumerate(self.layout.vocabulary.tolist())}
        none = np.zeros(size, np.float32)
        whole = self.inner.run(replace(step, children=size, noise=none, inv_temperature=1.0))
        if step.children > 1 and whole.scores is not None:
            for ids, scores in zip(whole.token_ids.tolist(), whole.scores, strict=True):
                row = np.empty(size)
                row[[place[token] for token in ids]] = scores
                self.logits.append(row)
        return self.inner.run(step)


@pytest.mark.parametrize("temperature", [0.6, 1.3])
def test_the_laws_sent_are_those_of_the_graph(temperature: float) -> None:
    """Each is the float64 softmax of the logits at its node, cut to eight ids and rounded to 2^-12."""
    drafter = fresh(0, IDS[:12], 11)
    recorder = Recorder(graph(0), drafter.layout)
    drafter.graph = recorder
    how = Drawing(DraftKind.DISTINCT, b"key", 3, 2, top=8)
    budget = Budget(14, 4, tree=True, sampling=Sampling(temperature), drawing=how)
    draft = drafter.propose(budget).draft
    assert len(draft) == 14 and len(recorder.logits) == len(draft.laws) == len(draft.inner_rows)
    for told, logits in zip(draft.laws, recorder.logits, strict=True):
        weights = np.exp(logits / temperature - (logits / temperature).max())
        expected = quantise(weights / weights.sum(), top=8, bits=12, ids=drafter.layout.vocabulary)
        # One part in 4096: an entry of less than 1e-16 may be cut in one of them.
        assert np.abs(told.dense(VOCABULARY) - expected.dense(VOCABULARY)).max() <= 2.0**-12


@pytest.mark.parametrize("first", [1, 3])
def test_accepted_draws_are_not_computed_again_and_nothing_changes(first: int) -> None:
    """After rounds of drawn drafts, a draft equals that of a drafter that begins with the same ids."""
    drafter = fresh(0, IDS[:5], 4)
    kind = DraftKind.SAMPLED if first == 1 else DraftKind.DISTINCT
    for number in range(4):
        how = Drawing(kind, bytes([number + 1]), first, first)
        budget = Budget(9, 4, tree=first > 1, sampling=Sampling(1.0), drawing=how)
        proposal = drafter.propose(budget)
        alone = fresh(0, list(drafter.ids), drafter.length - 1)
        again = alone.propose(budget)
        assert proposal.draft.ids == again.draft.ids and proposal.draft.parents == again.draft.parents
        base, before = drafter.length, drafter.counters.reused
        drafter.accept((*proposal.best_ids[:2], IDS[base]))
        assert drafter.counters.reused > before
        give(drafter, planes(0), base - 1, drafter.length - 1)
