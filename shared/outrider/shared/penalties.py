"""Warps that shift single ids' logits: bias, the three penalties, and the least length.

The penalties read the text before the choice, so their law is another one at every node of a draft: at a node the text
is the prefix *and the path from the base to it*.

- ``logit_bias``: added to the logit, as in OpenAI's API reference (chat completions, ``logit_bias``).
- ``repetition_penalty`` p: ids that occur in the prompt or were generated have a positive logit divided and a negative
  one multiplied by p (Keskar et al., "CTRL", 2019, section 4.1, which divides whatever the sign; as here in
  transformers' `RepetitionPenaltyLogitsProcessor`).
- ``presence_penalty`` a and ``frequency_penalty`` b: an id that was generated c > 0 times loses a + b·c, as in OpenAI's
  API reference (``logit - c * frequency - (c > 0) * presence``). Only generated ids count, never the prompt's.
- ``min_tokens``: stop ids are out of the question until so many tokens were generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from outrider.shared.sampling import Sampling

Scores = NDArray[np.float64]
Ids = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Tally:
    """What of a text the penalties look at."""

    seen: Ids
    """Ids that occur in it, each once, ascending."""
    generated: Ids
    """Those that occur among its generated tokens, each once, ascending."""
    counts: Scores
    """How often each of ``generated`` does."""

    @classmethod
    def of(cls, ids: Sequence[int], generated_from: int) -> Tally:
        """Of a whole text; tokens from position ``generated_from`` on are generated."""
        every = np.asarray(ids, np.intp)
        generated, counts = np.unique(every[generated_from:], return_counts=True)
        return cls(np.unique(every), generated, counts.astype(np.float64))

    def with_id(self, token_id: int, generated: bool) -> Tally:
        """Of the text with one more token."""
        seen = self.seen
        at = int(np.searchsorted(seen, token_id))
        if at == len(seen) or seen[at] != token_id:
            seen = np.insert(seen, at, token_id)
        if not generated:
            return Tally(seen, self.generated, self.counts)
        ids, counts = self.generated, self.counts.copy()
        at = int(np.searchsorted(ids, token_id))
        if at == len(ids) or ids[at] != token_id:
            ids, counts = np.insert(ids, at, token_id), np.insert(counts, at, 0.0)
        counts[at] += 1
        return Tally(seen, ids, counts)


@dataclass(frozen=True, slots=True)
class History:
    """The text before a choice; its length is the absolute position that is being chosen."""

    ids: tuple[int, ...]
    """Prompt and generated tokens, drafted ones on the path included."""
    generated_from: int
    """First position that counts as generated."""
    stop_ids: tuple[int, ...] = ()
    """What ``min_tokens`` suppresses."""
    _tally: Tally | None = field(default=None, compare=False, repr=False)

    @property
    def position(self) -> int:
        """Absolute position of the token that follows."""
        return len(self.ids)

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return max(len(self.ids) - self.generated_from, 0)

    @property
    def tally(self) -> Tally:
        """What the penalties look at; counted once."""
        if self._tally is None:
            object.__setattr__(self, "_tally", Tally.of(self.ids, self.generated_from))
        return self._tally or Tally.of(self.ids, self.generated_from)

    def then(self, ids: Sequence[int]) -> History:
        """With ``ids`` behind it; costs little, however long the text is."""
        tally = self.tally
        for position, token_id in enumerate(ids, len(self.ids)):
            tally = tally.with_id(token_id, position >= self.generated_from)
        return History((*self.ids, *ids), self.generated_from, self.stop_ids, tally)


def among(ids: Ids, sampling: Sampling, history: History | None) -> tuple[Sampling, History | None]:
    """The sampling and the text as they look where ``ids`` (ascending) are the whole vocabulary, renumbered 0, 1, ….

    For warping a few entries that are known instead of scores of a whole vocabulary: costs little, however long the
    text is. Of the text only its length and what the penalties look at remain right.
    """
    place = {token_id: index for index, token_id in enumerate(ids.tolist())}
    biases = tuple((place[token_id], shift) for token_id, shift in sampling.logit_bias if token_id in place)
    sampling = replace(sampling, logit_bias=biases)
    if history is None:
        return sampling, None
    tally = history.tally
    generated = [
        (place[i], count)
        for i, count in zip(tally.generated.tolist(), tally.counts, strict=True)
        if i in place
    ]
    few = Tally(
        np.flatnonzero(np.isin(ids, tally.seen, assume_unique=True)),
        np.asarray([index for index, _ in generated], np.intp),
        np.asarray([count for _, count in generated], np.float64),
    )
    stops = tuple(place[token_id] for token_id in history.stop_ids if token_id in place)
    return sampling, History(history.ids, history.generated_from, stops, few)


def told(history: History | None) -> History:
    """The history. Raises ValueError where a warp needs one and none was given."""
    if history is None:
        raise ValueError("this sampling depends on the text before the choice, and none was given")
    return history


def bias(values: Scores, sampling: Sampling, history: History | None) -> Scores:
    """Add each biased id's bias."""
    if not sampling.logit_bias:
        return values
    values = values.copy()
    values[[token_id for token_id, _ in sampling.logit_bias]] += [shift for _, shift in sampling.logit_bias]
    return values


def repetition(values: Scores, sampling: Sampling, history: History | None) -> Scores:
    """Divide positive and multiply negative logits of ids in the text."""
    penalty = sampling.repetition_penalty
    if penalty == 1:
        return values
    seen = told(history).tally.seen
    values = values.copy()
    logits = values[seen]
    values[seen] = np.where(logits > 0, logits / penalty, logits * penalty)
    return values


def presence(values: Scores, sampling: Sampling, history: History | None) -> Scores:
    """Lower ids that were generated, however often."""
    if not sampling.presence_penalty:
        return values
    values = values.copy()
    values[told(history).tally.generated] -= sampling.presence_penalty
    return values


def frequency(values: Scores, sampling: Sampling, history: History | None) -> Scores:
    """Lower ids once for every time they were generated."""
    if not sampling.frequency_penalty:
        return values
    tally = told(history).tally
    values = values.copy()
    values[tally.generated] -= sampling.frequency_penalty * tally.counts
    return values


def least_length(values: Scores, sampling: Sampling, history: History | None) -> Scores:
    """Leave out the stop ids while fewer than ``min_tokens`` tokens were generated, unless nothing else is left."""
    if not sampling.min_tokens or told(history).num_generated >= sampling.min_tokens:
        return values
    open_ended = values.copy()
    open_ended[list(told(history).stop_ids)] = -np.inf
    return open_ended if np.isfinite(open_ended).any() else values
