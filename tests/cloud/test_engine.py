"""Laws of the engine: packing, trees, and what stays in the KV."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.cloud.attention import Step, UnsupportedAttention, attend
from outrider.cloud.engine import Engine, Request, Rows, depth_first
from outrider.cloud.kv import STEP, KvFull
from outrider.cloud.selfcheck import open_engine, probe_ids
from outrider.cloud.target import load_target
from outrider.shared.draft import Draft
from outrider.shared.errors import ConfigError
from tests.tiny import END_ID, UNKNOWN_ID, VOCABULARY, make_target

KINDS = ("llama", "qwen2", "mistral", "qwen3")
NEAR = 5e-5
TREE = Draft((UNKNOWN_ID, 40, END_ID, 50, 60, UNKNOWN_ID, 70, 71), (0, 0, 1, 1, 2, 3, 4, 7))


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target of each kind."""
    return make_target(tmp_path_factory.mktemp("target") / request.param, request.param)


@pytest.fixture(scope="module")
def opened(folder: Path) -> Engine:
    """An engine over it."""
    return open_engine(load_target(folder))[0]


@pytest.fixture
def engine(opened: Engine) -> Engine:
    """That engine without any session."""
    for key in tuple(opened.kv.slots):
        opened.evict(key)
    return opened


def prefill(engine: Engine, key: int, ids: tuple[int, ...], chunk: int = 64) -> None:
    """Put ``ids`` into the KV of ``key``."""
    engine.evict(key)
    for start in range(0, len(ids), chunk):
        piece = ids[start : start + chunk]
        engine.forward([Request(key, start, piece)])
        engine.keep(key, start + len(piece))


def rows_of(engine: Engine, request: Request) -> Rows:
    """One request's rows."""
    (rows,) = engine.forward([request])
    assert rows is not None
    return rows


def stock_logits(folder: Path, ids: tuple[int, ...]) -> Tensor:
    """Logits of every position by transformers alone, [len(ids), vocabulary]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    with torch.inference_mode():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def test_every_node_sees_its_own_path(folder: Path, engine: Engine) -> None:
    """Each tree node's logits are those of its root path alone in transformers, id 0 and EOS inside included."""
    context = probe_ids(VOCABULARY, 20)
    prefill(engine, 1, context[:-2])
    rows = rows_of(engine, Request(1, 18, context[-2:], TREE))
    expected = stock_logits(folder, context)[-1]
    assert (rows.logits[0] - expected).abs().max() < NEAR
    for node in range(len(TREE)):
        path = tuple(TREE.ids[above] for above in TREE.path_to(node))
        alone = stock_logits(folder, context + path)[-1]
        assert (rows.logits[node + 1] - alone).abs().max() < NEAR


def test_rows_in_line_are_the_chain_bit_for_bit(engine: Engine) -> None:
    """Rows marked exact equal those of the same path as a chain, wherever their siblings stand in the draft."""
    context = probe_ids(VOCABULARY, 20)
    prefill(engine, 1, context[:-1])
    tree = Draft((9, 8, 7, 6, 5), (0, 0, 1, 1, 3))  # first path: 9, 7, 5
    rows = rows_of(engine, Request(1, 19, context[-1:], tree))
    assert rows.exact == (True, True, False, True, False, True)
    chain = rows_of(engine, Request(1, 19, context[-1:], Draft.chain((9, 7, 5))))
    assert torch.equal(rows.logits[[0, 1, 3, 5]], chain.logits)


def test_what_is_kept_of_a_tree_is_what_a_prefill_makes(engine: Engine) -> None:
    """After keeping any path, the next pass has the bits of a session that was prefilled with those ids."""
    context = probe_ids(VOCABULARY, 20)
    for leaf in range(len(TREE)):
        path = TREE.path_to(leaf)
        prefill(engine, 1, context[:-1])
        rows = rows_of(engine, Request(1, 19, context[-1:], TREE))
        engine.keep_path(1, 20, rows, TREE, path)
        assert engine.length(1) == 20 + len(path)
        text = context + tuple(TREE.ids[node] for node in path)
        prefill(engine, 2, text)
        follow = Draft.chain((3, 4, 5))
        one, other = engine.forward(
            [Request(1, len(text), (33,), follow), Request(2, len(text), (33,), follow)]
        )
        assert one is not None and other is not None
        assert torch.equal(one.logits, other.logits)
        kept, made = engine.states(1, range(4), 0, len(text)), engine.states(2, range(4), 0, len(text))
        assert kept is not None and made is not None and torch.equal(kept, made)


def test_states_kept_from_a_side_branch_are_close_at_once(engine: Engine) -> None:
    """Before the next pass recomputes them, compacted keys and values differ from a prefill's by rounding only."""
    context = probe_ids(VOCABULARY, 20)
    prefill(engine, 1, context[:-1])
    rows = rows_of(engine, Request(1, 19, context[-1:], TREE))
    path = TREE.path_to(7)
    engine.keep_path(1, 20, rows, TREE, path)
    text = context + tuple(TREE.ids[node] for node in path)
    prefill(engine, 2, text)
    kept, made = engine.states(1, (0, 3), 0, len(text)), engine.states(2, (0, 3), 0, len(text))
    assert kept is not None and made is not None and (kept - made).abs().max() < NEAR


def test_sessions_packed_get_what_each_gets_alone(engine: Engine) -> None:
    """Three sessions of different lengths and drafts in one pass: bit for bit as in passes of their own."""
    texts = {key: probe_ids(VOCABULARY, size, key) for key, size in ((1, 7), (2, 30), (3, 261))}
    drafts = {1: TREE, 2: Draft.chain((5, 0, 2)), 3: Draft.chain(())}
    for key, text in texts.items():
        prefill(engine, key, text)
    requests = [Request(key, len(texts[key]), (11, 12), drafts[key]) for key in texts]
    alone = [rows_of(engine, request) for request in requests]
    before = engine.passes
    packed = engine.forward([requests[1], requests[0], requests[2]])
    assert engine.passes == before + 1
    for rows, other in zip((packed[1], packed[0], packed[2]), alone, strict=True):
        assert rows is not None and torch.equal(rows.logits, other.logits)


def test_prefill_rides_along_and_pays_no_head(engine: Engine) -> None:
    """A prefill in the pass of another's verification gives no rows and changes nothing there."""
    text = probe_ids(VOCABULARY, 30)
    prefill(engine, 1, text)
    alone = rows_of(engine, Request(1, 30, (11,), TREE))
    nothing, rows = engine.forward([Request(2, 0, text), Request(1, 30, (11,), TREE)])
    assert nothing is None and rows is not None and torch.equal(rows.logits, alone.logits)
    engine.keep(2, 30)
    assert torch.equal(rows_of(engine, Request(2, 30, (11,), TREE)).logits, alone.logits)


def test_truncation_forgets_and_only_that(engine: Engine) -> None:
    """After truncate the session goes on as one that never had more, side branches to be redone included."""
    context = probe_ids(VOCABULARY, 20)
    prefill(engine, 1, context[:-1])
    rows = rows_of(engine, Request(1, 19, context[-1:], TREE))
    path = TREE.path_to(7)
    engine.keep_path(1, 20, rows, TREE, path)
    for cut in (22, 21, 20, 12):
        engine.truncate(1, cut)
        text = (context + tuple(TREE.ids[node] for node in path))[:cut]
        prefill(engine, 2, text)
        mine, fresh = (rows_of(engine, Request(key, cut, (33, 34), TREE)) for key in (1, 2))
        assert torch.equal(mine.logits, fresh.logits)
    engine.truncate(1, 500)
    assert engine.length(1) == 12
    engine.truncate(99, 0)
    engine.evict(99)


def test_the_budget_is_kept_and_a_refusal_changes_nothing(folder: Path) -> None:
    """Buffers grow by 256 positions; what does not fit raises KvFull with the bytes, and the session goes on."""
    target = load_target(folder)
    step = STEP * target.kv_shape.position_bytes
    engine = Engine(target, kv_bytes=2 * step)
    text = probe_ids(VOCABULARY, 250)
    prefill(engine, 1, text)
    expected = rows_of(engine, Request(1, 250, (5,), Draft.chain((6,))))
    assert engine.kv.bytes_in_use == step
    prefill(engine, 2, text)
    with pytest.raises(KvFull) as full:
        engine.forward([Request(1, 250, (5,), Draft.chain(tuple(range(10))))])
    assert full.value.needed_bytes == step and full.value.free_bytes == 0
    assert torch.equal(rows_of(engine, Request(1, 250, (5,), Draft.chain((6,)))).logits, expected.logits)
    engine.evict(2)
    engine.forward([Request(1, 250, (5,), Draft.chain(tuple(range(10))))])
    assert engine.kv.bytes_in_use == 2 * step
    assert torch.equal(rows_of(engine, Request(1, 250, (5,), Draft.chain((6,)))).logits, expected.logits)


def test_states_are_only_given_when_held(engine: Engine) -> None:
    """Keys and values of committed positions, by layer; None beyond them or for unknown sessions."""
    prefill(engine, 1, probe_ids(VOCABULARY, 10))
    states = engine.states(1, (0, 2), 3, 9)
    assert states is not None and states.shape == (2, 2, 2, 6, 16)
    assert engine.states(1, (0,), 3, 11) is None and engine.states(7, (0,), 0, 1) is None


def test_hidden_rows_are_what_the_head_reads(engine: Engine) -> None:
    """Asked for hidden states, a pass returns one per row, and the head makes the row's logits of it."""
    prefill(engine, 1, probe_ids(VOCABULARY, 10))
    (rows,) = engine.forward([Request(1, 10, (5,), TREE)], hidden=True)
    assert rows is not None and rows.hidden is not None
    head = engine.target.model.get_output_embeddings()  # type: ignore[operator]
    with torch.inference_mode():
        assert (head(rows.hidden) - rows.logits).abs().max() < NEAR


def test_depth_first_lays_the_best_path_in_one_line() -> None:
    """First children follow their parents at once; every node appears once."""
    assert depth_first(TREE) == (0, 2, 5, 3, 6, 7, 1, 4)
    assert depth_first(Draft.chain((1, 2))) == (0, 1) and depth_first(Draft((), ())) == ()


def test_attention_refuses_what_it_does_not_compute(engine: Engine) -> None:
    """A window, a soft cap or sinks reach the attention function as arguments, and are refused by name."""
    query = torch.zeros(1, 4, 8, 16)
    for name in ("sliding_window", "softcap", "s_aux"):
        with pytest.raises(UnsupportedAttention, match=name):
            attend(torch.nn.Module(), query, query, query, None, scaling=1.0, outrider=Step(()), **{name: 3})


def test_a_model_that_computes_otherwise_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start-up check compares with transformers' own attention and raises ConfigError on another result."""
    monkeypatch.setattr("outrider.cloud.attention.scaled_dot_product_attention", lambda q, k, v, **_: q)
    with pytest.raises(ConfigError, match="differ"):
        open_engine(load_target(folder))
