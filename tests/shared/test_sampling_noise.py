"""The choice under shared noise is worked out for few ids only; here it is for all of them, by the definition."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.shared.noise import bits_of, gumbel, gumbel_of, gumbel_of_one, raw_words, words
from outrider.shared.sampling import NEAR_TIE, Choice, Sampling, choose, law, pick, scores
from outrider.shared.warps import ADJUSTMENTS, apply, largest

Logits = NDArray[np.floating[Any]]
COARSE = 2.0**-7
"""The near-tie bound of bfloat16 targets."""


@dataclass(frozen=True, slots=True)
class Plain:
    """By the definition: the noise of the whole vocabulary, added to the scores."""

    token: int
    gap: float
    scale: float

    @classmethod
    def of(cls, logits: Logits, sampling: Sampling, position: int) -> Plain:
        """What the law's scores and the noise say."""
        perturbed = scores(logits, sampling) + gumbel(sampling.seed, position, None, len(logits))
        token = int(np.argmax(perturbed))
        rest = np.delete(perturbed, token)
        gap = float(perturbed[token] - np.max(rest)) if len(rest) else math.inf
        error = abs(float(np.max(logits))) / sampling.temperature
        return cls(token, gap, max(1.0, error))

    def agrees(self, choice: Choice, bound: float, truncates: bool) -> bool:
        """Same token; same gap, to the bit, wherever the bound could ask for it."""
        asked = min(self.gap, choice.gap) < 1.0 + bound * self.scale
        # A truncation's boundary may be nearer than the runner-up.
        gap = choice.gap <= self.gap if truncates else choice.gap == self.gap
        return choice.token == self.token and choice.scale == self.scale and (gap or not asked)


def logits_like(kind: str, seed: int, vocabulary: int, dtype: Any) -> Logits:
    """Logits of a shape that models have, or that a shortcut could stumble over."""
    rng = np.random.default_rng((seed, vocabulary))
    values = rng.normal(0.0, 3.0, vocabulary)
    if kind == "peaked":
        values[rng.integers(vocabulary)] += 25.0
    elif kind == "flat":
        values *= 1e-3
    elif kind == "ties":
        values = np.round(values)
    elif kind == "equal":
        values[:] = 1.5
    elif kind == "bfloat16":
        values = (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    elif kind == "huge":
        values *= 1e30
    elif kind == "masked":
        values[rng.permutation(vocabulary)[1:][::2]] = -np.inf
    return np.asarray(values + (0.0 if kind == "equal" else 7.0), dtype)


KINDS = ("normal", "peaked", "flat", "ties", "equal", "bfloat16", "huge", "masked")


@given(
    st.sampled_from(KINDS),
    st.integers(0, 2**32),
    st.sampled_from((1, 2, 3, 11, 300, 5000)),
    st.sampled_from((np.float32, np.float64)),
    st.floats(-6, 6).map(lambda power: 10.0**power) | st.sampled_from((0.3, 0.7, 1.0, 1e300)),
    st.sampled_from(({}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.05}, {"logit_bias": ((0, 3.0),)})),
    st.sampled_from((NEAR_TIE, COARSE)),
)
def test_few_ids_choose_what_all_do(
    kind: str,
    seed: int,
    vocabulary: int,
    dtype: Any,
    temperature: float,
    warps: dict[str, Any],
    bound: float,
) -> None:
    """Token, runner-up and scale, at any temperature, precision, truncation and shape of the law."""
    logits = logits_like(kind, seed, vocabulary, dtype)
    sampling = Sampling(temperature, seed=seed * 3_000_001 + 1, **warps)
    plain = Plain.of(logits, sampling, seed)
    choice = choose(logits, sampling, seed, bound=bound)
    assert plain.agrees(choice, bound, sampling.truncates)
    assert pick(logits, sampling, seed) == plain.token


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_whole_vocabularies_choose_alike(temperature: float) -> None:
    """At the default target's size, where rare ids win now and then: the runner-up too, to the bit."""
    rare = 0
    for position in range(150):
        logits = logits_like(KINDS[position % 3], position, 49_152, np.float32)
        sampling = Sampling(temperature, seed=9)
        plain = Plain.of(logits, sampling, position)
        assert plain.agrees(choose(logits, sampling, position), NEAR_TIE, truncates=False)
        rare += float(np.max(logits) - logits[plain.token]) / temperature > 8.0
    assert rare >= 1 or temperature < 1.0


def test_equal_scores_go_to_the_lower_id() -> None:
    """Ids with the same logit and the same word: the first wins, and the gap is 0."""

    class Same:
        """Every id has the same word."""

        def __call__(self, seed: int, position: int, vocabulary: int) -> NDArray[np.uint64]:
            del seed, position
            return np.full(vocabulary, 2**63, np.uint64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outrider.shared.sampling.raw_words", Same())
        choice = choose(np.asarray([1.0, 2.0, 2.0, 2.0], np.float32), Sampling(0.8), 3)
    assert choice == Choice(1, 0.0, 2.5) and choice.near_tie()


def test_a_tie_near_by_a_coarse_bound_is_seen() -> None:
    """At a low temperature a bfloat16 target's near ties are wider than the noise of the likeliest id."""
    seen = 0
    for position in range(200):
        logits = logits_like("normal", position, 300, np.float32) + np.float32(20.0)
        sampling = Sampling(0.05, seed=2)
        plain = Plain.of(logits, sampling, position)
        near = plain.gap < COARSE * plain.scale
        assert choose(logits, sampling, position, bound=COARSE).near_tie(COARSE) == near
        seen += near and plain.gap > 2.0
    assert seen > 10


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_of_many_are_those_of_a_sort(kind: str) -> None:
    """By (value descending, id ascending), for few and for many of a vocabulary, ties and -inf included."""
    for seed, vocabulary in ((1, 49_152), (2, 5001), (3, 33), (4, 1)):
        values = logits_like(kind, seed, vocabulary, np.float64).astype(np.float64)
        order = np.argsort(-values, kind="stable")
        for count in (1, 2, 7, 40, 1000, 1024, 8192, vocabulary):
            if count <= vocabulary:
                assert sorted(largest(values, count)) == sorted(order[:count])


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_wide_nuclei_are_the_shortest_sufficient_beginnings(temperature: float) -> None:
    """Of few, of thousands and of most ids of a vocabulary, by the definition."""
    sizes = set()
    for seed, top_p in ((1, 0.3), (2, 0.9), (3, 0.9999)):
        logits = logits_like("bfloat16", seed, 49_152, np.float32)
        chances = law(logits, Sampling(temperature))
        order = np.argsort(-(logits.astype(np.float64) / temperature), kind="stable")
        count = int(np.searchsorted(np.cumsum(chances[order]), top_p)) + 1
        kept = np.flatnonzero(np.isfinite(scores(logits, Sampling(temperature, 0, top_p))))
        assert kept.tolist() == sorted(order[:count].tolist())
        sizes.add(0 if count < 1024 else 1 if count < 8192 else 2)
    assert len(sizes) > 1 or temperature < 1.0


def test_the_adjusted_logits_are_not_written_to() -> None:
    """The caller's array is what it was."""
    logits = logits_like("normal", 4, 200, np.float32)
    before = logits.copy()
    for sampling in (Sampling(), Sampling(1.0), Sampling(1.0, 5), Sampling(1.0, logit_bias=((3, 1.0),))):
        choose(logits, sampling, 5)
        assert np.array_equal(logits, before)
    assert apply(ADJUSTMENTS, logits, Sampling(), None) is not logits


def test_raw_words_hold_the_bits() -> None:
    """The high halves are the words, and the noise of one is that of many."""
    raw = raw_words(2**64 - 1, 77, 1000)
    assert raw.dtype == np.uint64 and np.array_equal(bits_of(raw), words(2**64 - 1, 77, 1000))
    noise = gumbel_of(bits_of(raw))
    for index in range(0, 1000, 50):
        assert gumbel_of_one(int(raw[index])) == pytest.approx(float(noise[index]), rel=1e-14)


def test_threads_do_not_disturb_each_other() -> None:
    """Words asked for by four threads at once are those asked for alone."""
    alone = [raw_words(position % 3, position, 5000).tobytes() for position in range(40)]
    found: dict[int, list[bytes]] = {}

    def ask(number: int) -> None:
        order = range(40) if number % 2 else reversed(range(40))
        mine = {position: raw_words(position % 3, position, 5000).tobytes() for position in order}
        found[number] = [mine[position] for position in range(40)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[number] == alone for number in range(4))
