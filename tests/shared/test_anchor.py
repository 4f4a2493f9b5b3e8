"""The rolling hash of prefixes: golden values and the laws of the incremental form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.shared.anchor import EMPTY, TokenSequence, extend

GOLDEN = json.loads(Path(__file__).with_name("anchor.json").read_text())


def test_golden_values() -> None:
    """The hashes are those that the first device shipped with."""
    for case in GOLDEN["cases"]:
        assert f"{extend(EMPTY, case['ids']).hash:016x}" == case["hash"]
    assert f"{EMPTY.hash:016x}" == GOLDEN["empty"]


def test_incremental_equals_whole() -> None:
    """Every prefix's anchor equals the one computed from the ids alone, whatever the append sizes."""
    sequence = TokenSequence()
    ids = [(i * 7919) % 49152 for i in range(50)]
    for start in (0, 1, 4, 20):
        sequence.append(ids[len(sequence) : start])
    sequence.append(ids[len(sequence) :])
    for length in range(51):
        assert sequence.anchor_at(length) == extend(EMPTY, ids[:length])
        assert sequence.contains(extend(EMPTY, ids[:length]))
    assert not sequence.contains(extend(EMPTY, [*ids[:10], 1]))
    assert not sequence.contains(extend(EMPTY, [*ids, 1]))


def test_cut_and_append_again() -> None:
    """After a cut the other branch has its own hashes."""
    sequence = TokenSequence([1, 2, 3, 4])
    old = sequence.anchor
    sequence.cut(2)
    assert sequence.ids == [1, 2] and sequence.anchor == extend(EMPTY, [1, 2])
    sequence.append([9, 4])
    assert sequence.anchor.length == old.length and sequence.anchor.hash != old.hash
    with pytest.raises(IndexError):
        sequence.anchor_at(5)
