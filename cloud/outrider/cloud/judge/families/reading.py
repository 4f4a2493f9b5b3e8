"""Reading the result out of an answer: a number, one of some words, a letter, a word.

The result is looked for behind the first mark ("Answer:", "the answer is") whose line or sentence has one, and without
such a mark in the whole text. Behind a mark nothing that follows its sentence can change the result: then the answer is
*settled*, and writing on is of no use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

_MARK = re.compile(r"\banswer(?:\s+is)?\s*:|\banswer\s+is\b", re.IGNORECASE)
_END = re.compile(r"\n|[.!?]\s")


class Reader(Protocol):
    """How one kind of result is found."""

    def behind_mark(self, sentence: str) -> str | None:
        """The result in what stands behind a mark."""

    def anywhere(self, text: str) -> str | None:
        """The result of a text without marks."""


def read(text: str, reader: Reader) -> str | None:
    """The result of an answer, in the form families compare; None if there is none."""
    for sentence, _ in _marked(text):
        found = reader.behind_mark(sentence)
        if found is not None:
            return found
    return reader.anywhere(text)


def settled(text: str, reader: Reader) -> bool:
    """Whether no continuation can change what `read` finds."""
    for sentence, ended in _marked(text):
        if not ended:
            return False
        if reader.behind_mark(sentence) is not None:
            return True
    return False


def _marked(text: str) -> Iterator[tuple[str, bool]]:
    """What stands behind each mark up to its sentence's end, and whether that end was reached."""
    for mark in _MARK.finditer(text):
        behind = text[mark.end() :].lstrip(" \t\n*")
        end = _END.search(behind)
        yield (behind[: end.start()] if end else behind), end is not None


@dataclass(frozen=True, slots=True)
class NumberReader:
    """A whole number. In a sentence that calculates, the one behind the last "="."""

    def behind_mark(self, sentence: str) -> str | None:
        """The first number behind the last "=" of the sentence."""
        found = _NUMBER.search(sentence.rpartition("=")[2])
        return None if found is None else str(int(found.group()))

    def anywhere(self, text: str) -> str | None:
        """The last number of the text."""
        found = _NUMBER.findall(text)
        return str(int(found[-1])) if found else None


_NUMBER = re.compile(r"(?<![\w.,])\d{1,9}(?![\w]|[.,]\d)")


@dataclass(frozen=True, slots=True)
class WordsReader:
    """One of some words or phrases, whatever their case."""

    words: tuple[str, ...]
    first: bool = False
    """Without a mark: the first mention counts, not the last."""

    def behind_mark(self, sentence: str) -> str | None:
        """The first mention."""
        found = self._mentions(sentence)
        return found[0] if found else None

    def anywhere(self, text: str) -> str | None:
        """The first or the last mention."""
        found = self._mentions(text)
        return found[0 if self.first else -1] if found else None

    def _mentions(self, text: str) -> Sequence[str]:
        longest = sorted(self.words, key=len, reverse=True)
        pattern = r"(?<!\w)(?:" + "|".join(map(re.escape, longest)) + r")(?!\w)"
        return [one.lower() for one in re.findall(pattern, text, re.IGNORECASE)]


@dataclass(frozen=True, slots=True)
class LetterReader:
    """The letter of an option, A to D."""

    def behind_mark(self, sentence: str) -> str | None:
        """The first capital that stands alone."""
        found = re.search(r"(?<![\w'])[A-D](?![\w'])", sentence)
        return found.group() if found else None

    def anywhere(self, text: str) -> str | None:
        """The first capital with a bracket, colon or full stop behind it, or that is the whole text."""
        found = re.search(r"(?<![\w'])([A-D])(?:[).:]|\s*$)", text)
        return found.group(1) if found else None


@dataclass(frozen=True, slots=True)
class SpelledReader:
    """A made word of a few letters; hyphens and spaces between single letters do not count."""

    def behind_mark(self, sentence: str) -> str | None:
        """The first word."""
        found = _SPELLED.search(sentence)
        return _joined(found.group()) if found else None

    def anywhere(self, text: str) -> str | None:
        """The last word in quotation marks, or else the last word."""
        quoted = re.findall(r"[\"“']([A-Za-z](?:[- ]?[A-Za-z])*)[.,]?[\"”']", text)
        if quoted:
            return _joined(quoted[-1])
        found = _SPELLED.findall(text)
        return _joined(found[-1]) if found else None


_SPELLED = re.compile(r"[A-Za-z](?:-[A-Za-z])+(?![A-Za-z])|[A-Za-z](?: [A-Za-z])+(?![A-Za-z])|[A-Za-z]+")


def _joined(word: str) -> str:
    return word.replace("-", "").replace(" ", "").lower()
