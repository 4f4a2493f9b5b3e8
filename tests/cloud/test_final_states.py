"""Final hidden states beside the KV: what the LM head read, through trees, rollbacks, evictions and the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.cloud.engine import Engine, Request, Rows
from outrider.cloud.events import Prefill, Prefilled, Verified, Verify, WorkFailed
from outrider.cloud.kv import STEP, KvFull
from outrider.cloud.selfcheck import probe_ids
from outrider.cloud.target import load_target
from outrider.cloud.worker import Worker
from outrider.shared.draft import Draft
from outrider.shared.frames import Rule
from outrider.shared.sampling import Sampling
from tests.tiny import VOCABULARY, make_target

NEAR = 5e-5
TEXT = probe_ids(VOCABULARY, 60)
TREE = Draft((40, 41, 42, 50, 60, 43, 70, 71), (0, 0, 1, 1, 2, 3, 4, 7))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    return make_target(tmp_path_factory.mktemp("final") / "target")


@pytest.fixture(scope="module")
def opened(folder: Path) -> Engine:
    """An engine over it."""
    return Engine(load_target(folder))


@pytest.fixture
def engine(opened: Engine) -> Engine:
    """That engine without any session."""
    for key in tuple(opened.kv.slots):
        opened.evict(key)
    return opened


def prefill(engine: Engine, key: int, ids: tuple[int, ...], chunk: int = 64, final: bool = True) -> None:
    """Put ``ids`` into the KV of ``key``, which is emptied first."""
    engine.evict(key)
    extend(engine, key, ids, chunk, final)


def extend(engine: Engine, key: int, ids: tuple[int, ...], chunk: int = 64, final: bool = True) -> None:
    """Put the rest of ``ids`` into the KV of ``key``."""
    for start in range(engine.length(key), len(ids), chunk):
        piece = ids[start : start + chunk]
        engine.forward([Request(key, start, piece, final=final)])
        engine.keep(key, start + len(piece))


def tree_rows(engine: Engine, key: int) -> Rows:
    """A pass over the tree after the first 20 ids, 19 of which are held."""
    (rows,) = engine.forward([Request(key, 19, TEXT[19:20], TREE, final=True)])
    assert rows is not None
    return rows


def finals(engine: Engine, key: int) -> Tensor:
    """All that is held."""
    found = engine.final(key, 0, engine.length(key))
    assert found is not None
    return found


def plain(folder: Path, ids: tuple[int, ...]) -> Tensor:
    """What the LM head reads of ``ids`` in transformers alone, [len(ids), hidden]."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    with torch.inference_mode():
        states: Tensor = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    return states


def test_what_is_kept_is_what_the_head_reads(folder: Path, engine: Engine) -> None:
    """However a text came in, its states are those of a plain forward, and the head makes the logits of them."""
    prefill(engine, 1, TEXT, 7)
    assert (finals(engine, 1) - plain(folder, TEXT)).abs().max() < NEAR
    (rows,) = engine.forward([Request(1, len(TEXT), (3,), Draft.chain((4, 5)), final=True)], hidden=True)
    assert rows is not None and rows.hidden is not None
    engine.keep_path(1, len(TEXT) + 1, rows, Draft.chain((4, 5)), (0, 1))
    assert torch.equal(finals(engine, 1)[-3:], rows.hidden)
    model: Any = engine.target.model
    head = model.get_output_embeddings()
    with torch.inference_mode():
        assert (head(finals(engine, 1)[-3:]) - rows.logits).abs().max() < NEAR


def test_chunks_and_company_leave_no_trace(engine: Engine) -> None:
    """Bit for bit the same, whatever the chunks and whoever shares the pass."""
    prefill(engine, 1, TEXT)
    for chunk in (1, 5, 8, 33):
        prefill(engine, 2, TEXT, chunk)
        assert torch.equal(finals(engine, 1), finals(engine, 2))
    prefill(engine, 3, TEXT[:11], final=False)
    engine.evict(2)
    engine.forward([Request(3, 11, TEXT[11:20]), Request(2, 0, TEXT, final=True)])
    engine.keep(2, len(TEXT))
    assert torch.equal(finals(engine, 1), finals(engine, 2))


def test_the_logits_have_the_same_bits_with_and_without(engine: Engine) -> None:
    """Keeping states changes no logit, neither the session's own nor its neighbour's."""
    prefill(engine, 1, TEXT[:19], final=False)
    (alone,) = engine.forward([Request(1, 19, TEXT[19:20], TREE)])
    prefill(engine, 1, TEXT[:19])
    (kept,) = engine.forward([Request(1, 19, TEXT[19:20], TREE, final=True)])
    prefill(engine, 2, TEXT[5:19])
    other, beside = engine.forward(
        [Request(2, 14, TEXT[19:25], final=True), Request(1, 19, TEXT[19:20], TREE, final=True)]
    )
    assert other is None and alone is not None and kept is not None and beside is not None
    assert torch.equal(alone.logits, kept.logits) and torch.equal(alone.logits, beside.logits)


def test_states_follow_the_path_that_is_kept(folder: Path, engine: Engine) -> None:
    """After any path of a tree: near at once, and bit for bit those of a prefill once the next pass is made."""
    for leaf in range(len(TREE)):
        prefill(engine, 1, TEXT[:19])
        path = TREE.path_to(leaf)
        engine.keep_path(1, 20, tree_rows(engine, 1), TREE, path)
        text = TEXT[:20] + tuple(TREE.ids[node] for node in path)
        assert len(finals(engine, 1)) == len(text)
        assert (finals(engine, 1) - plain(folder, text)).abs().max() < NEAR
        extend(engine, 1, (*text, 33))
        prefill(engine, 2, (*text, 33))
        assert torch.equal(finals(engine, 1), finals(engine, 2))


def test_a_draft_that_is_not_kept_leaves_nothing(engine: Engine) -> None:
    """Nodes that were refused, and what is cut off again, are gone: the next text stands in their columns."""
    prefill(engine, 1, TEXT[:19])
    engine.keep_path(1, 20, tree_rows(engine, 1), TREE, ())
    assert engine.final(1, 0, 21) is None
    extend(engine, 1, TEXT[:40])
    engine.truncate(1, 25)
    assert len(finals(engine, 1)) == 25 and engine.final(1, 24, 26) is None
    text = TEXT[:25] + TEXT[3:20]
    extend(engine, 1, text)
    prefill(engine, 2, text)
    assert torch.equal(finals(engine, 1), finals(engine, 2))


def test_growing_buffers_keep_their_states(engine: Engine) -> None:
    """Beyond a step of columns the buffer grows, with what it held."""
    long = probe_ids(VOCABULARY, STEP + 9)
    prefill(engine, 1, long[: STEP - 3])
    extend(engine, 1, long, 4)
    prefill(engine, 2, long, 64)
    assert torch.equal(finals(engine, 1), finals(engine, 2))


def verify(key: int, start: int, pending: tuple[int, ...], draft: Draft, final: bool) -> Verify:
    """A greedy round."""
    return Verify(key, start, pending, draft, Sampling(), Rule("greedy"), final)


def test_rebuilt_from_ids_it_is_the_same(engine: Engine) -> None:
    """A session that went through rounds, was dropped and prefilled from its ids holds the same states again."""
    worker = Worker(engine)
    text, start, pending = list(TEXT[:30]), 0, TEXT[:30]
    for _ in range(4):
        (guess,) = worker.run((verify(9, 0, tuple(text), Draft.chain(()), False),))
        assert isinstance(guess, Verified)
        worker.evict(9)
        # The right token is the second child: what is kept of it came from a side branch.
        tree = Draft(((guess.next_id + 1) % VOCABULARY, guess.next_id), (0, 0))
        (outcome,) = worker.run((verify(1, start, pending, tree, True),))
        assert isinstance(outcome, Verified) and outcome.accepted == (1,)
        text += [guess.next_id, outcome.next_id]
        start, pending = len(text) - 1, (outcome.next_id,)
    extend(engine, 1, (*text, 7))
    before = finals(engine, 1)
    worker.evict(1)
    assert not engine.keeps_final(1)
    assert worker.run((Prefill(1, 0, (*text, 7), final=True),)) == (Prefilled(1),)
    assert torch.equal(finals(engine, 1), before)


def test_nothing_is_kept_for_a_session_that_does_not_ask(engine: Engine) -> None:
    """Neither bytes nor states; and states that were never kept cannot be asked for afterwards."""
    shape = engine.target.kv_shape
    prefill(engine, 1, TEXT, final=False)
    assert engine.final(1, 0, 1) is None and engine.kv.slots[1].final is None
    assert engine.kv.bytes_in_use == STEP * shape.position_bytes
    prefill(engine, 2, TEXT)
    assert engine.kv.bytes_in_use == STEP * (2 * shape.position_bytes + shape.final_bytes)
    assert shape.final_bytes == engine.target.hidden_size * 4
    (outcome,) = Worker(engine).run((Prefill(1, len(TEXT), (1, 2), final=True),))
    assert isinstance(outcome, WorkFailed) and engine.length(1) == 0
    assert Worker(engine).run((Prefill(1, 0, (1, 2), final=True),)) == (Prefilled(1),)
    # A pass that does not ask any more drops what was kept, and its bytes; the KV goes on.
    extend(engine, 2, (*TEXT, 5), final=False)
    assert engine.final(2, 0, 1) is None and engine.length(2) == len(TEXT) + 1
    # Two sessions, of which one keeps final states.
    assert engine.kv.bytes_in_use == STEP * (2 * shape.position_bytes + shape.final_bytes)


def test_the_budget_counts_them(folder: Path) -> None:
    """A budget for one session's keys and values does not hold its states as well; nothing is left of the attempt."""
    target = load_target(folder)
    shape = target.kv_shape
    engine = Engine(target, kv_bytes=STEP * shape.position_bytes)
    with pytest.raises(KvFull) as caught:
        engine.forward([Request(1, 0, TEXT, final=True)])
    assert caught.value.needed_bytes == STEP * shape.bytes_of(True)
    assert engine.kv.bytes_in_use == 0
    engine.forward([Request(1, 0, TEXT)])
    roomy = Engine(load_target(folder), kv_bytes=STEP * shape.bytes_of(True))
    roomy.forward([Request(1, 0, TEXT, final=True)])
    assert roomy.kv.bytes_in_use == roomy.kv.budget_bytes


def test_half_precision_states_are_stored_as_computed(folder: Path) -> None:
    """A bfloat16 target keeps bfloat16 states, two bytes a value."""
    engine = Engine(load_target(folder, "bfloat16"))
    prefill(engine, 1, TEXT[:20])
    assert finals(engine, 1).dtype is torch.bfloat16
    assert engine.target.kv_shape.final_bytes == 2 * engine.target.hidden_size
