"""How a text is cut into blocks: which positions are hidden together (see `kinds.base.Text`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cloud.kinds.base import Text


@dataclass(frozen=True, kw_only=True)
class BlockMix:
    """Shares of texts by how long the target's states stay hidden; the rest are short blocks."""

    long_share: float = 0.15
    """Blocks of 32..64: the device drafts on through a stall."""
    whole_share: float = 0.10
    """The whole answer: the link is down from the first token."""
    withheld_share: float = 0.06
    """No rows at all, not even the prompt's."""
    short: tuple[int, int] = (4, 12)
    """Inclusive lengths of short blocks (the paper: 5..13)."""
    long: tuple[int, int] = (32, 64)
    """Inclusive lengths of long blocks."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the first field that cannot be."""
        shares = (self.long_share, self.whole_share, self.withheld_share)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(f"long_share, whole_share and withheld_share must be shares of 1, got {shares}")
        for name, (low, high) in (("short", self.short), ("long", self.long)):
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be two lengths, the lesser first, got {low}, {high}")


SPANS = {
    "mixed": BlockMix(),
    "no-whole": BlockMix(whole_share=0.0, withheld_share=0.0),
    "short": BlockMix(long_share=0.0, whole_share=0.0, withheld_share=0.0),
    "paper": BlockMix(long_share=0.0, whole_share=0.0, withheld_share=0.0, short=(5, 13)),
    "eagle": BlockMix(long_share=0.0, whole_share=0.0, withheld_share=0.0, short=(1, 1)),
}
"""Mixes by name. "eagle" hides nothing: every query sees rows up to its own position, one step ahead."""


def draw_rows(
    prompt_length: int, length: int, mix: BlockMix, generator: torch.Generator
) -> tuple[int, Tensor]:
    """Draw one cut of a text: (first query, rows [length - first_query]) for `Text`."""
    kind = float(torch.rand((), generator=generator))
    if kind < mix.withheld_share:
        return 0, torch.zeros(length, dtype=torch.long)
    kind -= mix.withheld_share
    if kind < mix.whole_share:
        return prompt_length, torch.full((length - prompt_length,), prompt_length)
    low, high = mix.long if kind - mix.whole_share < mix.long_share else mix.short
    begins: list[int] = [prompt_length]
    # A random first length keeps block borders from falling on fixed depths of the answer.
    step = int(torch.randint(1, high + 1, (), generator=generator))
    while begins[-1] + step < length:
        begins.append(begins[-1] + step)
        step = int(torch.randint(low, high + 1, (), generator=generator))
    return prompt_length, rows_of_blocks(begins, length)


def rows_of_blocks(begins: list[int], length: int) -> Tensor:
    """Rows per query for blocks beginning at `begins` (ascending); int64 [length - begins[0]]."""
    marks = torch.zeros(length - begins[0], dtype=torch.long)
    marks[torch.tensor(begins) - begins[0]] = torch.diff(torch.tensor([0, *begins]))
    return marks.cumsum(0)


def regular_text(
    ids: Tensor, kv: Tensor, prompt_length: int, depth: int, offset: int, final: Tensor | None = None
) -> Text:
    """Text cut into blocks of `depth` from `prompt_length + offset` on; offset 0..depth-1 covers all begins."""
    begins = sorted({prompt_length, *range(prompt_length + offset, len(ids), depth)})
    return Text(ids, kv, prompt_length, rows_of_blocks(begins, len(ids)), final)
