"""Text from a growing, sometimes shortened, sequence of ids: valid at every step, equal to decoding all at once.

What may still change is held back: an incomplete character, or for tokenizers with byte tokens a run of these. Each
token's share of the text is remembered, so that taking tokens back costs nothing, and each costs the same however
long the text is.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from outrider.shared.tokenizer import Tokenizer

MAX_HELD = 64
"""Byte tokens in a row after which a tokenizer without byte-level decoder shows what there is."""

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# ESC sequences (CSI; OSC, DCS, SOS, PM, APC up to their end; two-character ones), then what is left of C0, DEL and C1.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    """``text`` without terminal control sequences, control characters (but newline and tab) and direction overrides."""
    return _CONTROL.sub("", text)


class _State(NamedTuple):
    """What the next token's text depends on: bytes held back, or the window's ids."""

    held: bytes = b""
    before: tuple[int, ...] = ()
    """Ids whose text is out and that the next ones are decoded behind."""
    waiting: tuple[int, ...] = ()
    """Ids whose text is not out yet."""


class _Step(Protocol):
    def push(self, state: _State, token_id: int) -> tuple[str, _State]: ...

    def finish(self, state: _State) -> str: ...


class StreamDecoder:
    """The text of ids as they come and go. The pieces joined equal ``tokenizer.decode(ids)`` after `finish`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._special = tokenizer.special_ids
        self._text_of = tokenizer.backend.id_to_token
        self._step: _Step = _Bytes(tokenizer) if _byte_level(tokenizer) else _Window(tokenizer)
        self._pieces: list[str] = []
        self._states = [_State()]
        self._last = ""

    @property
    def length(self) -> int:
        """Tokens pushed and not taken back."""
        return len(self._pieces)

    @property
    def text(self) -> str:
        """All text given out and not taken back."""
        return "".join(self._pieces) + self._last

    def push(self, ids: Sequence[int]) -> str:
        """Append ids; the text that is stable now and was not before. Never after `finish` without a rollback."""
        before = len(self._pieces)
        for token_id in ids:
            state, piece = self._states[-1], ""
            if token_id not in self._special and self._text_of(token_id) is not None:
                piece, state = self._step.push(state, token_id)
            self._pieces.append(piece)
            self._states.append(state)
        return "".join(self._pieces[before:])

    def rollback(self, length: int) -> str:
        """Cut to ``length`` tokens; the text that this takes away from the end."""
        length = max(length, 0)
        gone = "".join(self._pieces[length:]) + self._last
        self._last = ""
        del self._pieces[length:]
        del self._states[length + 1 :]
        return gone

    def finish(self) -> str:
        """The text still held back; `rollback` makes the decoder usable again."""
        if self._last:
            return ""
        self._last = self._step.finish(self._states[-1])
        return self._last


class _Bytes:
    """Byte-level tokenizers: every token is some bytes, whatever stands around it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._text_of = tokenizer.backend.id_to_token
        self._known: dict[int, bytes] = {}

    def push(self, state: _State, token_id: int) -> tuple[str, _State]:
        """The characters completed by this token."""
        decoder = _utf8()
        text = decoder.decode(state.held + self._bytes(token_id))
        held = decoder.getstate()[0]
        return text, _State(held) if held else _EMPTY

    def finish(self, state: _State) -> str:
        """The incomplete rest, as a replacement character."""
        return _utf8().decode(state.held, final=True)

    def _bytes(self, token_id: int) -> bytes:
        found = self._known.get(token_id)
        if found is None:
            text = self._text_of(token_id) or ""
            # As the tokenizers library: a token with a character outside the alphabet stands for itself.
            spelled = [_BYTE_OF.get(character, -1) for character in text]
            found = text.encode() if -1 in spelled else bytes(spelled)
            self._known[token_id] = found
        return found


class _Window:
    """Any tokenizer: decode the last few tokens with and without the new one, and show the difference."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._text_of = tokenizer.backend.id_to_token

    def push(self, state: _State, token_id: int) -> tuple[str, _State]:
        """New text, unless it may still change."""
        waiting = (*state.waiting, token_id)
        text = self._new(state.before, waiting)
        unfinished = text.endswith(_REPLACEMENT) or self._is_byte(token_id)
        if not text or (unfinished and len(waiting) < MAX_HELD):
            return "", state._replace(waiting=waiting[-MAX_HELD:] if not text else waiting)
        return text, _State(before=waiting)

    def finish(self, state: _State) -> str:
        """What is still waiting, as it decodes now."""
        return self._new(state.before, state.waiting) if state.waiting else ""

    def _new(self, before: tuple[int, ...], waiting: tuple[int, ...]) -> str:
        known = self._decode(before) if before else ""
        return self._decode((*before, *waiting))[len(known) :]

    def _is_byte(self, token_id: int) -> bool:
        return _BYTE_TOKEN.fullmatch(self._text_of(token_id) or "") is not None


_EMPTY = _State()


def _utf8() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


def _byte_level(tokenizer: Tokenizer) -> bool:
    decoder = tokenizer.backend.decoder
    return decoder is not None and json.loads(decoder.__getstate__()).get("type") == "ByteLevel"


def _byte_alphabet() -> dict[str, int]:
    """Character → byte of byte-level BPE (GPT-2's table): printable ones are themselves, the others follow from 256."""
    plain = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
    others = (byte for byte in range(256) if byte not in plain)
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
