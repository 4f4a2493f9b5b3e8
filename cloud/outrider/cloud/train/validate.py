"""How good a drafter is on held-out greedy answers, without running rounds one by one.

Cutting a text into blocks that begin at every position in turn gives the drafter's best tokens at every
depth after every possible last row. A real chain round looks only at the accepted prefix, and on an
accepted prefix teacher-forced drafting and free drafting are the same, so rounds can be walked over
the table of matches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from outrider.cloud.kinds.base import FrozenTarget, Text, TrainableDrafter
from outrider.cloud.train.blocks import regular_text
from outrider.cloud.train.corpus import Example, distinct_fraction
from outrider.cloud.train.states import TargetStates

OFFLINE_DEPTH = 20
"""Depth from which a position counts as drafted alone."""
ALONE = ((1, 20), (20, 64), (64, 128), (128, 1 << 30))
"""Offline depths that are told apart: tokens since the last row, from (inclusive) to (exclusive)."""
CHAINS = (4, 6, 8)
DISTINCT = 0.8
"""Share of distinct 4-grams from which a text counts as one without loops."""
_TOGETHER = 4096
"""Tokens of texts that run in one pass."""


class States(Protocol):
    """Where target states come from: a cache of one corpus file or of several."""

    def get(self, row: int) -> TargetStates:
        """States of one text."""


@dataclass(frozen=True, slots=True)
class DrafterQuality:
    """Means over texts; depth 0 is the first position after the last row."""

    texts: int
    """Texts measured."""
    acceptance: tuple[float, ...]
    """Best-token agreement by depth."""
    top4: tuple[float, ...]
    """Share of true tokens among the drafter's four best, by depth."""
    tau: dict[int, float]
    """Emitted tokens per round (recovered or bonus token included) by chain length."""
    alone: tuple[float, ...]
    """Best-token agreement by offline depth, of `ALONE`; NaN where no text is that long."""
    offline: float
    """The same, `OFFLINE_DEPTH` or more tokens after the last row."""

    def line(self) -> str:
        """One line for a log."""
        depths = " ".join(f"{value:.3f}" for value in self.acceptance)
        taus = " ".join(f"tau{chain}={value:.3f}" for chain, value in sorted(self.tau.items()))
        alone = " ".join(f"{value:.3f}" for value in self.alone)
        return f"{taus} offline={self.offline:.3f} alone=[{alone}] top4={self.top4[0]:.3f} acc=[{depths}]"

    def cells(self) -> list[str]:
        """The numbers of a CSV row, in the order of `columns`."""
        values = [*(self.tau[chain] for chain in CHAINS if chain in self.tau), *self.acceptance, self.top4[0]]
        return [str(self.texts), *(f"{value:.4f}" for value in (*values, self.offline, *self.alone))]


def columns(depth: int = 8) -> list[str]:
    """Names for `DrafterQuality.cells`."""
    alone = [f"alone_{low}_{high}" if high < 1 << 30 else f"alone_{low}_up" for low, high in ALONE]
    taus = [f"tau_chain{chain}" for chain in CHAINS if chain <= depth]
    return ["texts", *taus, *(f"depth_{d}" for d in range(depth)), "top4", "offline", *alone]


def walk_rounds(ranks: Tensor, chain: int) -> int:
    """Rounds that chains of `chain` tokens need for a whole answer.

    ranks [n, depth]: rank of the true token for a block beginning at answer position s and depth d;
    0 is a match.
    """
    position, rounds, matches = 0, 0, (ranks == 0).tolist()
    while position < len(matches):
        accepted = 0
        while accepted < chain and matches[position][accepted]:
            accepted += 1
        position += accepted + 1
        rounds += 1
    return rounds


@torch.no_grad()
def true_ranks(
    drafter: TrainableDrafter,
    frozen: FrozenTarget,
    texts: Sequence[Text],
    depth: int,
) -> list[Tensor]:
    """Per text, ranks (0..3, 4 = not among the four best) of its next tokens, int64 [T - prompt - 1, depth].

    `texts` bring ids, states and `first_query` = the prompt's length; they are cut here. Depths behind the
    end of a text stay 4, and so do those that this kind cannot draft at all.
    """
    tables = [torch.full((text.num_queries - 1, depth), 4) for text in texts]
    for offset in range(depth):
        cut = [regular_text(t.ids, t.kv, t.first_query, depth, offset, t.final) for t in texts]
        for text, table, rank in zip(cut, tables, _ranks(drafter, frozen, cut), strict=True):
            begins = text.rows[:-1] - text.first_query
            depths = torch.arange(len(begins)) - begins
            # The short first block of offsets above 0 repeats what offset 0 measured.
            keep = begins % depth == offset
            table[begins[keep], depths[keep]] = rank[keep]
    return tables


@torch.no_grad()
def measure(
    drafter: TrainableDrafter,
    frozen: FrozenTarget,
    cache: States,
    examples: Sequence[Example],
    rows: Sequence[int],
    depth: int = 8,
) -> dict[str, DrafterQuality]:
    """Quality on `rows` of a corpus whose states are cached; bfloat16 autocast.

    Under "all", and under "distinct" for those texts that do not loop (left out where there are none).
    """
    tables: list[Tensor] = []
    alone: list[Tensor] = []
    for texts in _groups([held_out(cache, examples, row) for row in rows]):
        tables += true_ranks(drafter, frozen, texts, depth)
        whole = [regular_text(t.ids, t.kv, t.first_query, len(t.ids), 0, t.final) for t in texts]
        alone += [ranks == 0 for ranks in _ranks(drafter, frozen, whole)]
    distinct = [distinct_fraction(examples[row].answer_ids) >= DISTINCT for row in rows]
    found = {"all": summarise(tables, alone)}
    if any(distinct):
        kept = [index for index, fine in enumerate(distinct) if fine]
        found["distinct"] = summarise([tables[i] for i in kept], [alone[i] for i in kept])
    return found


def held_out(cache: States, examples: Sequence[Example], row: int) -> Text:
    """A text with its states, not cut yet; queries begin at the prompt's end."""
    example, states = examples[row], cache.get(row)
    prompt, ids = len(example.prompt_ids), torch.from_numpy(example.ids).long()
    return Text(ids, states.kv, prompt, torch.full((len(ids) - prompt,), prompt), states.final)


def summarise(tables: Sequence[Tensor], alone: Sequence[Tensor]) -> DrafterQuality:
    """Fold per-text rank tables [n, depth], and matches [n] of drafts from the prompt on, into one quality."""
    depth = tables[0].shape[1]
    inside = [torch.cat([table[: max(0, len(table) - d), d] for table in tables]) for d in range(depth)]
    tokens = sum(len(table) for table in tables)
    return DrafterQuality(
        texts=len(tables),
        acceptance=tuple(_mean(ranks == 0) for ranks in inside),
        top4=tuple(_mean(ranks < 4) for ranks in inside),
        tau={c: tokens / sum(walk_rounds(t, c) for t in tables) for c in CHAINS if c <= depth},
        # Position 0 of an answer has its row; the prediction there is for the first token drafted alone.
        alone=tuple(_mean(torch.cat([m[low - 1 : high - 1] for m in alone])) for low, high in ALONE),
        offline=_mean(torch.cat([matches[OFFLINE_DEPTH:] for matches in alone])),
    )


def _mean(matches: Tensor) -> float:
    return float(matches.float().mean()) if len(matches) else float("nan")


def _groups(texts: Sequence[Text]) -> Iterator[list[Text]]:
    group: list[Text] = []
    for text in texts:
        if group and sum(len(t.ids) for t in group) + len(text.ids) > _TOGETHER:
            yield group
            group = []
        group.append(text)
    if group:
        yield group


def _ranks(drafter: TrainableDrafter, frozen: FrozenTarget, texts: Sequence[Text]) -> list[Tensor]:
    """Per text the rank of the next token at each query but the last."""
    vocabulary = torch.tensor(drafter.settings.draft_vocabulary)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = drafter(texts, frozen)
        best = vocabulary[frozen.head(out.final).float().topk(min(4, len(vocabulary))).indices]
    valid = torch.ones(len(best), dtype=torch.bool) if out.valid is None else out.valid
    lengths = [text.num_queries for text in texts]
    ranks = []
    for text, four, fine in zip(texts, best.split(lengths), valid.split(lengths), strict=True):
        found = (four[:-1] == text.ids[text.first_query + 1 :, None]) & fine[:-1, None]
        ranks.append(torch.where(found.any(-1), found.int().argmax(-1), 4))
    return ranks
