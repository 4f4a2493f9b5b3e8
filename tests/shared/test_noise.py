"""Laws of the shared noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outrider.shared.noise import GUMBEL_MAX, gumbel, words

# Random123's Philox4x64-10: counter, key, output words.
GOLDEN_BLOCKS = [
    ((0, 0, 0, 0), (0, 0), (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)),
    ((1, 0, 0, 0), (7, 9), (0x5AC49A5AA6B07890, 0x05930C877546FC4E, 0xF11384D40C6643B6, 0xEDDEA8620F029B3F)),
    (
        (2**64 - 1, 5, 2**63, 1),
        (2**64 - 1, 12345678901234567),
        (0xBFF89099E445F9D8, 0xE0D31EDFE94A8685, 0x81951F4B7024C9E5, 0xC267F8A075162393),
    ),
]

GOLDEN_WORDS = [  # seed, position, token id, word
    (0, 0, 0, 0x16554D9E),
    (0, 0, 3, 0x7E68B68A),
    (7, 9, 4, 0x5AC49A5A),
    (7, 9, 6, 0xF11384D4),
]


def philox4x64(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x64-10 as published (Salmon et al., SC 2011), in plain integers."""
    mask = 2**64 - 1
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first, second = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (second >> 64) ^ c1 ^ k0, second & mask, (first >> 64) ^ c3 ^ k1, first & mask
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return c0, c1, c2, c3


@pytest.mark.parametrize(("counter", "key", "expected"), GOLDEN_BLOCKS)
def test_blocks_are_the_published_ones(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    """The reference implementation gives its known words, and numpy's generator the same from a counter one lower."""
    assert philox4x64(counter, key) == expected
    before = (sum(part << (64 * place) for place, part in enumerate(counter)) - 1) % 2**256
    numpy_words = np.random.Philox(counter=before, key=key[0] | key[1] << 64).random_raw(4)
    assert tuple(int(word) for word in numpy_words) == expected


@pytest.mark.parametrize(("seed", "position", "token", "expected"), GOLDEN_WORDS)
def test_words_are_addressed_by_token_id(seed: int, position: int, token: int, expected: int) -> None:
    """Token id t reads the high half of word t % 4 of block t // 4."""
    assert int(words(seed, position, 8)[token]) == expected


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (2**64 - 1, 3), (12345, 2**32)])
def test_every_word_is_its_own_block(seed: int, position: int) -> None:
    """For ids across a vocabulary the word equals the reference block's, computed alone."""
    made = words(seed, position, 49_152)
    for token in (0, 1, 2, 3, 4, 1001, 25_002, 49_151):
        block = philox4x64((token // 4, 0, 0, 0), (seed, position))
        assert int(made[token]) == block[token % 4] >> 32


def test_golden_noise() -> None:
    """The noise itself, from the word, by the formula in plain Python."""
    for seed, position, token, word in GOLDEN_WORDS:
        expected = -math.log(-math.log1p(-(word + 0.5) * 2.0**-32))
        assert gumbel(seed, position, np.asarray([token]), 8)[0] == pytest.approx(expected, rel=1e-15)


def test_every_way_to_ask_gives_the_same_bits() -> None:
    """Few ids, many ids and the whole vocabulary read the same words, in any order and of any vocabulary."""
    whole = gumbel(2**63 + 5, 1234, None, 3001)
    few = np.asarray([2999, 0, 17, 17, 3000])
    many = np.arange(3000, -1, -1)
    assert np.array_equal(gumbel(2**63 + 5, 1234, few, 3001), whole[few])
    assert np.array_equal(gumbel(2**63 + 5, 1234, many, 3001), whole[many])
    assert np.array_equal(gumbel(2**63 + 5, 1234, None, 500), whole[:500])


def test_seeds_and_positions_are_different_streams() -> None:
    """No seed or position repeats another's noise, not even when seed and position change places."""
    streams = {gumbel(seed, position, None, 64).tobytes() for seed in range(6) for position in range(6)}
    assert len(streams) == 36


def test_the_noise_is_gumbel_and_finite() -> None:
    """400,000 values: finite, within the stated bound, mean and variance of a standard Gumbel."""
    values = np.concatenate([gumbel(3, position, None, 40_000) for position in range(10)])
    assert np.isfinite(values).all() and values.max() < GUMBEL_MAX
    assert values.mean() == pytest.approx(0.5772, abs=0.01)
    assert values.var() == pytest.approx(math.pi**2 / 6, abs=0.02)
    extremes = -np.log(-np.log1p(-(np.asarray([0, 2**32 - 1]) + 0.5) * 2.0**-32))
    assert np.isfinite(extremes).all() and extremes[0] < GUMBEL_MAX
