"""Known mistakes of published code for this architecture, each with a test that would catch it here.

Names say which: B1 target layers without true K/V at inference, B2 chains that do not run, B3 padding taken for a
token, B6 rows of an attention mask that hide everything, B8 work that grows with the whole text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM

from outrider.client.drafter import Budget
from outrider.client.drafters.moa import GraphDrafter
from outrider.cloud.drafters import StateRows
from outrider.cloud.engine import Engine
from outrider.cloud.events import MakeRows, Prefill
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.target import TargetWeights, frozen_target
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.device_half import DeviceHalf, DeviceStep
from outrider.cloud.moa.drafter import FrozenTarget, MoaDrafter, Text
from outrider.cloud.moa.server_half import ServerHalf, row_planes
from outrider.cloud.rules import Nodes
from outrider.cloud.rules.greedy import Greedy
from outrider.cloud.target import load_target
from outrider.cloud.train.blocks import regular_text
from outrider.cloud.worker import Worker
from outrider.shared.codec import decode_rows
from outrider.shared.frames import RowEncoding, RowPlane
from outrider.shared.sampling import Sampling
from tests.tiny import VOCABULARY, make_target
from tests.tiny_drafter import (
    GRID,
    Device,
    GraphHalf,
    Half,
    random_final,
    random_kv,
    random_step,
    rows_of,
    tiny_settings,
    trained_and_merged,
)
from tests.tiny_kinds import graph_of

LENGTH = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target of four layers."""
    return make_target(tmp_path_factory.mktemp("traps") / "target")


# ------------------------------------------------------------------------------------- B1: target layer inference


@dataclass(frozen=True)
class Truth:
    """What the target computed of one text."""

    stream: Tensor
    """[T, hidden], entering the layers that run on the device."""
    kv: Tensor
    """[T, needed, 2, kv_width]."""
    logits: Tensor
    """[T, vocabulary]."""


@torch.no_grad()
def truth(folder: Path, settings: MoaSettings, ids: list[int]) -> Truth:
    """One pass of the real model, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    out = model(torch.tensor([ids]), output_hidden_states=True, use_cache=True)
    layers = [out.past_key_values.layers[layer] for layer in settings.needed_layers]
    kv = torch.stack(
        [
            torch.stack([part[0].transpose(0, 1).flatten(1) for part in (layer.keys, layer.values)], dim=1)
            for layer in layers
        ],
        dim=1,
    )
    first = settings.num_target_layers - settings.num_tli_layers
    return Truth(out.hidden_states[first][0], kv, out.logits[0])


def transparent(folder: Path, num_tli: int, streams: Tensor) -> tuple[MoaDrafter, FrozenTarget]:
    """A drafter whose blocks do nothing, and whose "token" i enters the target layers as streams[i]."""
    kind = find_kind("moa")
    target = load_target(folder)
    changes = {"num_tli_layers": num_tli, "tli_rank": 0, "num_sa_layers": 1}
    settings = kind.settings_for(target.model.config, **changes, draft_vocabulary=tuple(range(VOCABULARY)))
    assert isinstance(settings, MoaSettings)
    drafter = MoaDrafter(settings)
    weights = TargetWeights(folder)
    kind.initialise(drafter, weights, 1)
    frozen = frozen_target(settings, weights, settings.draft_vocabulary)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()
        frozen.embedding.weight[: len(streams)] = streams
    return drafter, frozen


def settings_of(folder: Path, num_tli: int) -> MoaSettings:
    """The settings `transparent` uses."""
    return transparent(folder, num_tli, torch.zeros(0, 64))[0].settings


@pytest.mark.parametrize("num_tli", [1, 2, 3])
def test_trap_b1_target_layers_have_the_true_kv_in_a_chain(num_tli: int, folder: Path) -> None:
    """Fed the true stream, the layers on the device give the target's own logits at every position after every cut."""
    ids = [(31 * i + 7) % VOCABULARY for i in range(LENGTH)]
    true = truth(folder, settings_of(folder, num_tli), ids)
    drafter, frozen = transparent(folder, num_tli, true.stream)
    halves: tuple[Half, ...] = (DeviceHalf(drafter, frozen), GraphHalf(drafter, frozen))
    tokens, rows = torch.arange(LENGTH), rows_of(drafter, true.kv)
    for begin in (1, 5, LENGTH - 1):
        text = regular_text(tokens, true.kv, begin, 4, 0)
        with torch.no_grad():
            parallel = frozen.head(drafter([text], frozen).final)
        torch.testing.assert_close(parallel, true.logits[begin:], atol=1e-3, rtol=1e-3)
        for half in halves:
            device = Device(half, rows, 0)
            device.feed(tokens[:begin])
            device.num_rows = begin
            drafted = torch.cat([device.feed(tokens[i : i + 1]) for i in range(begin, LENGTH)])
            torch.testing.assert_close(drafted, true.logits[begin:], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("num_tli", [1, 2, 3])
def test_trap_b1_target_layers_have_the_true_kv_in_a_tree(num_tli: int, folder: Path) -> None:
    """Two branches in one step, each with its own past: the target's logits of each branch's text."""
    base = [(31 * i + 7) % VOCABULARY for i in range(10)]
    branches = ([11, 12, 13], [200, 12, 99])
    settings = settings_of(folder, num_tli)
    trues = [truth(folder, settings, base + branch) for branch in branches]
    drafter, frozen = transparent(folder, num_tli, torch.cat((trues[0].stream, trues[1].stream[len(base) :])))
    rows = rows_of(drafter, trues[0].kv[: len(base)])
    own = torch.zeros(6, 6, dtype=torch.bool)
    own[:3, :3] = own[3:, 3:] = torch.ones(3, 3, dtype=torch.bool).tril()
    past = torch.zeros(0, settings.kv_width)
    step = DeviceStep(
        ids=torch.arange(len(base), len(base) + 6),
        positions=torch.tensor([10, 11, 12, 10, 11, 12]),
        own_mask=own,
        tli_mask=own,
        own_k=[past] * settings.own_layers,
        own_v=[past] * settings.own_layers,
        rows=rows,
        row_valid=torch.ones(len(base), dtype=torch.bool),
        select=torch.arange(6),
    )
    wanted = torch.cat([true.logits[len(base) :] for true in trues])
    for half in (DeviceHalf(drafter, frozen), GraphHalf(drafter, frozen)):
        torch.testing.assert_close(half.step(step).logits, wanted, atol=1e-3, rtol=1e-3)


# ------------------------------------------------------------------------------------------------- B2: chains run


def graph_drafter(settings: MoaSettings, kappa: float = 1.0) -> GraphDrafter:
    """The device's drafter on a random float32 graph."""
    drafter, _, merged = trained_and_merged(settings)
    return GraphDrafter(graph_of(drafter, merged, kappa=kappa, max_position=256))


@pytest.mark.parametrize("name", GRID)
def test_trap_b2_a_chain_is_the_drafters_own_greedy_text(name: str) -> None:
    """Round after round, a chain equals what the torch oracle writes token by token."""
    settings = tiny_settings(**GRID[name])
    drafter, _, merged = trained_and_merged(settings)
    final = random_final(settings, LENGTH)
    rows = rows_of(drafter, random_kv(settings, LENGTH), final=final)
    vocabulary = settings.draft_vocabulary
    device = graph_drafter(settings)
    device.begin([3, 14, 15, 9])
    for _ in range(2):
        base = device.length
        for plane, values in enumerate(rows):
            device.add_rows(plane, 0, values[: base - 1].numpy())
        oracle = Device(DeviceHalf(drafter, merged), rows, base - 1)
        best = int(oracle.feed(torch.tensor(device.ids))[-1].argmax())
        written = [vocabulary[best]]
        while len(written) < 5:
            best = int(oracle.feed(torch.tensor(written[-1:]))[-1].argmax())
            written.append(vocabulary[best])
        draft = device.propose(Budget(5, 5)).draft
        assert draft.is_chain and list(draft.ids) == written
        device.accept([*written[:3], 21])


# ----------------------------------------------------------------------------------------- B3: no id means padding

SMALL, END = 10, 2


def logits_after(path: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """A target of ten tokens that favours 0 and the end token: logits are a function of the whole path."""
    logits = np.random.default_rng((seed, *path)).normal(0, 1, SMALL)
    logits[[0, END]] += 0.7
    return logits.astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_trap_b3_token_zero_and_the_end_token_inside_a_tree(seed: int) -> None:
    """Trees with ids 0 and end are judged as brute force judges them, and leave the device as a fresh one."""
    settings = tiny_settings(2, vocab_size=SMALL, draft_vocabulary=tuple(range(SMALL)))
    device = graph_drafter(settings, kappa=20.0)
    rng, rule = np.random.default_rng(seed), Greedy()
    device.begin([5, 0, 3])
    seen = {"zero": 0, "end": 0, "zero after a leaf": 0, "accepted": 0}
    for turn in range(12):
        device.rows.cut(0)
        for plane, width in enumerate(device.layout.row_widths):
            device.add_rows(plane, 0, rng.normal(0, 1, (device.length - 1, width)).astype(np.float32))
        draft = device.propose(Budget(12, 4, tree=True)).draft
        prefix = tuple(device.ids)
        paths = [(), *(tuple(draft.ids[n] for n in draft.path_to(node)) for node in range(len(draft)))]
        logits = np.stack([logits_after(prefix + path, seed) for path in paths])
        decision = rule(Nodes(draft, logits, Sampling(), len(prefix)))
        accepted = tuple(draft.ids[node] for node in decision.path)
        assert (accepted, decision.next_id) == brute_force(prefix, set(paths), seed)
        seen["zero"] += 0 in draft.ids
        seen["end"] += END in draft.ids
        seen["accepted"] += len(accepted)
        seen["zero after a leaf"] += decision.next_id == 0
        device.accept([*accepted, decision.next_id])
        if turn % 4 == 0:
            other = GraphDrafter(device.graph)
            other.begin(device.ids)
            for plane, width in enumerate(device.layout.row_widths):
                rows = rng.normal(0, 1, (device.length - 1, width)).astype(np.float32)
                for each in (device, other):
                    each.add_rows(plane, 0, rows)
            trees = [each.propose(Budget(8, 4, tree=True)).draft for each in (device, other)]
            assert trees[0] == trees[1]
    assert min(seen.values()) > 0, seen


def brute_force(
    prefix: tuple[int, ...], paths: set[tuple[int, ...]], seed: int
) -> tuple[tuple[int, ...], int]:
    """The target's own text as far as the draft has it, and the token behind."""
    path: tuple[int, ...] = ()
    while True:
        token = int(logits_after(prefix + path, seed).argmax())
        if (*path, token) not in paths:
            return path, token
        path = (*path, token)


# ------------------------------------------------------------------------------------- B6: nothing is fully masked


@pytest.mark.parametrize("name", GRID)
def test_trap_b6_the_first_block_without_any_row_sees_no_future(name: str) -> None:
    """From position 0 on, with no row at all: finite, and what comes later changes nothing before it."""
    settings = tiny_settings(**GRID[name])
    drafter, frozen, _ = trained_and_merged(settings)
    ids = torch.arange(LENGTH) * 3 % 64
    kv, final = random_kv(settings, LENGTH), random_final(settings, LENGTH)
    changed = ids.clone()
    changed[5:] = (changed[5:] + 7) % 64
    outputs = []
    for tokens in (ids, changed):
        with torch.no_grad():
            text = Text(tokens, kv, 0, torch.zeros(LENGTH, dtype=torch.long), final)
            outputs.append(frozen.head(drafter([text], frozen).final))
    assert torch.isfinite(outputs[0]).all()
    torch.testing.assert_close(outputs[0][:5], outputs[1][:5])
    assert not torch.allclose(outputs[0][5:], outputs[1][5:])


@pytest.mark.parametrize("name", GRID)
def test_trap_b6_rows_that_have_not_come_are_no_rows(name: str) -> None:
    """A step whose rows are all invalid equals the step without rows, whatever stands in them; both are finite."""
    settings = tiny_settings(**GRID[name])
    drafter, _, merged = trained_and_merged(settings)
    planes = [plane.width for plane in row_planes(settings)]
    empty = random_step(settings, planes, 1, 0, 0, seed=4)
    hidden = random_step(settings, planes, 1, 0, 9, seed=4, missing=1.0)
    for half in (
        DeviceHalf(drafter, merged),
        GraphHalf(drafter, merged),
        GraphHalf(drafter, merged, int8=True),
    ):
        without = half.step(empty).logits
        masked = DeviceStep(
            ids=empty.ids, positions=empty.positions, own_mask=empty.own_mask, tli_mask=empty.tli_mask,
            own_k=empty.own_k, own_v=empty.own_v, rows=[100 * rows for rows in hidden.rows],
            row_valid=hidden.row_valid, select=empty.select,
        )  # fmt: skip
        assert torch.isfinite(without).all()
        torch.testing.assert_close(half.step(masked).logits, without, atol=1e-4, rtol=1e-4)


# --------------------------------------------------------------------------------- B8: rows cost what is new, only


class Recording:
    """An engine's states, and what was asked of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.asked: list[tuple[tuple[int, ...], int, int]] = []
        self.bytes = 0

    def states(self, key: int, layers: tuple[int, ...], start: int, stop: int) -> Tensor | None:
        """As the engine's; counts the bytes handed out."""
        self.asked.append((tuple(layers), start, stop))
        found = self._engine.states(key, layers, start, stop)
        self.bytes += 0 if found is None else found.untyped_storage().nbytes()
        return found

    def final(self, key: int, start: int, stop: int) -> Tensor | None:
        """Not wanted here."""
        raise AssertionError("these rows need no final states")


def test_trap_b8_rows_read_the_new_slice_of_the_kv_and_nothing_else(folder: Path) -> None:
    """After a long text, rows of three tokens copy three tokens of the layers needed, and equal those of one pass."""
    engine = Engine(load_target(folder))
    kind = find_kind("moa")
    settings = kind.settings_for(engine.target.model.config, num_tli_layers=1, lsa_layers=(0, 2))
    assert isinstance(settings, MoaSettings)
    drafter = MoaDrafter(settings)
    kind.initialise(drafter, TargetWeights(folder), 1)
    half = ServerHalf(settings, drafter.memory)
    planes = tuple(RowPlane(p.plane, p.width, RowEncoding.F32, p.content, p.parts) for p in half.planes)
    ids = tuple((17 * i + 5) % 280 for i in range(300))
    Worker(engine).run((Prefill(1, 0, ids),))
    recording: Any = Recording(engine)
    maker = StateRows(recording, half, planes)
    whole = maker.make(MakeRows(1, 1, 0, 300, False, RowEncoding.F32))
    recording.bytes, recording.asked = 0, []
    part = maker.make(MakeRows(1, 1, 297, 300, False, RowEncoding.F32))
    assert recording.asked == [(settings.needed_layers, 297, 300)]
    assert recording.bytes == 3 * len(settings.needed_layers) * 2 * settings.kv_width * 4
    for plane, one, many in zip(planes, part, whole, strict=True):
        rows = decode_rows(many, 300, plane)[297:]
        np.testing.assert_allclose(decode_rows(one, 3, plane), rows, atol=1e-5, rtol=1e-5)
