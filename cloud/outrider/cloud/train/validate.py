"""How good a drafter is on held-out greedy answers, without running rounds one by one.

Cutting a text into blocks that begin at every position in turn gives the drafter's best tokens at every
depth after every possible last row. A real chain round looks only at the accepted prefix, and on an
accepted prefix teacher-forced drafting and free drafting are the same, so rounds can be walked over
the table of matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cloud.kinds.base import FrozenTarget, TrainableDrafter
from outrider.cloud.train.blocks import regular_text
from outrider.cloud.train.corpus import Example
from outrider.cloud.train.states import StateCache

OFFLINE_DEPTH = 20
"""Depth from which a position counts as drafted alone."""


@dataclass(frozen=True, slots=True)
class DrafterQuality:
    """Means over texts; depth 0 is the first position after the last row."""

    acceptance: tuple[float, ...]
    """Best-token agreement by depth."""
    top4: tuple[float, ...]
    """Share of true tokens among the drafter's four best, by depth."""
    tau: dict[int, float]
    """Emitted tokens per round (recovered or bonus token included) by chain length."""
    offline: float
    """Best-token agreement `OFFLINE_DEPTH` or more tokens after the last row."""

    def line(self) -> str:
        """One line for a log."""
        depths = " ".join(f"{value:.3f}" for value in self.acceptance)
        taus = " ".join(f"tau{chain}={value:.3f}" for chain, value in sorted(self.tau.items()))
        return f"{taus} offline={self.offline:.3f} top4={self.top4[0]:.3f} acc=[{depths}]"


def walk_rounds(ranks: Tensor, chain: int) -> int:
    """Rounds that chains of `chain` tokens need for a whole answer.

    ranks [n, depth]: rank of the true token for a block beginning at answer position s and depth d;
    0 is a match.
    """
    position, rounds = 0, 0
    while position < len(ranks):
        accepted = 0
        while accepted < chain and ranks[position, accepted] == 0:
            accepted += 1
        position += accepted + 1
        rounds += 1
    return rounds


@torch.no_grad()
def true_ranks(
    drafter: TrainableDrafter,
    frozen: FrozenTarget,
    vocabulary: Tensor,
    ids: Tensor,
    kv: Tensor,
    prompt_length: int,
    depth: int,
) -> Tensor:
    """Rank (0..3, 4 = not among the four best) of the next token, int64 [T - prompt_length - 1, depth].

    Depths that lie behind the end of the text stay 4.
    """
    count = len(ids) - prompt_length - 1
    ranks = torch.full((count, depth), 4)
    for offset in range(depth):
        text = regular_text(ids, kv, prompt_length, depth, offset)
        best = _best_four(drafter, frozen, vocabulary, [text])
        found = best == ids[prompt_length + 1 :, None]
        rank = torch.where(found.any(-1), found.int().argmax(-1), 4)
        begins = text.rows[:-1] - prompt_length
        depths = torch.arange(count) - begins
        # The short first block of offsets above 0 repeats what offset 0 measured.
        keep = begins % depth == offset
        ranks[begins[keep], depths[keep]] = rank[keep]
    return ranks


@torch.no_grad()
def measure(
    drafter: TrainableDrafter,
    frozen: FrozenTarget,
    cache: StateCache,
    examples: Sequence[Example],
    rows: Sequence[int],
    depth: int = 8,
) -> DrafterQuality:
    """Quality on `rows` of a corpus whose states are cached; bfloat16 autocast."""
    vocabulary = torch.tensor(drafter.settings.draft_vocabulary)
    tables: list[Tensor] = []
    offline: list[Tensor] = []
    for row in rows:
        example = examples[row]
        prompt = len(example.prompt_ids)
        ids, kv = torch.from_numpy(example.ids).long(), cache.get(row).kv
        tables.append(true_ranks(drafter, frozen, vocabulary, ids, kv, prompt, depth))
        alone = regular_text(ids, kv, prompt, len(ids), 0)
        best = _best_four(drafter, frozen, vocabulary, [alone])[:, 0] == ids[prompt + 1 :]
        offline.append(best[OFFLINE_DEPTH:])
    return summarise(tables, offline)


def summarise(tables: Sequence[Tensor], offline: Sequence[Tensor]) -> DrafterQuality:
    """Fold per-text rank tables into one quality."""
    depth = tables[0].shape[1]
    inside = [torch.cat([table[: max(0, len(table) - d), d] for table in tables]) for d in range(depth)]
    tokens = sum(len(table) for table in tables)
    return DrafterQuality(
        acceptance=tuple(float((ranks == 0).float().mean()) for ranks in inside),
        top4=tuple(float((ranks < 4).float().mean()) for ranks in inside),
        tau={c: tokens / sum(walk_rounds(t, c) for t in tables) for c in (4, 6, 8) if c <= depth},
        offline=float(torch.cat(list(offline)).float().mean()),
    )


def _best_four(drafter: TrainableDrafter, frozen: FrozenTarget, vocabulary: Tensor, texts: list) -> Tensor:  # type: ignore[type-arg]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        final = drafter(texts, frozen).final[:-1]
        logits = frozen.head(final)
    return vocabulary[logits.float().topk(min(4, logits.shape[-1])).indices]
