"""Width invariance: a position's logits have the same bits at every draft width, packing and chunk size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from outrider.cloud.linear import PackedLinear, measure, pack_linears
from outrider.cloud.selfcheck import engine_compute, open_engine, width_sweep
from outrider.cloud.target import DTYPES, load_target
from tests.tiny import VOCABULARY, make_target

WIDTHS = tuple(range(1, 17))
CHUNKS = (1, 5, 8, 17, 64)
# Wide enough that kernels for few and for many rows differ.
WIDE = {"hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 6, "head_dim": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose layers are large enough for the kernels to matter."""
    return make_target(tmp_path_factory.mktemp("target") / "wide", "llama", **WIDE)


class Stock:
    """transformers as it is: sdpa attention, a cache, nothing padded. No second session: it cannot pack any."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[dtype], attn_implementation="sdpa"
        )

    @torch.inference_mode()
    def __call__(
        self, context: Sequence[int], chunk: int, line: Sequence[int], beside: Sequence[int]
    ) -> Tensor:
        """Prefill in chunks, then the line at once."""
        del beside
        cache = DynamicCache(config=self.model.config)
        for start in range(0, len(context), chunk):
            self.model(torch.tensor([context[start : start + chunk]]), cache=cache)
        return self.model(torch.tensor([line]), cache=cache).logits[0].float()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_keep_their_bits(folder: Path, dtype: str) -> None:
    """Widths 1–16, alone and packed, and five chunkings: bitwise equal in float32 and bfloat16."""
    engine, found = open_engine(load_target(folder, dtype))
    assert found.bit_exact and not found.differing
    assert width_sweep(engine_compute(engine), VOCABULARY, WIDTHS, CHUNKS) == ()


def test_stock_attention_fails_the_same_test(folder: Path) -> None:
    """The sweep can fail: transformers' own sdpa gives other bits at other widths."""
    assert width_sweep(Stock(folder, "float32"), VOCABULARY, WIDTHS, CHUNKS)


def test_a_kernel_that_changes_with_the_row_count_is_called_in_tiles() -> None:
    """A product whose bits depend on the number of rows gets a tile and a granule within which they do not."""

    def fickle(rows: Tensor) -> Tensor:
        return (
            rows.sum(1, keepdim=True) + (1e-3 if len(rows) > 32 else 0.0) + (1e-3 if len(rows) < 4 else 0.0)
        )

    assert measure(fickle, 16, 1, torch.float32) == (32, 4)
    layer = PackedLinear(fickle, 1, 32)
    rows = torch.randn(1, 72, 16)
    assert torch.equal(layer(rows)[0], torch.cat([fickle(part) for part in rows[0].split(8)]))


@pytest.mark.parametrize("bias", [True, False])
def test_packed_layers_compute_the_same_product(bias: bool) -> None:
    """A packed layer equals the plain one up to rounding, bias included, for any number of rows and any shape."""
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(24, 40, bias=bias)).requires_grad_(False)
    rows = torch.randn(2, 300, 24)
    expected = plain(rows)
    assert pack_linears(plain) in (2, 4, 8)
    assert isinstance(plain[0], PackedLinear)
    with torch.inference_mode():
        assert torch.allclose(plain(rows), expected, atol=1e-5)


@pytest.mark.model
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_embedded_target_keeps_its_bits(dtype: str) -> None:
    """The real model: the full sweep of widths, bitwise, in both dtypes."""
    engine, found = open_engine(load_target(dtype=dtype))
    assert found.bit_exact
    assert width_sweep(engine_compute(engine), engine.target.vocabulary, WIDTHS, (5, 64)) == ()


@pytest.mark.model
def test_stock_attention_fails_on_the_embedded_target() -> None:
    """The negative control on the real model."""
    target = load_target()
    assert width_sweep(Stock(target.folder, "float32"), target.vocabulary, (1, 4, 16), ())
