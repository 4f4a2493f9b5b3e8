"""How far a drafter's own probabilities can be trusted, and how often its children are right: fitted on held-out text.

Two things come out, each for greedy answers and for sampled ones with shared noise. *Kappa*: by how much scores must be
divided for softmax(score / kappa) to be the probability that a child is the target's token. *Confidence*: by depth and
rank, how often it is; devices size their drafts by that before they have seen any verdict.

Sampled answers need no text of their own. At every position of a held-out answer the target's law is known (its final
states are cached), so the token that it would choose under shared noise is too; the drafter's scores are perturbed by
the same noise, as on a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from outrider.cloud.kinds.base import FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.settings import DrafterSettings
from outrider.cloud.train.blocks import regular_text
from outrider.cloud.train.corpus import Example
from outrider.cloud.train.validate import States
from outrider.shared.noise import gumbel

Law = tuple[tuple[float, ...], ...]
SettingsT = TypeVar("SettingsT", bound=DrafterSettings)

GRID = tuple(0.3 + 0.05 * i for i in range(35))
"""Kappas tried; 1 would mean that the drafter's own softmax is already calibrated."""
MAX_DEPTH = 12
"""Depths of a confidence table; devices draft no deeper."""
RANKS = 4
MISSED, SILENT = RANKS, RANKS + 1
"""Ranks of a true token that is not among the best children, and where the drafter cannot predict at all."""
LEAST_POSITIONS = 300
"""Answer positions without which nothing is fitted."""
MOST_TEXTS = 32
"""Texts read; a table needs a pass of the drafter for each of its depths."""
SMOOTHING = 30
"""Positions that the mean over all depths weighs as much as, in each depth's share."""

_TOGETHER = 8
"""Texts that run in one pass: a kind that feeds on its own features makes a pass a depth."""
_DEPTH = 6
"""Depths that kappa is fitted on: those most drafts have."""
_BINS = 10


@dataclass(frozen=True, slots=True)
class Children:
    """The best children at n positions, and the true token among them."""

    scores: Tensor
    """[n, RANKS], best first."""
    totals: Tensor
    """[n, len(GRID)]: logsumexp over the draft vocabulary of score / kappa."""
    truth: Tensor
    """[n]: score of the true token; NaN where the draft vocabulary lacks it."""
    ranks: Tensor
    """int64 [n]: rank of the true token, `MISSED` where it is none of the best."""

    def losses(self) -> Tensor:
        """Summed negative log-likelihood of the true tokens, by kappa of `GRID`: [len(GRID)]."""
        inside = ~self.truth.isnan()
        kappas = self.totals.new_tensor(GRID)
        return (self.totals[inside] - self.truth[inside, None] / kappas).sum(0)


@dataclass(frozen=True, slots=True)
class Fit:
    """One calibration: of greedy or of sampled answers."""

    kappa: float = 1.0
    confidence: Law = ()
    """[depth][rank]; empty where too little text was held out."""
    error_before: float = 0.0
    """Expected calibration error of the children's probabilities at kappa 1."""
    error_after: float = 0.0
    """The same at a kappa that was fitted on the other half of the texts."""

    def line(self) -> str:
        """For a log."""
        firsts = " ".join(f"{ranks[0]:.3f}" for ranks in self.confidence)
        errors = f"calibration error {self.error_before:.3f} -> {self.error_after:.3f}"
        return f"kappa={self.kappa:.2f} {errors} first=[{firsts}]"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What held-out answers say about a drafter."""

    positions: int
    """Answer positions it stands on."""
    greedy: Fit = Fit()
    sampled: Fit = Fit()

    @property
    def enough(self) -> bool:
        """Whether there was text enough to fit anything."""
        return self.positions >= LEAST_POSITIONS

    def line(self) -> str:
        """For a log."""
        if not self.enough:
            return f"not calibrated: {self.positions} held-out positions, {LEAST_POSITIONS} are needed"
        return f"greedy: {self.greedy.line()}; sampled: {self.sampled.line()}"

    def apply(self, settings: SettingsT) -> SettingsT:
        """The settings with what was fitted; as they were where nothing was."""
        if not self.enough:
            return settings
        return replace(
            settings,
            kappa=self.greedy.kappa,
            kappa_sampled=self.sampled.kappa,
            confidence=self.greedy.confidence,
            confidence_sampled=self.sampled.confidence,
        )


@torch.no_grad()
def calibrate(
    drafter: TrainableDrafter,
    frozen: FrozenTarget,
    head: Tensor,  # [vocabulary, hidden]: the target's whole head
    cache: States,
    examples: Sequence[Example],
    rows: Sequence[int],
) -> Calibration:
    """Fit on `rows` of a corpus whose states are cached; bfloat16 autocast. Too little text is no error: it is said."""
    rows = rows[:MOST_TEXTS]
    positions = sum(max(len(examples[row].answer_ids) - 1, 0) for row in rows)
    if positions < LEAST_POSITIONS:
        return Calibration(positions)
    greedy, sampled = _Evidence([], []), _Evidence([], [])
    for start in range(0, len(rows), _TOGETHER):
        group = enumerate(rows[start : start + _TOGETHER], start)
        texts = [_HeldOut(drafter, head, cache, examples[row], row, number) for number, row in group]
        for offset in range(MAX_DEPTH):
            for text, logits, valid in _passes(drafter, frozen, texts, offset):
                text.take(offset, logits, valid)
        for text in texts:
            for evidence, table, children in zip((greedy, sampled), text.tables, text.children, strict=True):
                evidence.tables.append(table)
                evidence.children.append(children)
    return Calibration(positions, greedy.fit(), sampled.fit())


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What all texts say about one kind of answers."""

    children: list[Children]
    """One a text."""
    tables: list[Tensor]
    """One a text: ranks by begin of the draft and depth, [n, MAX_DEPTH]."""

    def fit(self) -> Fit:
        before, after = held_out_errors(self.children)
        return Fit(best_kappa(self.children), confidence(self.tables), before, after)


class _HeldOut:
    """One answer, and what target and drafter say at each of its positions."""

    def __init__(
        self,
        drafter: TrainableDrafter,
        head: Tensor,
        cache: States,
        example: Example,
        row: int,
        number: int,
    ) -> None:
        self._vocabulary = torch.tensor(drafter.settings.draft_vocabulary)
        self._states, self._number = cache.get(row), number
        self._ids = torch.from_numpy(example.ids).long()
        self._prompt = len(example.prompt_ids)
        places = range(self._prompt + 1, len(self._ids))
        noise = [torch.from_numpy(gumbel(row, place, None, len(head))).float() for place in places]
        # Row i is about the token behind position prompt + i.
        full = torch.stack(noise) if noise else torch.zeros(0, len(head))
        self._noise = full[:, self._vocabulary]
        laws = self._states.final[self._prompt : -1].float() @ head.float().T
        self._greedy, self._sampled = self._ids[self._prompt + 1 :], (laws + full).argmax(-1)
        self.tables = [torch.full((len(self._greedy), MAX_DEPTH), MISSED) for _ in range(2)]
        """Ranks by begin of the draft and depth, greedy and sampled."""
        self.children: list[Children] = []
        """Of one cut, which turns with ``number``; greedy and sampled."""

    def cut(self, offset: int) -> Text:
        """The text in blocks that begin at this offset."""
        text = regular_text(self._ids, self._states.kv, self._prompt, MAX_DEPTH, offset)
        return replace(text, final=self._states.final)

    def take(self, offset: int, logits: Tensor, valid: Tensor) -> None:
        """Ranks from logits [n, V_d] of this cut; children where it is this text's turn."""
        begins = self.cut(offset).rows[:-1] - self._prompt
        depths = torch.arange(len(begins)) - begins
        # The short first block of offsets above 0 repeats what offset 0 measured.
        keep = begins % MAX_DEPTH == offset
        pairs = ((logits, self._greedy), (logits + self._noise, self._sampled))
        for table, (scores, truth) in zip(self.tables, pairs, strict=True):
            ranks = true_ranks(scores, truth, self._vocabulary)
            ranks[~valid] = SILENT
            table[begins[keep], depths[keep]] = ranks[keep]
            if offset == self._number % MAX_DEPTH:
                shallow = valid & (depths < _DEPTH)
                self.children.append(observe(scores[shallow], truth[shallow], self._vocabulary))


def _passes(
    drafter: TrainableDrafter, frozen: FrozenTarget, texts: Sequence[_HeldOut], offset: int
) -> Iterator[tuple[_HeldOut, Tensor, Tensor]]:
    """Each text with logits [n, V_d] at its answer positions but the last, and whether there are any."""
    cuts = [text.cut(offset) for text in texts]
    lengths = [cut.num_queries for cut in cuts]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = drafter(cuts, frozen)
        finals = out.final.split(lengths)
    valids = [None] * len(texts) if out.valid is None else out.valid.split(lengths)
    for text, final, valid in zip(texts, finals, valids, strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = frozen.head(final[:-1]).float()
        yield text, logits, torch.ones(len(logits), dtype=torch.bool) if valid is None else valid[:-1]


def true_ranks(scores: Tensor, truth: Tensor, vocabulary: Tensor) -> Tensor:
    """Rank of the true token among the `RANKS` best, else `MISSED`: scores [n, V_d], truth target ids [n] -> [n]."""
    best = vocabulary[scores.topk(min(RANKS, scores.shape[-1])).indices]
    found = best == truth[:, None]
    return torch.where(found.any(-1), found.int().argmax(-1), MISSED)


def observe(scores: Tensor, truth: Tensor, vocabulary: Tensor) -> Children:
    """The children at n positions: scores [n, V_d], truth target ids [n], vocabulary in any order [V_d]."""
    order = vocabulary.argsort()
    places = order[torch.searchsorted(vocabulary[order], truth).clamp_max(len(vocabulary) - 1)]
    chosen = scores.gather(-1, places[:, None])[:, 0]
    chosen[vocabulary[places] != truth] = torch.nan
    totals = torch.stack([torch.logsumexp(scores / kappa, -1) for kappa in GRID], -1)
    best = scores.topk(min(RANKS, scores.shape[-1])).values
    return Children(best, totals, chosen, true_ranks(scores, truth, vocabulary))


def best_kappa(children: Sequence[Children]) -> float:
    """The kappa of `GRID` under which the true tokens are likeliest; 1 where there are none."""
    losses = sum((each.losses() for each in children), start=torch.zeros(len(GRID)))
    return float(GRID[int(losses.argmin())]) if bool((losses != 0).any()) else 1.0


def calibration_error(children: Sequence[Children], kappa: float) -> float:
    """Expected calibration error: mean distance, over children, of their probability and how often they are right.

    `kappa` is one of `GRID`; children are binned by probability into ten bins of equal width.
    """
    place = min(range(len(GRID)), key=lambda i: abs(GRID[i] - kappa))
    chances = torch.cat(
        [(each.scores / GRID[place] - each.totals[:, place, None]).exp() for each in children]
    )
    ranks = torch.cat([each.ranks for each in children])
    right = (ranks[:, None] == torch.arange(chances.shape[1])).float()
    bins = (chances.flatten() * _BINS).long().clamp(0, _BINS - 1)
    gaps = torch.zeros(_BINS).index_add_(0, bins, (chances - right).flatten())
    return float(gaps.abs().sum()) / max(chances.numel(), 1)


def held_out_errors(children: Sequence[Children]) -> tuple[float, float]:
    """Calibration error at kappa 1, and at kappas that were fitted on the other half of the texts."""
    if len(children) < 2:
        return (calibration_error(children, 1.0),) * 2
    halves = [children[0::2], children[1::2]]
    after = [calibration_error(own, best_kappa(other)) for own, other in (halves, halves[::-1])]
    sizes = [sum(len(each.ranks) for each in half) for half in halves]
    mixed = sum(error * size for error, size in zip(after, sizes, strict=True)) / max(sum(sizes), 1)
    return calibration_error(children, 1.0), mixed


def confidence(tables: Sequence[Tensor]) -> Law:
    """By depth and rank, how often a child is right in real rounds of first guesses.

    tables: per text, ranks [n, depth] for a draft begun at each position. Rounds are walked as a device would: a draft
    goes on while first guesses are right, the next one begins behind the target's own token. Long stretches of easy
    text are few rounds, so they count as seldom here as in use.
    """
    depth = tables[0].shape[1]
    judged, right = torch.zeros(depth), torch.zeros(depth, RANKS)
    silent = torch.zeros(depth, dtype=torch.bool)
    for table in tables:
        silent |= (table == SILENT).any(0)
        begin, rows = 0, table.tolist()
        while begin < len(rows):
            level = 0
            while level < min(depth, len(rows) - begin):
                rank = rows[begin][level]
                if rank == SILENT:
                    break
                judged[level] += 1
                if rank < RANKS:
                    right[level, rank] += 1
                if rank != 0:
                    break
                level += 1
            begin += level + 1
    mean = right.sum(0) / judged.sum().clamp_min(1)
    shares = (right + SMOOTHING * mean) / (judged[:, None] + SMOOTHING)
    shares[silent] = 0.0
    return tuple(tuple(round(float(share), 4) for share in ranks) for ranks in shares.cummin(-1).values)
