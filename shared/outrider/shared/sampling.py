"""How the target chooses a token: the settings, the law that the warps leave, and the choice under shared noise.

`outrider.shared.warps` has the one ordered list. The law is softmax of the *scores* (warped logits, -inf outside the
support). At temperature 0 the choice is the largest logit after bias, penalties and least length; above it the largest
``score + gumbel(seed, position, id)``, which is a draw from the law (Gumbel-max) that any other process with the same
logits and the same text before it repeats. Scores need no normalising: a constant does not move an argmax.

Exact ties, everywhere: the lower id wins.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.shared.errors import InvalidField
from outrider.shared.noise import bits_of, gumbel_of, gumbel_of_one, raw_words
from outrider.shared.penalties import History as History
from outrider.shared.penalties import Scores as Scores
from outrider.shared.warps import (
    ADJUSTMENTS,
    TRUNCATIONS,
    WARPS,
    apply,
    min_p_floor,
    softmax,
    temperature,
    top_k,
)
from outrider.shared.warps import Logits as Logits

SAMPLER_ORDER = ",".join(warp.__name__ for warp in WARPS) + ";gumbel-max;ties=lowest-id;2"
"""Part of the law fingerprint; changes whenever the same logits could give another token."""

NEAR_TIE = 1e-4
"""Relative gap of the two best scores under which another engine may choose differently (float32)."""

MAX_BIASES = 1024
"""Ids with a bias, at most."""

LEAST_TEMPERATURE = 1e-6
"""Above 0 no temperature is lower: far lower ones overflow, and what is left of a law is its argmax long before."""

_RARE = 6.0
"""Below the floor by this much, an id wins only if its uniform number is less than exp(-_RARE): one of 400."""
_RARE_RAW = np.uint64((math.ceil(math.exp(-_RARE) * 2.0**32) + 1) << 32)

_LEAST_REPETITION, _MOST_REPETITION = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target chooses. Raises `InvalidField` ("sampling.…") when out of range.

    What each does, and in which order: `outrider.shared.warps` and `outrider.shared.penalties`.
    """

    temperature: float = 0.0
    """0 = greedy, else at least `LEAST_TEMPERATURE`."""
    top_k: int = 0
    """Keep the k largest scores; 0 = off."""
    top_p: float = 0.0
    """Keep the most likely ids that together reach this mass, in (0, 1]; 0 = off."""
    seed: int = 0
    """64 bits; noise = f(seed, absolute position, token id)."""
    min_p: float = 0.0
    """Keep ids at least this many times as likely as the likeliest, in (0, 1]; 0 = off."""
    repetition_penalty: float = 1.0
    """Of ids in prompt and generated text, 0.01 to 100; 1 = off."""
    presence_penalty: float = 0.0
    """Of ids generated, -2 to 2; 0 = off."""
    frequency_penalty: float = 0.0
    """Of ids generated, for each time, -2 to 2; 0 = off."""
    min_tokens: int = 0
    """Stop ids are suppressed until so many tokens were generated."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, bias -100 to 100), at most `MAX_BIASES`, each id once; kept in order of ids."""

    def __post_init__(self) -> None:
        least = LEAST_TEMPERATURE if self.temperature else 0
        _within("temperature", self.temperature, float, least, sys.float_info.max)
        _within("top_k", self.top_k, int, 0, 2**32 - 1)
        _within("top_p", self.top_p, float, 0, 1)
        _within("seed", self.seed, int, 0, 2**64 - 1)
        _within("min_p", self.min_p, float, 0, 1)
        _within("repetition_penalty", self.repetition_penalty, float, _LEAST_REPETITION, _MOST_REPETITION)
        _within("presence_penalty", self.presence_penalty, float, -2, 2)
        _within("frequency_penalty", self.frequency_penalty, float, -2, 2)
        _within("min_tokens", self.min_tokens, int, 0, 2**32 - 1)
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    @property
    def greedy(self) -> bool:
        """Whether no noise is used."""
        return self.temperature == 0

    @property
    def needs_history(self) -> bool:
        """Whether the law depends on the text before the choice other than through the logits."""
        penalised = bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)
        return penalised or self.min_tokens > 0

    def history(
        self, ids: Sequence[int], generated_from: int, stop_ids: Collection[int] = ()
    ) -> History | None:
        """The text before a choice as the law needs it; None where it does not, so that nothing is copied."""
        return History(tuple(ids), generated_from, tuple(sorted(stop_ids))) if self.needs_history else None

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before the temperature."""
        return self.needs_history or bool(self.logit_bias)

    @property
    def truncates(self) -> bool:
        """Whether ids may be left out after the temperature."""
        return bool(self.top_k or 0 < self.top_p < 1 or self.min_p)

    @property
    def plain(self) -> bool:
        """Whether nothing but temperature, top_k and top_p is used."""
        return not self.adjusts and not self.min_p


def _within(name: str, given: Any, kind: type, least: int | float, most: int | float) -> None:
    """Refuse what is no number of that kind in least … most; NaN never is."""
    number = not isinstance(given, bool) and isinstance(given, int | kind)
    if number and least <= given <= most:
        return
    raise InvalidField(f"sampling.{name}", f"expected {kind.__name__} in {least} .. {most}, got {given!r}")


def _biases(given: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The biases in order of ids, checked."""
    if len(given) > MAX_BIASES:
        raise InvalidField("sampling.logit_bias", f"{len(given)} entries, at most {MAX_BIASES}")
    for token_id, shift in given:
        _within("logit_bias", token_id, int, 0, 2**32 - 1)
        _within("logit_bias", shift, float, -100, 100)
    biases = tuple(sorted((int(token_id), float(shift)) for token_id, shift in given))
    if len({token_id for token_id, _ in biases}) < len(biases):
        raise InvalidField("sampling.logit_bias", "an id has two biases")
    return biases


def biases(words: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """Biases as a command line says them, each "ID=VALUE". Raises InvalidField ("sampling.logit_bias")."""
    pairs = []
    for word in words:
        token_id, equals, shift = word.partition("=")
        try:
            pairs.append((int(token_id), float(shift if equals else "")))
        except ValueError:
            raise InvalidField("sampling.logit_bias", f"expected ID=VALUE, got {word!r}") from None
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token and how far the choice was from falling otherwise."""

    token: int
    gap: float
    """Distance to the nearest other outcome: the two best scores, or a warp's boundary; inf if there is none."""
    scale: float
    """|largest logit over temperature|, at least 1: what `gap` is measured against."""

    def near_tie(self, bound: float = NEAR_TIE) -> bool:
        """Whether logits that differ by rounding only could have given another token."""
        return self.gap < bound * self.scale


@dataclass(frozen=True, slots=True)
class LogProbs:
    """Natural logarithms of the probability of one token, float32 values."""

    raw: float
    """By the logits as they are: temperature 1, no warp."""
    warped: float
    """By the law it was chosen from, after all warps: 0 at temperature 0; -inf where that law rules it out."""


def scores(logits: Logits, sampling: Sampling, history: History | None = None) -> Scores:
    """Warped logits [V] in float64, -inf outside the support. The maximum's id alone remains at temperature 0.

    ``history`` is the text before the choice; ValueError if the sampling needs it and it is missing.
    """
    return apply(WARPS, logits, sampling, history)


def law(logits: Logits, sampling: Sampling, history: History | None = None) -> Scores:
    """The next-token distribution [V] after warping, float64, sums to 1."""
    return softmax(scores(logits, sampling, history))


def pick(logits: Logits, sampling: Sampling, position: int, history: History | None = None) -> int:
    """The target's token at absolute ``position``; exact ties go to the lower id."""
    _check_position(position, history)
    shifted = adjusted(_floating(logits), sampling, history)
    if sampling.greedy:
        return int(np.argmax(shifted))
    values, warmth = shifted, sampling.temperature
    if sampling.truncates:
        values, warmth = apply((temperature, *TRUNCATIONS), shifted, sampling, history), 1.0
    words = raw_words(sampling.seed, position, len(values))
    return _perturbed_best(values, int(np.argmax(values)), warmth, words, 1.0)[0]


def choose(
    logits: Logits,
    sampling: Sampling,
    position: int,
    history: History | None = None,
    bound: float = NEAR_TIE,
) -> Choice:
    """`pick`, with the distance to the nearest other outcome, as far as ``bound`` (see `Choice.near_tie`) asks."""
    _check_position(position, history)
    raw = _floating(logits)
    shifted = adjusted(raw, sampling, history)
    top = int(np.argmax(raw))
    # The error of logits grows with the logits, not with what is added to them; a penalty multiplies it.
    error = abs(float(raw[top])) * max(sampling.repetition_penalty, 1 / sampling.repetition_penalty)
    if sampling.greedy:
        token, gap = _best_two(shifted)
        return Choice(token, gap, max(1.0, error))
    scale = max(1.0, error / sampling.temperature)
    margin = bound * scale
    if shifted is not raw:
        top = int(np.argmax(shifted))
    words = raw_words(sampling.seed, position, len(raw))
    if not sampling.truncates:
        token, best, second = _perturbed_best(shifted, top, sampling.temperature, words, 1.0 + margin)
        return Choice(token, best - second, scale)
    plain = apply((temperature,), shifted, sampling, history)
    warped = apply(TRUNCATIONS, plain, sampling, history)
    top = int(np.argmax(warped))
    token, best, second = _perturbed_best(warped, top, 1.0, words, 1.0 + margin)
    gap = min(best - second, _boundary_gap(plain, warped, sampling, words, token, best, margin))
    return Choice(token, gap, scale)


def _floating(logits: Logits) -> Logits:
    """The logits as numbers with a fraction; not copied if they are."""
    values = np.asarray(logits)
    return values if np.issubdtype(values.dtype, np.floating) else values.astype(np.float64)


def log_probs(logits: Logits, sampling: Sampling, token: int, history: History | None = None) -> LogProbs:
    """How likely ``token`` is after these logits, before and after warping."""
    values = np.asarray(logits, np.float64)
    return LogProbs(_log_prob(values, token), _log_prob(scores(values, sampling, history), token))


def _log_prob(values: Scores, token: int) -> float:
    shifted = values - np.max(values)
    return min(float(np.float32(shifted[token] - np.log(np.sum(np.exp(shifted))))), 0.0)


def _check_position(position: int, history: History | None) -> None:
    if history is not None and history.position != position:
        raise ValueError(f"a choice at {position} after a text of {history.position} tokens")


def adjusted(logits: Logits, sampling: Sampling, history: History | None) -> Logits:
    """Logits after bias, penalties and least length; as they are (not even copied) where none of these is on."""
    return apply(ADJUSTMENTS, logits, sampling, history) if sampling.adjusts else logits


def _perturbed_best(
    values: Logits, top: int, warmth: float, raw: NDArray[np.uint64], slack: float
) -> tuple[int, float, float]:
    """Id of the largest score + noise, that value, and the runner-up's (or, if that is ``slack`` behind, a lower one).

    Scores are ``values / warmth`` in float64, ``top`` has the largest; ``raw`` are all ids' words. What the likeliest
    id gets is a floor for the winner. An id reaches it only if its U is below exp(score - floor), for noise of at least
    x means -log(1 - U) <= exp(-x), and -log(1 - U) > U. So no id is worth a score, a power or a logarithm unless it is
    likely or its word is among the smallest.
    """
    floor = float(values[top]) / warmth + gumbel_of_one(int(raw[top])) - slack
    # There are no scores beyond the largest number; and at temperatures near 0 a near tie is wider than any noise.
    with np.errstate(over="ignore"):
        worth = np.flatnonzero((values >= _at_most(floor - _RARE, warmth, values.dtype)) | (raw < _RARE_RAW))
        scored, bits = values[worth].astype(np.float64) / warmth, bits_of(raw[worth])
        near = bits <= np.exp(scored - floor) * 2.0**32
    worth, scored = worth[near], scored[near]
    perturbed = scored + gumbel_of(bits[near])
    index, gap = _best_two(perturbed)
    winner = float(perturbed[index])
    return int(worth[index]), winner, winner - gap


def _at_most(score: float, warmth: float, dtype: np.dtype[Any]) -> np.floating[Any]:
    """A value that nothing whose score is at least ``score`` lies below, whichever way its division was rounded."""
    value = np.float64(score - 1e-12 * (1.0 + abs(score))) * warmth
    return np.nextafter(value.astype(dtype), dtype.type(-np.inf))


def _best_two(values: Logits) -> tuple[int, float]:
    """Index of the maximum (lowest on ties) and its distance to the runner-up."""
    top = int(np.argmax(values))
    if len(values) < 2:
        return top, math.inf
    others = values.copy()
    others[top] = -np.inf
    return top, float(values[top]) - float(others[np.argmax(others)])


def _boundary_gap(
    plain: Scores,
    warped: Scores,
    sampling: Sampling,
    raw: NDArray[np.uint64],
    token: int,
    best: float,
    margin: float,
) -> float:
    """How far a truncation's boundary is from changing the choice; inf when it cannot.

    ``plain`` are the scores before truncation. Rounding can swap the last ids kept and the first ones left out. That
    matters if one of these was kept and chosen, or if one left out would have been.
    """
    kept = np.isfinite(warped)
    beyond = float(np.max(np.where(kept, -np.inf, plain)))
    if beyond == -np.inf:
        return math.inf
    insiders = np.flatnonzero(kept)
    inside = int(insiders[np.argmin(plain[insiders])])
    edge = float(plain[inside])
    first_out = np.flatnonzero(plain >= beyond - margin)
    first_out = first_out[~kept[first_out]]
    would = float(np.max(plain[first_out] + gumbel_of(bits_of(raw[first_out]))))
    could_go, could_come = plain[token] <= edge + margin, would >= best - margin
    if not (could_go or could_come):
        return math.inf
    gaps = [edge - beyond]
    if 0 < sampling.top_p < 1:
        mass = softmax(apply((top_k,), plain, sampling, None))
        total = float(np.sum(mass[kept]))
        gaps += [abs(total - float(mass[inside]) - sampling.top_p)] if could_go else []
        gaps += [abs(total - sampling.top_p)] if could_come else []
    if sampling.min_p:
        floor = min_p_floor(plain, sampling)
        gaps += [abs(edge - floor)] if could_go else []
        gaps += [abs(beyond - floor)] if could_come else []
    return min(gaps)
