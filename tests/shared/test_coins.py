"""Laws of coins."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from outrider.shared.coins import Coins, Purpose, coin, question_key, turn_key

KEY = b"a key of any length"
PURPOSES = {"ACCEPT": 1, "REPLACE": 2, "BONUS": 3, "DRAFT": 5}
GOLDEN = [0.08570186596139417, 0.872720766339529, 0.0390672601447688, 0.8399743259745441, 0.7749251449379416]
GOLDEN_KEY = "b08b38b874f81a54a855f8a82dcc2c29f5fb084b19e1cf13fd65411b47887f8c"
GOLDEN_QUESTION = "eecf3a6c11b07301e9bdacd0c82827b9b4b2aa6a391a032a4073b14f7ce71073"


def test_golden_coins() -> None:
    """The same numbers for ever: a change would make replicas of different releases disagree."""
    assert [
        coin(KEY, 7, Purpose.ACCEPT),
        coin(KEY, 7, Purpose.ACCEPT, 1),
        coin(KEY, 7, Purpose.REPLACE),
        coin(KEY, 7, Purpose.ACCEPT, base=3),
        coin(b"\x00", 2**40, Purpose.DRAFT, 2**31, base=2**39),
    ] == GOLDEN
    assert turn_key(b"secret", b"session", 3).hex() == GOLDEN_KEY
    assert question_key(bytes(32), b"question").hex() == GOLDEN_QUESTION
    assert {purpose.name: purpose.value for purpose in Purpose} == PURPOSES


def test_every_part_of_the_address_counts() -> None:
    """Other key, base, position, purpose or index: another coin; the same address: the same coin."""
    addresses = list(itertools.product(range(3), range(3), Purpose, range(3)))
    thrown = {Coins(key)(*address) for key in (KEY, b"other") for address in addresses}
    assert len(thrown) == 2 * len(addresses)
    assert thrown == {Coins(key)(*address) for key in (KEY, b"other") for address in addresses}
    keys = {turn_key(s, i, t) for s in (b"a", b"b") for i in (b"", b"x", b"x\0") for t in (0, 1)}
    keys |= {question_key(turn, question) for turn in sorted(keys) for question in (b"", b"x", b"y")}
    assert len(keys) == 48


def test_coins_are_uniform_in_the_half_open_interval() -> None:
    """20,000 coins in 64 cells: chi-square below its 99.99 % point (107.3 at 63 degrees); none reaches 1."""
    thrown = np.asarray([coin(KEY, position, Purpose.ACCEPT) for position in range(20_000)])
    assert 0.0 <= thrown.min() and thrown.max() < 1.0
    counts = np.histogram(thrown, 64, (0.0, 1.0))[0]
    assert float(((counts - 20_000 / 64) ** 2 / (20_000 / 64)).sum()) < 116.0
    assert (thrown * 2.0**53 == np.floor(thrown * 2.0**53)).all()


@pytest.mark.parametrize("key", [b"", b"x" * 65])
def test_a_key_of_no_use_is_refused(key: bytes) -> None:
    """Coins that anybody could throw, and keys BLAKE2b cannot take."""
    with pytest.raises(ValueError, match="1 to 64 bytes"):
        Coins(key)
