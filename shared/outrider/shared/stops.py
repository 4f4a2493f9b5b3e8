"""Stop strings: where they end a text that grows token by token.

They are the device's business: a verifier knows stop ids only. The text ends before the earliest stop string in it,
which may lie across tokens, and the ids end with the token that completes it. What may yet turn out to begin one is
held back.

A turn's least length holds for them as for stop ids: they are looked for behind its first ``min_tokens`` tokens only,
whose text is the first ``least`` characters. One that begins earlier is not seen, wherever it ends.
"""

from __future__ import annotations

from collections.abc import Sequence


def cut(text: str, stops: Sequence[str], least: int = 0) -> str:
    """``text`` before the earliest stop string behind ``least`` characters; all of it where there is none."""
    ends = [at for stop in stops if (at := text.find(stop, least)) >= 0]
    return text[: min(ends)] if ends else text


def settled(text: str, stops: Sequence[str], least: int = 0) -> str:
    """The part of ``text`` that stands however it goes on: before a stop string, and without an end that begins one."""
    before = cut(text, stops, least)
    if len(before) < len(text):
        return before
    return text[: len(text) - max((_begun(text[least:], stop) for stop in stops), default=0)]


def completes(before: str, piece: str, stops: Sequence[str], least: int = 0) -> bool:
    """Whether a stop string ends within ``piece``, which follows ``before`` (of which only the end is looked at)."""
    start = max(len(before) - max((len(stop) for stop in stops), default=0), least)
    tail = before[start:] + piece[max(start - len(before), 0) :]
    return any(stop in tail for stop in stops)


def _begun(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` with which ``stop`` begins, short of all of it."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
