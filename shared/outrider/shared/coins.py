"""Coins: uniform numbers fixed by a key and an address, never by a generator's state.

A coin is keyed BLAKE2b (RFC 7693) of its address, so a verdict that is asked for again is thrown with the same coins
and comes out the same on any replica that has the key. The address is

    base      length of the committed text when the round began
    position  absolute position of the token the coin is about
    purpose   what the coin decides
    index     which of several at that position: the node of the draft

The base belongs to it because some rules throw coins behind the token that ends the round (block verification looks at
every drafted token): thrown again in the next round, they would tell of the last one's outcome, and the text would no
longer follow the target's law. Rounds of a turn have different bases, turns have different keys.

The key is that of a turn and, within it, of everything that is judged (`question_key`): the device decides what is
asked, and must not know the answer beforehand from having asked something else.

These streams have nothing to do with the shared noise of `outrider.shared.noise`, which the device knows in advance: a
device that knew these could choose its draft by them.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

_PERSON = b"outrider coin 01"
"""Keeps these digests apart from any other use of the key; the number changes whenever any coin would."""
_ADDRESS = struct.Struct("<QQII")
_BITS = 53
"""A coin is a multiple of 2^-53: every float64 in [0, 1) with that spacing is equally likely."""


class Purpose(IntEnum):
    """What a coin decides. No two purposes share a stream."""

    ACCEPT = 1
    """Whether a drafted token stands."""
    REPLACE = 2
    """Which token stands in its place."""
    BONUS = 3
    """Which token follows an accepted draft."""
    DRAFT = 5
    """Which token the device drafts; its key is the device's own."""


class CoinSource(Protocol):
    """Throws coins. `Coins` in earnest; tests put enumerations in its place."""

    def __call__(self, base: int, position: int, purpose: Purpose, index: int = 0) -> float:
        """The coin of that address, in [0, 1)."""


@dataclass(frozen=True, slots=True)
class Coins:
    """The coins of one key."""

    key: bytes
    """1 to 64 bytes, known to nobody who chooses what is judged. Raises ValueError otherwise."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.key) <= hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError(f"a coin key has 1 to {hashlib.blake2b.MAX_KEY_SIZE} bytes, not {len(self.key)}")

    def __call__(self, base: int, position: int, purpose: Purpose, index: int = 0) -> float:
        """The coin of that address, a multiple of 2^-53 in [0, 1)."""
        return coin(self.key, position, purpose, index, base=base)


def coin(key: bytes, position: int, purpose: Purpose, index: int = 0, *, base: int = 0) -> float:
    """The coin of that key and address, a multiple of 2^-53 in [0, 1); see the module."""
    address = _ADDRESS.pack(base, position, int(purpose), index)
    digest = hashlib.blake2b(address, digest_size=8, key=key, person=_PERSON).digest()
    return (int.from_bytes(digest, "little") >> (64 - _BITS)) * 2.0**-_BITS


def turn_key(secret: bytes, session: bytes, turn: int) -> bytes:
    """The coin key of one turn of a session, 32 bytes: what replicas with the same ``secret`` agree on."""
    text = struct.pack("<H", len(session)) + session + struct.pack("<Q", turn)
    return hashlib.blake2b(text, digest_size=32, key=secret, person=b"outrider turn 01").digest()


def question_key(turn: bytes, question: bytes) -> bytes:
    """The coin key of one question of the turn whose key is ``turn``, 32 bytes.

    ``question`` names everything that a verdict depends on and the device has a say in. A verdict that is asked for
    again is then thrown with the same coins, and whoever changes anything about it gets others: what a device has
    learned of coins, by asking twice or elsewhere, says nothing about a draft that was not judged yet.
    """
    return hashlib.blake2b(question, digest_size=32, key=turn, person=b"outrider asks 01").digest()
