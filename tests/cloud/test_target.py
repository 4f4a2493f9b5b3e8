"""Laws of loading: what is served, what is refused, and what a fingerprint stands for."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.cloud import fetch
from outrider.cloud.fingerprint import CACHE_NAME, law_fingerprint, weights_fingerprint
from outrider.cloud.target import load_target
from outrider.shared.errors import ConfigError
from tests.tiny import END_ID, VOCABULARY, make_target


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    return make_target(tmp_path_factory.mktemp("target") / "llama")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(made, tmp_path / "llama"))


def edit(folder: Path, **settings: Any) -> None:
    """Change settings of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_a_folder_loads_with_its_own_facts(folder: Path) -> None:
    """Name, vocabulary, context, stop ids and KV cost come from the folder; several end tokens are all stop ids."""
    target = load_target(folder, "bfloat16")
    assert (target.name, target.vocabulary, target.max_context) == ("llama", VOCABULARY, 2048)
    assert target.stop_ids == (END_ID,) and target.dtype == "bfloat16"
    assert target.kv_shape.position_bytes == 4 * 2 * 2 * 16 * 2
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2, 7]}))
    assert load_target(folder).stop_ids == (2, 7)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sliding_window": 128}, "sliding window"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"attn_logit_softcapping": 50.0}, "caps"),
        ({"auto_map": {"AutoModelForCausalLM": "model.Model"}}, "code"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    folder: Path, settings: dict[str, Any], named: str
) -> None:
    """Windows, other layers, rotary angles that depend on company, soft caps, foreign code: a clear ConfigError."""
    edit(folder, **settings)
    with pytest.raises(ConfigError, match=named):
        load_target(folder)


def test_a_switched_off_window_is_no_window(folder: Path) -> None:
    """Qwen2's configs name a window they do not use; such a target loads."""
    edit(folder, sliding_window=128, use_sliding_window=False)
    load_target(folder)


def test_incomplete_folders_and_other_formats_are_refused(folder: Path, tmp_path: Path) -> None:
    """No folder, no tokenizer, no safetensors, no such dtype: each says what is missing."""
    with pytest.raises(ConfigError, match="no such folder"):
        load_target(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="dtype"):
        load_target(folder, "float16")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="safetensors"):
        load_target(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_target(folder)


def test_the_weights_fingerprint_is_of_the_weights(folder: Path, tmp_path: Path) -> None:
    """Sharding, file names, dtype at load and names of people do not change it; one bit of one tensor does."""
    original = weights_fingerprint(folder)
    assert load_target(folder).weights == load_target(folder, "bfloat16").weights == original
    tensors = load_file(folder / "model.safetensors")
    halves: list[dict[str, torch.Tensor]] = [{}, {}]
    for index, name in enumerate(sorted(tensors)):
        halves[index % 2][name] = tensors[name]
    sharded = Path(shutil.copytree(folder, tmp_path / "sharded"))
    (sharded / "model.safetensors").unlink()
    for index, half in enumerate(halves):
        save_file(half, sharded / f"part-{index}.safetensors")
    edit(sharded, _name_or_path="elsewhere", transformers_version="9", dtype="bfloat16")
    assert weights_fingerprint(sharded) == original
    edit(sharded, rms_norm_eps=2e-6)
    assert weights_fingerprint(sharded) != original
    name = sorted(tensors)[0]
    tensors[name].view(torch.int32)[0, 0] ^= 1
    save_file(tensors, folder / "model.safetensors")
    assert weights_fingerprint(folder) != original


def test_the_cached_fingerprint_is_used_only_while_it_stands(folder: Path) -> None:
    """The cache answers as long as sizes and times do; a damaged cache is computed anew."""
    original = weights_fingerprint(folder)
    cache = folder / CACHE_NAME
    known = json.loads(cache.read_text())
    cache.write_text(json.dumps(known | {"weights": "00" * 32}))
    assert weights_fingerprint(folder) == bytes(32)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert weights_fingerprint(folder) == original
    cache.write_text("{")
    assert weights_fingerprint(folder) == original


def test_the_law_changes_with_all_that_changes_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, dtype, noise version, order of warps and engine version each give another law."""
    laws = {law_fingerprint(bytes(32), "float32"), law_fingerprint(bytes(32), "bfloat16")}
    laws.add(law_fingerprint(b"\1" * 32, "float32"))
    for name, other in (("NOISE_VERSION", 99), ("SAMPLER_ORDER", "other"), ("ENGINE_VERSION", 99)):
        with monkeypatch.context() as patch:
            patch.setattr(f"outrider.cloud.fingerprint.{name}", other)
            laws.add(law_fingerprint(bytes(32), "float32"))
    assert len(laws) == 6 and all(len(law) == 32 for law in laws)


def test_a_wheel_with_another_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded target's file is taken by its hash only."""
    other = tmp_path / fetch.GGUF
    other.write_bytes(b"GGUF of something else")
    monkeypatch.setattr(fetch, "_installed", lambda: other)
    with pytest.raises(ConfigError, match="SHA-256"):
        fetch.fetch_target(tmp_path / "cache")
    assert not list((tmp_path / "cache" / "targets").iterdir())


def test_a_converted_target_is_found_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OUTRIDER_CACHE names the cache, and a folder converted before is used without looking further."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setattr(fetch, "_installed", lambda: pytest.fail("looked for the wheel"))
    where = tmp_path / "targets" / f"{fetch.EMBEDDED}-{fetch.CONVERSION}"
    shutil.copytree(made, where)
    assert fetch.fetch_target() == where
    assert load_target("smollm2").folder == where


@pytest.mark.model
def test_the_embedded_target_is_the_one_drafters_are_trained_for() -> None:
    """Its weights fingerprint, wherever and whenever it was converted."""
    target = load_target()
    assert target.weights.hex() == "29e6740eeffe9864f5bc26a436de3df379e46dd4354bc66e3ed0b2ac1e4654da"
    assert (target.vocabulary, target.max_context, target.stop_ids) == (49152, 8192, (2,))
