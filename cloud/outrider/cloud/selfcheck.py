"""What a target's engine is checked for before it serves: the right numbers, and the same bits at every width.

`open_engine` is the way to make an engine. It refuses a model whose logits differ from what transformers' own attention
computes (anything its attention does that ours does not: windows, sinks, shared KV), and measures whether rows keep
their bits, which is advertised and not required: on other hardware "identical" then means "up to near ties".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cloud.engine import DEFAULT_KV_BYTES, Engine, Request
from outrider.cloud.target import Target
from outrider.shared.draft import Draft
from outrider.shared.errors import ConfigError
from outrider.shared.sampling import NEAR_TIE

LINE_TOKENS = 24
BESIDE_TOKENS = 9
WIDTHS = (1, 2, 3, 5, 8, 11, 16)
CHUNKS = (5, 8, 33)
CONTEXT = 248
"""Tokens before the widths are tried: their rows then cross the first step of 256 keys."""

_KEY, _OTHER = -1_000_000, -1_000_001
# Root mean square of the difference over that of the logits. A wrong mask or angle gives tenths to ones.
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}
# Spacing of logits around 16 to 32 in bfloat16, relative: less than that is a tie there.
_LEAST_BOUND = {"float32": NEAR_TIE, "bfloat16": 2.0**-7}

Compute = Callable[[Sequence[int], int, Sequence[int], Sequence[int]], Tensor]
"""(context, chunk, line, beside) -> logits [len(line), vocabulary] of ``line`` after ``context``, which was prefilled
in pieces of ``chunk``; ``beside`` is another session's line in the same pass (empty: none)."""


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What the start-up check found."""

    bit_exact: bool
    """Rows kept their bits over widths, packings and chunk sizes."""
    max_diff: float
    """Largest difference of a logit from transformers' own attention."""
    near_tie_bound: float
    """Relative top-two gap under which another engine, or a tree's side branch here, may choose differently."""
    differing: tuple[str, ...] = ()
    """What broke bit exactness, for the log."""


def open_engine(target: Target, kv_bytes: int = DEFAULT_KV_BYTES) -> tuple[Engine, SelfCheck]:
    """An engine that passed its checks (about two seconds). ConfigError if it computes another model than it should."""
    line = probe_ids(target.vocabulary, LINE_TOKENS)
    expected = _stock(target, line)
    engine = Engine(target, kv_bytes)
    compute = engine_compute(engine)
    got = compute((), 1, line, probe_ids(target.vocabulary, BESIDE_TOKENS, 5))
    off = float((got - expected).square().mean().sqrt() / expected.square().mean().sqrt())
    if not off <= _TOLERANCE[target.dtype]:
        raise ConfigError(
            "--target",
            f"{target.name}: its logits differ from transformers' own by {off:.2g} (relative)",
            remedy="its attention does something this engine does not; choose a Llama-like decoder",
        )
    differing = width_sweep(compute, target.vocabulary)
    bound = max(_LEAST_BOUND[target.dtype], 2.0 * _tree_difference(engine))
    engine.evict(_KEY)
    engine.evict(_OTHER)
    return engine, SelfCheck(not differing, float((got - expected).abs().max()), bound, differing)


def probe_ids(vocabulary: int, count: int, offset: int = 0) -> tuple[int, ...]:
    """Arbitrary ids, the same every time."""
    return tuple((7919 * (position + 31 * offset) + 13) % vocabulary for position in range(count))


def width_sweep(
    compute: Compute,
    vocabulary: int,
    widths: Sequence[int] = WIDTHS,
    chunks: Sequence[int] = CHUNKS,
    context: int = CONTEXT,
) -> tuple[str, ...]:
    """Names of the widths, packings and chunkings at which some row's logits had other bits; empty = invariant."""
    ids = probe_ids(vocabulary, context + max(widths))
    before, line = ids[:context], ids[context:]
    expected = compute(before, context, line, ())
    differing = []
    for width in widths:
        beside = probe_ids(vocabulary, 1 + width % 7, width) if width % 2 else ()
        if not torch.equal(compute(before, context, line[:width], beside), expected[:width]):
            differing.append(f"width {width}{' packed' if beside else ''}")
    short = before[: min(context, 60)]
    expected = compute(short, len(short), line[:5], ())
    for chunk in chunks:
        if not torch.equal(compute(short, chunk, line[:5], ()), expected):
            differing.append(f"chunk {chunk}")
    return tuple(differing)


def engine_compute(engine: Engine) -> Compute:
    """`Compute` by an engine. A context that repeats, chunking included, is not computed again."""
    held: list[tuple[Sequence[int], int]] = []

    def compute(context: Sequence[int], chunk: int, line: Sequence[int], beside: Sequence[int]) -> Tensor:
        if held != [(context, chunk)]:
            engine.evict(_KEY)
            for start in range(0, len(context), chunk):
                piece = tuple(context[start : start + chunk])
                engine.forward([Request(_KEY, start, piece)])
                engine.keep(_KEY, start + len(piece))
            held[:] = [(context, chunk)]
        requests = [Request(_KEY, len(context), (line[0],), Draft.chain(line[1:]))]
        if beside:  # in front, so that the rows move within the pass
            requests.insert(0, Request(_OTHER, 0, (beside[0],), Draft.chain(beside[1:])))
        rows = engine.forward(requests)[-1]
        return rows.logits if rows else torch.empty(0)  # None only for requests without a draft

    return compute


def _tree_difference(engine: Engine) -> float:
    """How far a path off the line of columns is from the same path in line, relative to the largest logit there."""
    vocabulary = engine.target.vocabulary
    ids = probe_ids(vocabulary, 33, 3)
    line = ids[1:9]
    decoys = probe_ids(vocabulary, len(line), 4)
    # Every token of the line is the second child of the one before; its decoy sibling takes the column in front.
    tokens = tuple(token for pair in zip(decoys, line, strict=True) for token in pair)
    parents = tuple(2 * (node // 2) for node in range(len(tokens)))
    engine.evict(_KEY)
    plain = engine.forward([Request(_KEY, 0, (*ids[9:], ids[0]), Draft.chain(line))])[0]
    branched = engine.forward([Request(_KEY, 0, (*ids[9:], ids[0]), Draft(tokens, parents))])[0]
    if plain is None or branched is None:
        return 0.0
    alone = plain.logits[1:]
    difference = (branched.logits[2::2] - alone).abs().amax(1)
    return float((difference / alone.abs().amax(1).clamp(min=1)).max())


@torch.inference_mode()
def _stock(target: Target, line: Sequence[int]) -> Tensor:
    return target.model(torch.tensor([line]), use_cache=False).logits[0].float()
