"""`outrider-cloud generate`: the target alone on one prompt, printed as text or as one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from dataclasses import dataclass, field

from outrider.cloud.engine import Engine
from outrider.cloud.generate import Said, say
from outrider.cloud.target import Target, load_target
from outrider.cloud.worker import Worker
from outrider.shared.errors import InvalidField
from outrider.shared.sampling import Sampling
from outrider.shared.stops import completes, cut, settled
from outrider.shared.textstream import StreamDecoder
from outrider.shared.tokenizer import Tokenizer

KV_BYTES = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to generate after: a message, raw text, or ids."""

    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    """Ids used as they are, instead of ``prompt``."""
    system: str | None = None
    raw: bool = False
    """Continue ``prompt`` as text, without the chat template."""
    max_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    stops: tuple[str, ...] = ()
    """Stop strings: the text ends before the first of them behind the sampling's least length."""
    log_probs: bool = False
    """Say how likely each token was; in the JSON object only."""


def run_oracle(question: Question, *, target: str, dtype: str, threads: int, as_json: bool) -> None:
    """Generate and print.

    Raises InvalidField for ids of another vocabulary, ConfigError for a target that cannot be used.
    """
    loaded = load_target(target, dtype, threads, report=lambda line: print(line, file=sys.stderr))
    tokenizer = Tokenizer.from_folder(loaded.folder)
    stops = end_ids(loaded, tokenizer)
    prompt = _prompt_ids(question, tokenizer, loaded)
    beyond = [token_id for token_id, _ in question.sampling.logit_bias if token_id >= loaded.vocabulary]
    if beyond:
        raise InvalidField(
            "sampling.logit_bias", f"id {beyond[0]} is outside the vocabulary of {loaded.vocabulary}"
        )
    worker = Worker(Engine(loaded, KV_BYTES))
    limit = min(question.max_tokens, loaded.max_context - len(prompt))
    answer = _Answer(tokenizer, stops, question.stops, question.sampling.min_tokens)
    printed = 0
    for said in say(worker, prompt, question.sampling, limit, stops, log_probs=question.log_probs):
        answer.take(said)
        if not as_json:
            text = answer.settled()
            print(text[printed:], end="", flush=True)
            printed = len(text)
        if answer.finish == "stop":
            break
    text = answer.whole()
    if as_json:
        print(json.dumps({"prompt_ids": list(prompt), **answer.as_json(text)}, ensure_ascii=False))
    else:
        print(text[printed:])


def end_ids(target: Target, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that end a turn unless a device says otherwise: the model's and the chat format's."""
    return tuple(sorted({*target.stop_ids, *tokenizer.stop_ids}))


class _Answer:
    """What the target has said so far."""

    def __init__(
        self, tokenizer: Tokenizer, stop_ids: Collection[int], stops: tuple[str, ...], min_tokens: int
    ) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._stop_ids = stop_ids
        self._stops = stops
        self._min_tokens, self._open = min_tokens, 0
        self.said: list[Said] = []
        self.text = ""
        """Without what an unfinished character leaves."""
        self.finish = "length"

    def take(self, said: Said) -> None:
        """One more token."""
        self.said.append(said)
        if said.token_id in self._stop_ids:
            self.finish = "stop_id"
            return
        piece = self._decoder.push([said.token_id])
        if len(self.said) <= self._min_tokens:
            self._open += len(piece)
        if completes(self.text, piece, self._stops, self._open):
            self.finish = "stop"
        self.text += piece

    def settled(self) -> str:
        """The text without an end that may yet turn out to begin a stop string."""
        return settled(self.text, self._stops, self._open)

    def whole(self) -> str:
        """The text, complete."""
        return cut(self.text + self._decoder.finish(), self._stops, self._open)

    def as_json(self, text: str) -> dict[str, object]:
        """Ids, text, how it ended, and log-probabilities where they were asked for."""
        told = [said.log_probs for said in self.said if said.log_probs is not None]
        likely = {"raw": [one.raw for one in told], "warped": [one.warped for one in told]}
        return {
            "ids": [said.token_id for said in self.said],
            "text": text,
            "finish": self.finish,
            **({"log_probs": likely} if told else {}),
        }


def _prompt_ids(question: Question, tokenizer: Tokenizer, target: Target) -> tuple[int, ...]:
    if question.prompt_ids is not None:
        ids = question.prompt_ids
    elif question.raw:
        ids = tuple(tokenizer.encode(question.prompt or ""))
    else:
        messages = [{"role": "user", "content": question.prompt or ""}]
        if question.system is not None:
            messages.insert(0, {"role": "system", "content": question.system})
        ids = tuple(tokenizer.chat(messages))
    if not ids:
        raise InvalidField("prompt", "is empty")
    if max(ids) >= target.vocabulary:
        raise InvalidField("--prompt-ids", f"id {max(ids)} is outside the vocabulary of {target.vocabulary}")
    if len(ids) >= target.max_context:
        raise InvalidField("prompt", f"{len(ids)} tokens do not fit a context of {target.max_context}")
    return ids
