"""Text to ids and back without torch or transformers, from one file that both sides can compare.

The *tokenizer artefact* is canonical JSON (sorted keys, compact, UTF-8) with everything that decides about ids::

    {"chat_template": str, "format": 1, "special_tokens": {"bos_token": str, ...}, "stop_ids": [int, ...],
     "tokenizer": <the object of tokenizer.json>}

Its SHA-256 is ``Fingerprints.tokenizer``. A verifier builds it from its model folder and serves it; a device finds it
in its bundle or fetches it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.shared.chat import ChatTemplate
from outrider.shared.errors import BundleError, ConfigError

FORMAT = 1
MAX_ARTEFACT_BYTES = 64 << 20
NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_turn|>", "<end_of_turn>", "<|end|>")
"""Special tokens that end an assistant's turn in common chat formats; stop ids wherever a tokenizer has them."""

_BODY = b',"tokenizer":{'


def build_artefact(folder: Path) -> bytes:
    """The artefact of a model folder. Raises ConfigError if the folder lacks a readable tokenizer.json."""
    tokenizer = _read(folder / "tokenizer.json", required=True)
    settings = _read(folder / "tokenizer_config.json")
    named = {name: _content(settings.get(name)) for name in NAMED_TOKENS}
    template = folder / "chat_template.jinja"
    if template.is_file():
        text = template.read_text(encoding="utf-8")
    else:
        text = _default_template(settings.get("chat_template"))
    stops: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        found = _read(folder / name).get("eos_token_id")
        stops.update(found if isinstance(found, list) else [] if found is None else [found])
    return make_artefact(tokenizer, text, stops, {name: value for name, value in named.items() if value})


def make_artefact(
    tokenizer: Mapping[str, Any],
    chat_template: str,
    stop_ids: Sequence[int] | set[int],
    named: Mapping[str, str],
) -> bytes:
    """The artefact of parts: the object of a tokenizer.json, a template, end ids, and special tokens by name.

    The end-of-text token and the turn ends the tokenizer knows are added to the stop ids.
    """
    added = {str(token["content"]): int(token["id"]) for token in tokenizer.get("added_tokens", [])}
    ends = {added[text] for text in (named.get("eos_token", ""), *TURN_ENDS) if text in added}
    parts = {
        "format": FORMAT,
        "tokenizer": tokenizer,
        "chat_template": chat_template,
        "stop_ids": sorted(ends | {int(stop) for stop in stop_ids}),
        "special_tokens": dict(named),
    }
    return json.dumps(parts, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


class Tokenizer:
    """What an artefact says. Made once, used by one thread or many."""

    def __init__(self, artefact: bytes, parts: Mapping[str, Any], body: str) -> None:
        """Use `from_artefact`."""
        import tokenizers  # imported late: 0.1 s that --help does not need

        try:
            self.backend = tokenizers.Tokenizer.from_str(body)
        except Exception as error:  # the library raises bare Exception
            raise BundleError(f"the tokenizer cannot be read: {error}") from error
        self.backend.no_truncation()
        self.backend.no_padding()
        self.artefact = artefact
        """The bytes this was made from."""
        self.sha256 = hashlib.sha256(artefact).digest()
        """Of the artefact: the tokenizer fingerprint."""
        self.stop_ids: tuple[int, ...] = tuple(int(stop) for stop in parts["stop_ids"])
        """Ids that end a turn."""
        self.special_tokens: dict[str, str] = {str(k): str(v) for k, v in parts["special_tokens"].items()}
        """Texts of the beginning-of-text token and its like, by name."""
        self.vocabulary = max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """One more than the highest id that has a text; a target may have spare ids beyond."""
        self._template = ChatTemplate(str(parts["chat_template"]), self.special_tokens)
        added = self.backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        """Ids that never show in decoded text."""

    @classmethod
    def from_artefact(cls, artefact: bytes) -> Tokenizer:
        """The tokenizer of an artefact. Raises BundleError if it is none, damaged, too large or of a newer format."""
        if len(artefact) > MAX_ARTEFACT_BYTES:
            raise BundleError(
                f"a tokenizer file of {len(artefact)} bytes, at most {MAX_ARTEFACT_BYTES} are read"
            )
        try:
            parts, body = _split(artefact)
            return cls(artefact, parts, body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BundleError(f"not a tokenizer file ({type(error).__name__})") from error

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a model folder; errors as `build_artefact` and `from_artefact`."""
        return cls.from_artefact(build_artefact(folder))

    def encode(self, text: str, special: bool = False) -> tuple[int, ...]:
        """Ids of a text; ``special`` puts the tokenizer's own beginning and end tokens around it.

        Special tokens spelled out in the text become their ids.
        """
        return tuple(self.backend.encode(text, add_special_tokens=special).ids)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> tuple[int, ...]:
        """Ids of a conversation ({"role", "content"} each) in the target's chat format.

        With ``add_generation_prompt`` they end where the assistant's answer begins. Raises InvalidField ("messages")
        for what the template refuses, ConfigError if the target has no template.
        """
        return self.encode(self._template.render(messages, add_generation_prompt))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out; bytes that are no UTF-8 become U+FFFD."""
        return str(self.backend.decode(list(ids), skip_special_tokens=True))


def _split(artefact: bytes) -> tuple[dict[str, Any], str]:
    """An artefact's small parts, and the tokenizer's JSON as text.

    Canonical order puts the large object last, so that it can be handed on without being parsed here.
    """
    head, found, tail = artefact.partition(_BODY)
    if found and tail.endswith(b"}"):
        parts, body = json.loads(head + b"}"), "{" + tail[:-1].decode()
    else:
        parts = json.loads(artefact)
        body = json.dumps(parts["tokenizer"])
    if not isinstance(parts, dict) or not isinstance(parts.get("format"), int):
        raise ValueError("no format")
    if parts["format"] > FORMAT:
        raise BundleError(
            f"a tokenizer file of format {parts['format']}, this program reads up to {FORMAT}",
            remedy="update outrider",
        )
    return parts, body


def _read(path: Path, *, required: bool = False) -> dict[str, Any]:
    """A JSON object on disk; {} if it is not there and need not be."""
    if not path.is_file():
        if required:
            raise ConfigError(
                "--target", f"{path.parent} has no {path.name}", remedy="use a complete model folder"
            )
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("--target", f"{path} cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise ConfigError("--target", f"{path} holds no JSON object")
    return found


def _content(token: Any) -> str:
    """The text of a special token, which a configuration writes as text or as an object."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _default_template(found: Any) -> str:
    """A configuration's template: one text, or several by name of which "default" counts."""
    if isinstance(found, list):
        return next((str(entry.get("template")) for entry in found if entry.get("name") == "default"), "")
    return str(found or "")
