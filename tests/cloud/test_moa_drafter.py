"""The parallel training pass is drafting, the server half is incremental, and rows hold what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.cloud.export.builder import quantise_rows
from outrider.cloud.moa.config import MoaSettings
from outrider.cloud.moa.device_half import DeviceHalf
from outrider.cloud.moa.drafter import Text
from outrider.cloud.moa.layers import rotary_angles, rotate
from outrider.cloud.moa.server_half import ServerHalf
from outrider.cloud.moa.weights import load_drafter, save_drafter
from outrider.cloud.train.blocks import BlockMix, draw_rows, regular_text
from tests.tiny_drafter import Device, random_drafter, random_kv, rows_of, tiny_settings

LENGTH, PROMPT = 15, 4


@pytest.mark.parametrize(("num_tli", "direct"), [(0, True), (1, False), (2, True)])
def test_blocks_are_drafting_from_every_start(num_tli: int, direct: bool) -> None:
    """One parallel pass gives at every depth after every last row what the device computes step by step."""
    drafter, frozen = random_drafter(tiny_settings(num_tli, direct))
    kv, ids = random_kv(drafter.settings, LENGTH), torch.randint(64, (LENGTH,))
    rows = rows_of(drafter, kv)
    for depth in (1, 3, 5, LENGTH):
        for offset in range(min(depth, LENGTH - PROMPT)):
            text = regular_text(ids, kv, PROMPT, depth, offset)
            with torch.no_grad():
                parallel = frozen.head(drafter([text], frozen).final)
            for begin in sorted(set(text.rows.tolist())):
                device = Device(DeviceHalf(drafter, frozen), rows, begin)
                device.feed(ids[:begin])
                block = [i for i in range(PROMPT, LENGTH) if text.rows[i - PROMPT] == begin]
                drafted = torch.cat([device.feed(ids[i : i + 1]) for i in block])
                seen = parallel[block[0] - PROMPT : block[-1] - PROMPT + 1]
                torch.testing.assert_close(seen, drafted, atol=1e-4, rtol=1e-4)


def test_texts_of_one_batch_do_not_touch_each_other() -> None:
    """A batch of ragged texts gives what each text gives alone."""
    drafter, frozen = random_drafter(tiny_settings())
    texts = [
        regular_text(torch.randint(64, (n,)), random_kv(drafter.settings, n, n), 3, 4, 1) for n in (7, 12, 5)
    ]
    with torch.no_grad():
        together = drafter(texts, frozen).final
        alone = torch.cat([drafter([text], frozen).final for text in texts])
    torch.testing.assert_close(together, alone)


def test_withheld_rows_are_a_device_without_rows() -> None:
    """A text without any true rows is finite and equals a device that never got one."""
    drafter, frozen = random_drafter(tiny_settings())
    kv, ids = random_kv(drafter.settings, LENGTH), torch.randint(64, (LENGTH,))
    text = Text(ids, kv, 0, torch.zeros(LENGTH, dtype=torch.long))
    with torch.no_grad():
        parallel = frozen.head(drafter([text], frozen).final)
    device = Device(DeviceHalf(drafter, frozen), rows_of(drafter, kv), 0)
    torch.testing.assert_close(
        parallel, torch.cat((device.feed(ids[:6]), device.feed(ids[6:]))), atol=1e-4, rtol=1e-4
    )
    assert torch.isfinite(parallel).all()


def test_rows_are_incremental() -> None:
    """Rows of new tokens alone are those of the whole text."""
    drafter, _ = random_drafter(tiny_settings())
    kv = random_kv(drafter.settings, LENGTH)
    whole = rows_of(drafter, kv)
    parts = [rows_of(drafter, kv[start : start + 4], start) for start in range(0, LENGTH, 4)]
    for plane, rows in enumerate(whole):
        torch.testing.assert_close(rows, torch.cat([part[plane] for part in parts]))


def test_direct_path_starts_as_the_targets_own_kv() -> None:
    """With an identity direct path and a silent projection, plane 0 is the cached K/V of that layer."""
    drafter, _ = random_drafter(tiny_settings())
    s, memory = drafter.settings, drafter.memory
    (projection,) = memory.per_block()
    with torch.no_grad():
        torch.nn.init.eye_(projection.direct_k.weight)
        torch.nn.init.eye_(projection.direct_v.weight)
        projection.k_proj.weight.zero_()
        projection.v_proj.weight.zero_()
    kv = random_kv(s, LENGTH)
    rows = rows_of(drafter, kv)
    torch.testing.assert_close(rows[0], kv[:, s.needed_layers.index(s.direct_layer)].flatten(1))
    for plane, layer in enumerate(s.tli_layers, start=1):
        torch.testing.assert_close(rows[plane], kv[:, s.needed_layers.index(layer)].flatten(1))


def test_turning_back_undoes_the_rotation() -> None:
    """LSA reads the same whatever the absolute position of the text."""
    drafter, _ = random_drafter(tiny_settings())
    s = drafter.settings
    plain = torch.randn(5, len(s.lsa_layers), 2, s.kv_width)
    seen = []
    for start in (0, 100):
        positions = torch.arange(start, start + 5)
        angles = rotary_angles(positions, s.head_dim, s.rope_theta)
        heads = plain[:, :, 0].unflatten(-1, (s.num_kv_heads, s.head_dim)).flatten(1, 2)
        keys = rotate(heads, *angles).view_as(plain[:, :, 0])
        seen.append(drafter.memory.plain(torch.stack((keys, plain[:, :, 1]), dim=2), positions))
    torch.testing.assert_close(seen[0], seen[1], atol=1e-5, rtol=1e-5)


def test_weights_survive_the_folder(tmp_path: Path) -> None:
    """Saved and loaded drafters make the same rows, and the settings come back equal."""
    drafter, _ = random_drafter(tiny_settings())
    save_drafter(drafter, drafter.settings, tmp_path, torch.float32)
    again = load_drafter(tmp_path)
    assert again.settings == drafter.settings
    kv = random_kv(drafter.settings, 4)
    for mine, theirs in zip(rows_of(drafter, kv), rows_of(again, kv), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_int8_storage_is_what_the_bundle_holds(tmp_path: Path) -> None:
    """Weights stored as int8 quantise to the same values and scales again, and are within half a step."""
    drafter, _ = random_drafter(tiny_settings())
    save_drafter(drafter, drafter.settings, tmp_path, torch.float32, int8=True)
    again = load_drafter(tmp_path)
    for name in ("blocks.0.sa.0.q_proj.weight", "blocks.0.ca.layer.down_proj.weight"):
        before, after = (module.state_dict()[name].numpy() for module in (drafter, again))
        values, scale = quantise_rows(before)
        stored, stored_scale = quantise_rows(after)
        np.testing.assert_array_equal(values, stored)
        np.testing.assert_allclose(scale, stored_scale, rtol=1e-6)
        assert (abs(before - after) <= 0.501 * scale[:, None]).all()
    kv = random_kv(drafter.settings, 4)
    torch.testing.assert_close(rows_of(drafter, kv)[0], rows_of(again, kv)[0])


def test_server_half_refuses_another_target(tmp_path: Path) -> None:
    """A weights folder names the shapes it was trained for."""
    drafter, _ = random_drafter(tiny_settings())
    save_drafter(drafter, drafter.settings, tmp_path, torch.float32)
    shapes = {"num_hidden_layers": 6, "hidden_size": 32, "num_key_value_heads": 2}
    assert (
        ServerHalf.load(tmp_path, type("Shapes", (), shapes)).needed_layers == drafter.settings.needed_layers
    )
    with pytest.raises(ValueError, match="K/V heads"):
        ServerHalf.load(tmp_path, type("Shapes", (), {**shapes, "hidden_size": 64}))


@pytest.mark.parametrize(
    "change",
    [
        {"lsa_layers": (2, 1)},
        {"lsa_layers": (9,)},
        {"lsa_heads": 5},
        {"direct_layer": 6},
        {"num_sa_layers": 0},
    ],
)
def test_impossible_settings_are_named(change: dict[str, object]) -> None:
    """Settings that cannot be are refused with the field's name."""
    values = {**{f: getattr(tiny_settings(), f) for f in MoaSettings.__dataclass_fields__}, **change}
    with pytest.raises(ValueError, match=next(iter(change))):
        MoaSettings(**values)


def test_drawn_cuts_keep_their_promises() -> None:
    """Block begins never lie ahead of their queries, never move back, and every kind of cut occurs."""
    generator = torch.Generator().manual_seed(3)
    kinds = set()
    for _ in range(200):
        first, rows = draw_rows(10, 150, BlockMix(), generator)
        positions = torch.arange(first, 150)
        assert (rows <= positions).all()
        assert (rows.diff() >= 0).all()
        begins = rows.unique()
        assert first == 0 or begins[0] == first
        longest = int(rows.bincount().max())
        kinds.add(
            "withheld" if first == 0 else "whole" if len(begins) == 1 else "long" if longest > 12 else "short"
        )
    assert kinds == {"withheld", "whole", "long", "short"}
