"""Every combination of MoA's settings is one drafter: trained, served, stored, exported and drafting alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.cloud.export.bundle import export_bundle
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.target import TargetWeights, frozen_target
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.device_half import DeviceHalf
from outrider.cloud.moa.drafter import MoaDrafter, Text
from outrider.cloud.moa.server_half import ServerHalf
from outrider.cloud.moa.weights import load_drafter, save_drafter
from outrider.cloud.train.blocks import regular_text
from tests.tiny import VOCABULARY, make_target
from tests.tiny_drafter import (
    GRID,
    Device,
    GraphHalf,
    Half,
    random_drafter,
    random_final,
    random_kv,
    rows_of,
    tiny_settings,
    trained_and_merged,
)

LENGTH, PROMPT = 15, 4


def random_ids() -> torch.Tensor:
    """LENGTH ids, the same in every test."""
    return torch.randint(64, (LENGTH,), generator=torch.Generator().manual_seed(9))


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal to 1e-4 of their spread, at least 1."""
    torch.testing.assert_close(found, wanted, atol=1e-4 * max(1.0, float(wanted.std())), rtol=1e-4)


def with_final(text: Text, final: torch.Tensor | None) -> Text:
    """The text with the target's final states."""
    return Text(text.ids, text.kv, text.first_query, text.rows, final)


@pytest.mark.parametrize("name", GRID)
def test_blocks_are_drafting_from_every_start(name: str) -> None:
    """The parallel pass gives at every depth after every last row what oracle and graph compute step by step."""
    settings = tiny_settings(**GRID[name])
    drafter, frozen, merged = trained_and_merged(settings)
    halves: tuple[Half, ...] = (DeviceHalf(drafter, merged), GraphHalf(drafter, merged))
    kv, ids = random_kv(settings, LENGTH), random_ids()
    final = random_final(settings, LENGTH)
    rows = rows_of(drafter, kv, final=final)
    for depth, offsets in ((1, 1), (4, 4), (LENGTH, 1)):
        for offset in range(offsets):
            text = with_final(regular_text(ids, kv, PROMPT, depth, offset), final)
            with torch.no_grad():
                parallel = frozen.head(drafter([text], frozen).final)
            for begin in sorted(set(text.rows.tolist())):
                block = [i for i in range(PROMPT, LENGTH) if text.rows[i - PROMPT] == begin]
                seen = parallel[block[0] - PROMPT : block[-1] - PROMPT + 1]
                for half in halves:
                    # The rows of some are there when the prompt is read, those of others come just before the draft.
                    device = Device(half, rows, 0 if begin % 2 else begin)
                    device.feed(ids[:begin])
                    device.num_rows = begin
                    drafted = torch.cat([device.feed(ids[i : i + 1]) for i in block])
                    close(drafted, seen)


@pytest.mark.parametrize("name", GRID)
def test_withheld_rows_are_a_device_without_rows(name: str) -> None:
    """A text without any true rows is finite and equals a device that never got one."""
    settings = tiny_settings(**GRID[name])
    drafter, frozen, merged = trained_and_merged(settings)
    kv, ids = random_kv(settings, LENGTH), random_ids()
    final = random_final(settings, LENGTH)
    text = Text(ids, kv, 0, torch.zeros(LENGTH, dtype=torch.long), final)
    with torch.no_grad():
        parallel = frozen.head(drafter([text], frozen).final)
    assert torch.isfinite(parallel).all()
    for half in (DeviceHalf(drafter, merged), GraphHalf(drafter, merged)):
        device = Device(half, rows_of(drafter, kv, final=final), 0)
        fed = torch.cat((device.feed(ids[:6]), device.feed(ids[6:])))
        close(fed, parallel)


@pytest.mark.parametrize("name", GRID)
def test_rows_are_incremental(name: str) -> None:
    """Rows of new tokens alone are those of the whole text, and as wide as the planes say."""
    settings = tiny_settings(**GRID[name])
    drafter, _ = random_drafter(settings)
    kv, final = random_kv(settings, LENGTH), random_final(settings, LENGTH)
    whole = rows_of(drafter, kv, final=final)
    parts = [
        rows_of(drafter, kv[at : at + 4], at, None if final is None else final[at : at + 4])
        for at in range(0, LENGTH, 4)
    ]
    planes = ServerHalf(settings, drafter.memory).planes
    assert [plane.width for plane in planes] == [rows.shape[1] for rows in whole]
    for plane, rows in enumerate(whole):
        torch.testing.assert_close(rows, torch.cat([part[plane] for part in parts]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", GRID)
def test_everything_that_is_trained_learns(name: str) -> None:
    """A loss on the output reaches every parameter, and nothing frozen."""
    settings = tiny_settings(**GRID[name])
    drafter, frozen, _ = trained_and_merged(settings)
    kv, ids = random_kv(settings, LENGTH), random_ids()
    text = with_final(regular_text(ids, kv, PROMPT, 3, 1), random_final(settings, LENGTH))
    drafter.train().begin_step(0)
    drafter([text], frozen).final.square().sum().backward()
    still = [name for name, p in drafter.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert still == []
    own = {id(parameter) for parameter in drafter.parameters()}
    assert [n for n, p in frozen.named_parameters() if p.requires_grad and id(p) not in own] == []


@pytest.mark.parametrize("name", GRID)
def test_weights_survive_the_folder(name: str, tmp_path: Path) -> None:
    """Saved and loaded drafters have equal settings, rows and top layers; int8 storage is stable."""
    settings = tiny_settings(**GRID[name])
    drafter, frozen = random_drafter(settings)
    save_drafter(drafter, settings, tmp_path / "float32", torch.float32)
    again = load_drafter(tmp_path / "float32")
    assert again.settings == settings
    for mine, theirs in zip(drafter.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    save_drafter(drafter, settings, tmp_path / "int8", torch.bfloat16, int8=True)
    stored = load_drafter(tmp_path / "int8")
    save_drafter(stored, settings, tmp_path / "again", torch.bfloat16, int8=True)
    for mine, theirs in zip(stored.parameters(), load_drafter(tmp_path / "again").parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random target."""
    return make_target(tmp_path_factory.mktemp("grid") / "target")


OPTIONS: list[dict[str, Any]] = [
    {"num_tli_layers": 0, "memory": "weights"},
    {"num_tli_layers": 1, "tli_full": True, "later_sa_layers": (1,)},
    {"num_tli_layers": 0, "later_sa_layers": (1, 1), "ca_kv_heads": 1},
    {"num_tli_layers": 1, "feed_final": True, "memory": "none", "num_sa_layers": 1},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_fresh_drafter_goes_to_a_bundle(options: dict[str, Any], target: Path, tmp_path: Path) -> None:
    """From a target's config to a bundle that drafts, with settings by name; the fingerprint is the server's."""
    from transformers import AutoConfig

    from outrider.client.bundle import load_bundle
    from outrider.client.drafter import Budget

    kind = find_kind("moa")
    config = AutoConfig.from_pretrained(str(target), local_files_only=True)
    settings = kind.settings_for(config, **options, draft_vocabulary=tuple(range(VOCABULARY)))
    assert all(getattr(settings, name) == value for name, value in options.items())
    drafter = kind.build(settings)
    kind.initialise(drafter, TargetWeights(target), 1)
    save_drafter(drafter, settings, tmp_path / "weights", torch.float32)
    for size in (None, VOCABULARY - 3):
        export_bundle(tmp_path / "weights", target, tmp_path / "b.onnx", int8=False, vocabulary=size)
        bundle = load_bundle(tmp_path / "b.onnx")
        assert len(bundle.layout.vocabulary) == (size or VOCABULARY)
        made = bundle.drafter()
        made.begin(bundle.tokenizer.encode("the end of the"))
        for plane, width in enumerate(bundle.layout.row_widths):
            made.add_rows(plane, 0, torch.zeros(4, width).numpy())
        assert len(made.propose(Budget(9, 4, tree=True)).draft) == 9


def test_cross_attention_starts_as_the_targets_own(target: Path) -> None:
    """A fresh block without memory reads true K/V with the target's own layer; top layers start as the target's."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(target), local_files_only=True)
    kind = find_kind("moa")
    changes = {"memory": "none", "tli_full": True, "num_tli_layers": 1, "later_sa_layers": (1,)}
    changes |= {"direct_layer": 1, "later_direct_layers": (2,)}
    settings = kind.settings_for(config, **changes, draft_vocabulary=(0, 1, 2))
    assert isinstance(settings, MoaSettings)
    drafter, weights = MoaDrafter(settings), TargetWeights(target)
    kind.initialise(drafter, weights, 1)
    assert settings.direct_layers == (1, 2) and settings.sources == (0, 1, 2)
    kv = random_kv(settings, LENGTH)
    for plane, layer in enumerate(settings.direct_layers):
        true = kv[:, settings.needed_layers.index(layer)].flatten(1)
        torch.testing.assert_close(rows_of(drafter, kv)[plane], true, atol=1e-5, rtol=1e-5)
    plain = frozen_target(settings, weights, (0, 1, 2))
    merged = drafter.merge(frozen_target(settings, weights, (0, 1, 2)))
    for mine, theirs in zip(plain.parameters(), merged.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    "change",
    [
        {"memory": "weights"},
        {"feed_final": True},
        {"ca_kv_heads": 1},
        {"lsa_layers": (0, 2)},
        {"direct_layer": 2},
        {"later_sa_layers": (1,), "later_direct_layers": (3,)},
        {"num_tli_layers": 1},
    ],
)
def test_the_fingerprint_covers_what_rows_are_made_of(change: dict[str, Any]) -> None:
    """Any setting that changes rows changes the state's fingerprint, others leave it alone."""
    base = tiny_settings()

    def print_of(**changes: Any) -> str:
        settings = tiny_settings(**changes)
        memory = MoaDrafter(settings).memory
        with torch.no_grad():
            for tensor in memory.state_dict().values():
                tensor.zero_()
        return ServerHalf(settings, memory).fingerprint()

    assert print_of(**change) != print_of()
    assert print_of(num_sa_layers=base.num_sa_layers + 1, tli_full=True, kappa=2.0) == print_of()


def test_a_staircase_hides_what_lies_before_the_block() -> None:
    """Under the curriculum, tokens before a query's block change nothing but through rows."""
    settings = tiny_settings(0)
    drafter, frozen = random_drafter(settings)
    kv, ids = random_kv(settings, LENGTH), random_ids()
    plain = regular_text(ids, kv, PROMPT, 4, 0)
    other = ids.clone()
    other[:12] = (other[:12] + 1) % 64
    outputs = []
    for tokens, staircase in ((ids, True), (other, True), (ids, False), (other, False)):
        text = Text(tokens, kv, plain.first_query, plain.rows, staircase=staircase)
        with torch.no_grad():
            outputs.append(drafter([text], frozen).final[12 - PROMPT :])
    torch.testing.assert_close(outputs[0], outputs[1])
    assert not torch.allclose(outputs[2], outputs[3]) and not torch.allclose(outputs[0], outputs[2])
