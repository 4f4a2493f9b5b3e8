"""The answer as it stands on display: tokens with their labels, their text, and where a stop string ends it.

Text is decoded token by token so that a stop string can be placed at the token that completes it. Only the end of the
text is decoded again for each token, so that the cost of one does not grow with the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.client.events import Label
from outrider.shared.sampling import LogProbs
from outrider.shared.stops import cut, settled
from outrider.shared.textstream import StreamDecoder
from outrider.shared.tokenizer import Tokenizer

UNVERIFIED = (Label.PROVISIONAL, Label.KEPT)


@dataclass(frozen=True, slots=True)
class Piece:
    """One token on display. ``text`` may be empty: a character can take several tokens."""

    position: int
    token_id: int
    label: Label
    text: str
    log_probs: LogProbs | None = None
    """How likely the target found it, where that was asked for and the target has decided."""


class Display:
    """Tokens of one answer from position ``start`` on, as a view sees them."""

    def __init__(self, start: int, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        """``stops`` are looked for behind the first ``min_tokens`` tokens."""
        self.start = start
        self.pieces: list[Piece] = []
        self._stops = tuple(stop for stop in stops if stop)
        self._least = min_tokens

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + len(self.pieces)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids on display."""
        return tuple(piece.token_id for piece in self.pieces)

    @property
    def verified(self) -> int:
        """How many leading tokens the target has decided."""
        return next((i for i, piece in enumerate(self.pieces) if piece.label in UNVERIFIED), len(self.pieces))

    def settled(self, count: int) -> str:
        """The text of the first ``count`` tokens without an end that may yet turn out to begin a stop string."""
        return settled("".join(piece.text for piece in self.pieces[:count]), self._stops, self._open(count))

    def standing(self, count: int) -> int:
        """How many of the first ``count`` tokens no stop string that has begun can yet reach into."""
        if not self._stops:
            return count
        left = len(self.settled(count))
        for index, piece in enumerate(self.pieces[:count]):
            left -= len(piece.text)
            if left < 0:
                return index
        return count

    def text(self, count: int | None = None) -> str:
        """The text of the first ``count`` tokens (all by default), cut before a stop string."""
        pieces = self.pieces if count is None else self.pieces[:count]
        return cut("".join(piece.text for piece in pieces), self._stops, self._open(len(pieces)))

    def _open(self, count: int) -> int:
        """Characters of the first ``count`` tokens among which no stop string is looked for."""
        return sum(len(piece.text) for piece in self.pieces[: min(self._least, count)]) if self._stops else 0


class Transcript(Display):
    """The display of an answer under way, which decodes its tokens."""

    def __init__(
        self, tokenizer: Tokenizer, start: int, stops: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        super().__init__(start, stops, min_tokens)
        self._decoder = StreamDecoder(tokenizer)
        self._reach = max((len(stop) for stop in self._stops), default=0)

    def emit(
        self,
        start: int,
        ids: Sequence[int],
        labels: Sequence[Label],
        log_probs: Sequence[LogProbs | None] = (),
    ) -> list[Piece]:
        """Append tokens; the new pieces."""
        if start != self.end:
            raise ValueError(f"tokens at {start}, but the display ends at {self.end}")
        fresh = []
        told = log_probs or (None,) * len(ids)
        for token_id, label, likely in zip(ids, labels, told, strict=True):
            fresh.append(Piece(self.end, token_id, label, self._decoder.push((token_id,)), likely))
            self.pieces.append(fresh[-1])
        return fresh

    def relabel(self, start: int, labels: Sequence[Label], log_probs: Sequence[LogProbs | None] = ()) -> None:
        """Give tokens on display new labels."""
        told = log_probs or (None,) * len(labels)
        for offset, (label, likely) in enumerate(zip(labels, told, strict=True), start - self.start):
            if 0 <= offset < len(self.pieces):
                self.pieces[offset] = replace(self.pieces[offset], label=label, log_probs=likely)

    def revise(self, start: int) -> list[Piece]:
        """Take back everything from ``start`` on; what was taken back."""
        keep = max(start - self.start, 0)
        gone = self.pieces[keep:]
        del self.pieces[keep:]
        self._decoder.rollback(keep)
        return gone

    def close(self) -> None:
        """The answer is complete: give out what an unfinished character left, and drop text from a stop string on."""
        rest = self._decoder.finish()
        if rest and self.pieces:
            self.pieces[-1] = replace(self.pieces[-1], text=self.pieces[-1].text + rest)
        left = len(self.text())
        for index, piece in enumerate(self.pieces):
            if len(piece.text) > left:
                self.pieces[index] = replace(piece, text=piece.text[:left])
            left -= len(self.pieces[index].text)

    def stop_after(self, first: int) -> int | None:
        """Length at which a stop string is complete, looking only at tokens from position ``first`` on."""
        if not self._stops:
            return None
        begin = max(first - self.start, self._least, 0)
        text = "".join(piece.text for piece in self.pieces[self._least : begin])[-self._reach :]
        for piece in self.pieces[begin:]:
            text = (text + piece.text)[-(self._reach + len(piece.text)) :]
            if any(stop in text for stop in self._stops):
                return piece.position + 1
        return None
