"""The reduced draft vocabulary: the ids the target really writes, plus those it must be able to write."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def byte_alphabet() -> list[str]:
    """The 256 characters byte-level BPE writes bytes as (GPT-2's table), in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in set(printable) else chr(next(others)) for byte in range(256)]


def required_ids(tokenizer: dict[str, Any], stop_ids: Iterable[int]) -> set[int]:
    """Ids no draft vocabulary may lack: stop ids, special tokens, and every byte on its own.

    `tokenizer` is a parsed tokenizer.json. Without them a device that drafts alone could neither stop nor
    spell what it has no word for.
    """
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    required = {int(token["id"]) for token in tokenizer.get("added_tokens", []) if token.get("special", True)}
    required.update(int(stop) for stop in stop_ids)
    for number, character in enumerate(byte_alphabet()):
        for spelling in (character, f"<0x{number:02X}>"):
            if spelling in vocab:
                required.add(int(vocab[spelling]))
    return required


def choose_vocabulary(
    answers: Iterable[NDArray[np.int32]], required: set[int], size: int
) -> tuple[tuple[int, ...], float]:
    """The `size` most frequent answer ids with `required` always among them; and coverage.

    Order: required ids ascending, then the others by frequency, so that a prefix is the smaller vocabulary.
    Coverage is the share of answer tokens inside. Where the corpus has fewer ids, low target ids fill up
    (byte-pair ids are ordered by how early they were merged, so low ones are common).
    """
    counts: Counter[int] = Counter()
    for answer in answers:
        counts.update(answer.tolist())
    # Ids of one count in the order of the target: the same corpus gives the same vocabulary.
    frequent = sorted(counts, key=lambda token: (-counts[token], token))
    chosen = _first(size, required, frequent, itertools.count())
    return chosen, sum(counts[token] for token in chosen) / max(1, sum(counts.values()))


def resize_vocabulary(
    vocabulary: Sequence[int], required: set[int], size: int, vocab_size: int
) -> tuple[int, ...]:
    """A draft vocabulary of another size: required ids, then `vocabulary` in its order, then low target ids.

    ValueError if the target has fewer ids than `size`, or more are required.
    """
    if size > vocab_size:
        raise ValueError(f"the draft vocabulary cannot have {size} ids, the target has {vocab_size}")
    return _first(size, required, vocabulary, range(vocab_size))


def _first(size: int, required: set[int], *more: Iterable[int]) -> tuple[int, ...]:
    """The first `size` distinct ids of required (ascending) and more."""
    if len(required) > size:
        raise ValueError(f"the draft vocabulary needs {len(required)} required ids, size is {size}")
    chosen = dict.fromkeys(sorted(required))
    for token in itertools.chain(*more):
        if len(chosen) == size:
            break
        chosen[int(token)] = None
    return tuple(chosen)
