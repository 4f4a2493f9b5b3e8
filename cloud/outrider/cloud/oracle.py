"""`outrider-cloud generate`: the target alone on one prompt, printed as text or as one JSON object."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field

from outrider.cloud.engine import Engine
from outrider.cloud.generate import generate
from outrider.cloud.target import Target, load_target
from outrider.cloud.worker import Worker
from outrider.shared.errors import InvalidField
from outrider.shared.sampling import Sampling
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


def run_oracle(question: Question, *, target: str, dtype: str, threads: int, as_json: bool) -> None:
    """Generate and print.

    Raises InvalidField for ids of another vocabulary, ConfigError for a target that cannot be used.
    """
    loaded = load_target(target, dtype, threads, report=lambda line: print(line, file=sys.stderr))
    tokenizer = Tokenizer.from_folder(loaded.folder)
    stops = end_ids(loaded, tokenizer)
    prompt = _prompt_ids(question, tokenizer, loaded)
    worker = Worker(Engine(loaded, KV_BYTES))
    limit = min(question.max_tokens, loaded.max_context - len(prompt))
    ids: list[int] = []
    decoder = StreamDecoder(tokenizer)
    for token_id in generate(worker, prompt, question.sampling, limit, stops):
        ids.append(token_id)
        if not as_json and token_id not in stops:
            print(decoder.push([token_id]), end="", flush=True)
    if as_json:
        ended = bool(ids) and ids[-1] in stops
        print(json.dumps(_answer(prompt, ids, ended, tokenizer), ensure_ascii=False))
    else:
        print(decoder.finish())


def end_ids(target: Target, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that end a turn unless a device says otherwise: the model's and the chat format's."""
    return tuple(sorted({*target.stop_ids, *tokenizer.stop_ids}))


def _answer(prompt: tuple[int, ...], ids: list[int], ended: bool, tokenizer: Tokenizer) -> dict[str, object]:
    text = tokenizer.decode(ids[:-1] if ended else ids)
    return {
        "prompt_ids": list(prompt),
        "ids": ids,
        "text": text,
        "finish": "stop_id" if ended else "length",
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
