"""The device's MoA drafter on a random ONNX graph: what is reused, reordered or taken back changes no prediction."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Proposal
from outrider.client.drafters.graph import OnnxGraph
from outrider.client.drafters.moa import GraphDrafter
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.device_half import DeviceHalf
from outrider.cloud.moa.drafter import FrozenTarget, MoaDrafter
from outrider.cloud.moa.graph import build_graph
from outrider.shared.noise import gumbel
from outrider.shared.sampling import Sampling
from tests.client.proposals import same
from tests.tiny_drafter import (
    GRID,
    VOCABULARY,
    Device,
    random_drafter,
    random_kv,
    rows_of,
    tiny_settings,
    trained_and_merged,
)
from tests.tiny_kinds import KAPPA, graph_of

LENGTH = 24
MAX_POSITION = 640
CHAIN = Budget(6, 6)
TREE = Budget(14, 5, tree=True)
IDS = np.random.default_rng(3).integers(0, VOCABULARY, 1024).tolist()
Planes = tuple[NDArray[np.float32], ...]


Case = int | str
"""Target layers on the device, or a name of `GRID`."""
CASES: tuple[Case, ...] = (0, 2, "blocks", "blocks_full")
MASKED: tuple[Case, ...] = (1, 2, "blocks", "blocks_full")
"""Those with layers that read own keys and values only where there are no rows."""


def case_settings(case: Case) -> MoaSettings:
    """The settings of a case."""
    return tiny_settings(**GRID[case]) if isinstance(case, str) else tiny_settings(case)


@cache
def parts(case: Case) -> tuple[MoaDrafter, FrozenTarget]:
    """The random drafter, and what it has of the target on the device."""
    drafter, _, merged = trained_and_merged(case_settings(case))
    return drafter, merged


@cache
def graph(case: Case) -> OnnxGraph:
    """The float32 graph of the random drafter."""
    settings = case_settings(case)
    drafter, _, merged = trained_and_merged(settings)
    return graph_of(drafter, merged, max_position=MAX_POSITION)


@cache
def planes(case: Case, length: int = LENGTH) -> Planes:
    """State rows of positions 0 … length-1."""
    settings = case_settings(case)
    drafter, _ = random_drafter(settings)
    with torch.no_grad():
        rows = rows_of(drafter, random_kv(settings, length))
    return tuple(plane.numpy() for plane in rows)


def give(drafter: GraphDrafter, rows: Planes, start: int, stop: int) -> None:
    """Rows of all planes for positions start … stop-1."""
    for plane, values in enumerate(rows):
        drafter.add_rows(plane, start, values[start:stop])


def fresh(case: Case, ids: list[int], rows: int) -> GraphDrafter:
    """A drafter that has ``ids`` and the rows of the first ``rows`` positions, and no past."""
    drafter = GraphDrafter(graph(case))
    give(drafter, planes(case), 0, rows)
    drafter.begin(ids)
    return drafter


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("budget", [CHAIN, TREE])
def test_accepted_drafts_are_not_computed_again_and_nothing_changes(case: Case, budget: Budget) -> None:
    """After rounds that accept part of a draft, proposals equal those of a drafter that begins with the same ids."""
    drafter = fresh(case, IDS[:5], 4)
    while drafter.length < LENGTH - 7:
        proposal = drafter.propose(budget)
        taken = proposal.best_ids[: 1 + drafter.length % 4]
        before, base = drafter.counters.reused, drafter.length
        drafter.accept(taken)
        drafter.accept([IDS[drafter.length]])
        give(drafter, planes(case), base - 1, drafter.length - 1)
        assert drafter.counters.reused - before >= min(len(taken), len(proposal.best_ids) - 1)
        same(drafter.propose(budget), fresh(case, drafter.ids, drafter.length - 1).propose(budget))


@pytest.mark.parametrize("case", CASES)
def test_a_branch_off_the_best_path_is_kept_too(case: Case) -> None:
    """Accepting the path to any node of a tree leaves the drafter as if these tokens had come by themselves."""
    for node in range(TREE.max_nodes):
        drafter = fresh(case, IDS[:10], 9)
        draft = drafter.propose(TREE).draft
        path = [draft.ids[n] for n in draft.path_to(node)]
        drafter.accept(path)
        other = fresh(case, IDS[:10], 9)
        other.accept(path)
        same(drafter.propose(CHAIN), other.propose(CHAIN))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [0, 9])
def test_a_tree_node_scores_as_a_chain_on_its_path(case: Case, rows: int) -> None:
    """Every node's log-probability is the one a drafter gives that stands at the node's parent."""
    proposal = fresh(case, IDS[:10], rows).propose(TREE)
    draft = proposal.draft
    assert not draft.is_chain
    for node, log_prob in enumerate(proposal.log_probs):
        drafter = fresh(case, IDS[:10], rows)
        drafter.accept([draft.ids[n] for n in draft.path_to(node)[:-1]])
        children = drafter.propose(Budget(12, 1, tree=True))
        found = dict(zip(children.draft.ids, children.log_probs, strict=True))
        assert found[draft.ids[node]] == pytest.approx(log_prob, abs=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_rollback_forgets(case: Case) -> None:
    """Cut to any length, with rows and a proposal beyond it, a drafter equals one that never went further."""
    for length in range(1, 12):
        drafter = fresh(case, IDS[:LENGTH], LENGTH - 1)
        drafter.propose(TREE)
        drafter.rollback(length)
        assert drafter.length == length
        same(drafter.propose(TREE), fresh(case, IDS[:length], length - 1).propose(TREE))


def test_begin_keeps_the_common_prefix() -> None:
    """A new turn on the same conversation costs its new tokens only."""
    drafter = fresh(0, IDS[:20], 12)
    before = drafter.counters.ingested
    drafter.begin([*IDS[:15], *IDS[50:55]])
    assert drafter.counters.ingested - before == 4
    same(drafter.propose(CHAIN), fresh(0, [*IDS[:15], *IDS[50:55]], 12).propose(CHAIN))


@pytest.mark.parametrize("case", CASES)
def test_rows_may_come_in_any_order_or_never(case: Case) -> None:
    """Rows plane by plane, newest first, twice or late: the same draft; a position short of one plane has no row."""
    drafter = GraphDrafter(graph(case))
    drafter.begin(IDS[:10])
    assert drafter.propose(CHAIN).draft.ids
    rows = planes(case)
    for plane in reversed(range(len(rows))):
        for start in (6, 2, 0, 4, 2):
            drafter.add_rows(plane, start, rows[plane][start : start + 2])
        if plane:
            drafter.add_rows(plane, 8, rows[plane][8:9])
    same(drafter.propose(TREE), fresh(case, IDS[:10], 8).propose(TREE))


@pytest.mark.parametrize("case", MASKED)
@pytest.mark.parametrize("rows", [3, 8])
def test_a_tail_without_rows_reads_those_below_it(case: Case, rows: int) -> None:
    """Whether its tokens came at once or one by one, before the rows or after them: the law of the stepwise oracle."""
    once, late = fresh(case, IDS[:12], rows), fresh(case, IDS[:rows], 0)
    for token_id in IDS[rows:12]:
        late.propose(Budget(1, 1))
        late.accept([token_id])
    give(late, planes(case), 0, rows)
    device = Device(DeviceHalf(*parts(case)), [torch.from_numpy(plane) for plane in planes(case)], rows)
    scores = device.feed(torch.tensor(IDS[:12]))[-1].detach() / 1.3
    law = dict(zip(once.layout.vocabulary.tolist(), scores.log_softmax(-1).tolist(), strict=True))
    for drafter in (once, late):
        found = drafter.propose(Budget(3, 1, tree=True))
        assert found.log_probs == pytest.approx([law[token_id] for token_id in found.draft.ids], abs=1e-4)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("accepted", [0, 1, 4])
def test_late_rows_change_a_draft_as_early_ones_do(case: Case, accepted: int) -> None:
    """Rows that come to a tail fed and drafted without them: each draft is that of a device that began with them."""
    drafter = fresh(case, IDS[:10], 2)
    drafter.accept(drafter.propose(TREE).best_ids[:accepted])
    for stop in (3, 6, drafter.length - 1, drafter.length):
        give(drafter, planes(case), stop - 2, stop - 1)
        give(drafter, planes(case), 2, stop)
        for plane, values in enumerate(planes(case)):
            drafter.add_rows(plane, 0, values[:stop])
        same(drafter.propose(TREE), fresh(case, drafter.ids, stop).propose(TREE))
    other = fresh(case, drafter.ids, drafter.length)
    path = drafter.propose(CHAIN).best_ids[:3]
    drafter.accept(path)
    other.accept(path)
    same(drafter.propose(TREE), other.propose(TREE))


@pytest.mark.parametrize("case", MASKED)
def test_rows_between_draft_and_verdict(case: Case) -> None:
    """Rows that come after a draft was made, before its tokens are taken over, are read by those that stay bare."""
    drafter = fresh(case, IDS[:10], 4)
    path = drafter.propose(CHAIN).best_ids[:4]
    give(drafter, planes(case), 4, 9)
    drafter.accept(path)
    same(drafter.propose(CHAIN), fresh(case, drafter.ids, 9).propose(CHAIN))


@pytest.mark.parametrize("case", MASKED)
def test_rows_that_come_newest_first_leave_the_gap_alone(case: Case) -> None:
    """A prompt's rows come from its end: what lies below them has read none and is not fed again, all is as at once."""
    drafter = fresh(case, IDS[:20], 0)
    for start, stop in ((15, 19), (11, 15), (6, 11)):
        give(drafter, planes(case), start, stop)
        before = drafter.counters.ingested
        drafter.propose(Budget(1, 1))
        assert drafter.counters.ingested - before == 1
        other = GraphDrafter(graph(case))
        give(other, planes(case), start, 19)
        other.begin(IDS[:20])
        same(drafter.propose(TREE), other.propose(TREE))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("halves", [False, True])
def test_an_ordinary_round_feeds_only_what_was_not_drafted(case: Case, halves: bool) -> None:
    """Rows of all but the last token come with every verdict, in one piece or two: only the new tokens are fed."""
    drafter = fresh(case, IDS[:5], 4)
    while drafter.length < LENGTH - 7:
        taken, base = drafter.propose(CHAIN).best_ids[: 1 + drafter.length % 5], drafter.length
        before = drafter.counters.reused
        drafter.accept(taken)
        drafter.accept([IDS[drafter.length]])
        assert drafter.counters.reused - before >= len(taken)
        middle = base if halves else drafter.length - 1
        give(drafter, planes(case), base - 1, middle)
        give(drafter, planes(case), middle, drafter.length - 1)
        before, fed = drafter.counters.passes, drafter.counters.ingested
        drafter.propose(Budget(1, 1))
        assert (drafter.counters.passes - before, drafter.counters.ingested - fed) == (1, 1)


@pytest.mark.parametrize("case", CASES)
def test_a_tail_ahead_of_the_verdict_is_fed_once_more_at_most(case: Case) -> None:
    """With tokens drafted beyond the verdict, its rows cost one run over these, and none where no layer minds."""
    drafter = fresh(case, IDS[:10], 9)
    drafter.accept(drafter.propose(CHAIN).best_ids[:5])
    give(drafter, planes(case), 9, 12)
    before, fed = drafter.counters.passes, drafter.counters.ingested
    proposal = drafter.propose(Budget(1, 1))
    again = (2, 3) if case in MASKED else (1, 1)
    assert (drafter.counters.passes - before, drafter.counters.ingested - fed) == again
    same(proposal, fresh(case, drafter.ids, 12).propose(Budget(1, 1)))


def test_rows_change_the_draft() -> None:
    """With rows the drafter says something else than without: they are read."""
    with_rows, without = fresh(0, IDS[:10], 9).propose(CHAIN), fresh(0, IDS[:10], 0).propose(CHAIN)
    assert with_rows.log_probs != without.log_probs


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_first_token_is_the_shared_coins_choice(temperature: float) -> None:
    """The first drafted token is the best of logits / T + noise of its absolute position, by target id."""
    settings = tiny_settings(0)
    sampling = Sampling(temperature=temperature, seed=77 if temperature else 0)
    vocabulary = np.array(settings.draft_vocabulary)
    drafter, frozen = random_drafter(settings)
    rows = [torch.from_numpy(plane) for plane in planes(0)]
    for length in range(2, 12):
        proposal = fresh(0, IDS[:length], length - 1).propose(Budget(1, 1, sampling=sampling))
        device = Device(DeviceHalf(drafter, frozen), rows, length - 1)
        scores = device.feed(torch.tensor(IDS[:length]))[-1].detach().double().numpy()
        if temperature:
            scores = scores / temperature + gumbel(77, length, vocabulary, VOCABULARY)
        assert proposal.draft.ids == (vocabulary[scores.argmax()],)
        calibrated = scores * (temperature or 1.0) / KAPPA
        expected = calibrated.max() - np.log(np.exp(calibrated - calibrated.max()).sum()) - calibrated.max()
        assert proposal.log_probs[0] == pytest.approx(expected, abs=1e-3)


def test_memory_grows_without_a_trace() -> None:
    """Past the first capacity of its buffers and several ingest chunks, incremental still equals fresh."""
    drafter = fresh(2, IDS[:505], LENGTH)
    for step in range(505, 530, 5):
        drafter.propose(TREE)
        drafter.accept(IDS[step : step + 5])
    rows = np.zeros((40, drafter.layout.row_widths[0]), np.float32)
    for plane in range(3):
        drafter.add_rows(plane, 500, rows)
    drafter.rollback(520)
    other = fresh(2, IDS[:520], LENGTH)
    for plane in range(3):
        other.add_rows(plane, 500, rows[:20])
    same(drafter.propose(CHAIN), other.propose(CHAIN))


def test_nothing_is_proposed_beyond_the_last_position() -> None:
    """At the end of the positions the graph knows, drafts shorten and then stop; the sequence may go on."""
    drafter = fresh(0, IDS[: MAX_POSITION - 2], 0)
    assert len(drafter.propose(CHAIN).draft) == 2
    drafter.accept(IDS[:5])
    assert drafter.propose(CHAIN) == Proposal.empty()
    drafter.rollback(100)
    assert len(drafter.propose(CHAIN).draft) == 6


@pytest.mark.parametrize(
    ("plane", "start", "shape", "value"),
    [(3, 0, (2, 32), 0.0), (-1, 0, (2, 32), 0.0), (0, 0, (2, 31), 0.0), (0, -1, (2, 32), 0.0)]
    + [(0, MAX_POSITION - 1, (2, 32), 0.0), (0, 0, (2, 32), np.nan), (0, 0, (2, 32), np.inf)],
)
def test_rows_that_do_not_fit_are_refused(
    plane: int, start: int, shape: tuple[int, int], value: float
) -> None:
    """A plane, place, width or value that cannot be is refused, and the drafter goes on as before."""
    drafter = fresh(2, IDS[:10], 9)
    before = drafter.propose(CHAIN)
    with pytest.raises(ValueError, match="row"):
        drafter.add_rows(plane, start, np.full(shape, value, np.float32))
    same(drafter.propose(CHAIN), before)


def test_a_graph_of_another_layout_is_refused() -> None:
    """Metadata that promises layers the graph does not have is found before the first token."""
    model = build_graph(*random_drafter(tiny_settings(0)), 64, {}, int8=False).SerializeToString()
    with pytest.raises(ValueError, match="differs"):
        OnnxGraph(model, graph(2).layout)
