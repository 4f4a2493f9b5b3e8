"""The reduced draft vocabulary: the ids the target really writes, plus those it must be able to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
    """The `size` most frequent answer ids with `required` always among them, ascending; and coverage.

    Coverage is the share of answer tokens inside. Where the corpus has fewer ids, low target ids fill up
    (byte-pair ids are ordered by how early they were merged, so low ones are common).
    """
    if len(required) > size:
        raise ValueError(f"the draft vocabulary needs {len(required)} required ids, size is {size}")
    counts: Counter[int] = Counter()
    for answer in answers:
        counts.update(answer.tolist())
    chosen = set(required)
    for token, _ in counts.most_common():
        if len(chosen) == size:
            break
        chosen.add(token)
    filler = 0
    while len(chosen) < size:
        chosen.add(filler)
        filler += 1
    total = sum(counts.values())
    return tuple(sorted(chosen)), sum(counts[token] for token in chosen) / max(1, total)
