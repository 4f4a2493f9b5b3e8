"""Making a corpus: the target answers prompts, and writes prompts of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.cloud.export.bundle import stop_ids
from outrider.cloud.train.corpus import ChatTokenizer, read_json_lines, read_prompts

_BATCH = 32
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
"""Of the answers, in turn: half of them greedy, as greedy drafting is the common case."""


def ready_corpus(
    files: Sequence[Path],
    target: Path,
    work: Path,
    answer_tokens: int,
    max_length: int,
    self_written: int,
    seed: int,
    say: Callable[[str], None],
) -> list[Path]:
    """Files ready to train on: those with answers as they are, the others answered into `work`, once."""
    ready = [path for path in files if has_answers(path)]
    bare = [path for path in files if path not in ready]
    if not bare and not self_written:
        return ready
    answered = work / "answers.jsonl"
    if not answered.exists():
        _answer(bare, answered, target, answer_tokens, max_length, self_written, seed, say)
    return [*ready, answered]


def has_answers(path: Path) -> bool:
    """Whether the first row of a file holds prompt and answer ids."""
    first = next(iter(read_json_lines(path)), {})
    return "prompt_ids" in first and "answer_ids" in first


def _answer(
    files: Sequence[Path],
    out: Path,
    target: Path,
    answer_tokens: int,
    max_length: int,
    self_written: int,
    seed: int,
    say: Callable[[str], None],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(target), local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        str(target), dtype=torch.bfloat16, use_safetensors=True, local_files_only=True
    ).eval()
    stops = stop_ids(target)
    room = max_length - answer_tokens
    prompts = [prompt for path in files for prompt in read_prompts(path, tokenizer, room)]
    generator = torch.Generator().manual_seed(seed)
    if self_written:
        prompts += write_prompts(model, tokenizer, self_written, stops, room, generator)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_suffix(".partial")
    prompts.sort(key=len)
    with partial.open("w", encoding="utf-8") as stream:
        for start in range(0, len(prompts), _BATCH):
            batch = prompts[start : start + _BATCH]
            warm = [TEMPERATURES[(start + i) % len(TEMPERATURES)] for i in range(len(batch))]
            for prompt, answer, heat in zip(
                batch, sample(model, batch, answer_tokens, stops, warm, generator), warm, strict=True
            ):
                row = {"prompt_ids": prompt.tolist(), "answer_ids": answer, "temperature": heat}
                stream.write(json.dumps(row, separators=(",", ":")) + "\n")
            say(f"answered {min(start + _BATCH, len(prompts))} of {len(prompts)} prompts")
    partial.replace(out)


def write_prompts(
    model: Any,
    tokenizer: ChatTokenizer,
    count: int,
    stops: Sequence[int],
    room: int,
    generator: torch.Generator,
) -> list[NDArray[np.int32]]:
    """Prompts that the target writes itself: sampled after the chat template's user header."""
    marker = "\u2060"
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": marker}], add_generation_prompt=True, tokenize=False
    )
    before, after = rendered.split(marker)
    encode: Any = tokenizer
    head, tail = (encode(part, add_special_tokens=False)["input_ids"] for part in (before, after))
    prompts: list[NDArray[np.int32]] = []
    while len(prompts) < count:
        batch = [np.asarray(head, dtype=np.int32)] * min(_BATCH, count - len(prompts))
        turns = sample(
            model, batch, max(8, room - len(head) - len(tail)), stops, [1.0] * len(batch), generator
        )
        for turn in turns:
            body = [token for token in turn if token not in stops]
            prompts.append(np.asarray([*head, *body, *tail], dtype=np.int32))
    return prompts


@torch.no_grad()
def sample(
    model: Any,
    prompts: Sequence[NDArray[np.int32]],
    max_tokens: int,
    stops: Sequence[int],
    temperatures: Sequence[float],
    generator: torch.Generator,
) -> list[list[int]]:
    """Continuations of prompts in one batch, each at its own temperature (0 = greedy), stop id included."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, longest - len(prompt) :] = 1
    answers: list[list[int]] = [[] for _ in prompts]
    open_rows = torch.ones(len(prompts), dtype=torch.bool)
    past, step = None, ids
    heat = torch.tensor(temperatures)[:, None]
    for _ in range(max_tokens):
        positions = (mask.cumsum(1) - 1).clamp_min(0)[:, -step.shape[1] :]
        out = model(input_ids=step, attention_mask=mask, position_ids=positions, cache=past, use_cache=True)
        past = out.cache
        chosen = _choose(out.logits[:, -1].float(), heat, generator)
        for row in open_rows.nonzero()[:, 0].tolist():
            answers[row].append(int(chosen[row]))
            open_rows[row] = int(chosen[row]) not in stops
        if not open_rows.any():
            break
        step = chosen[:, None]
        mask = torch.cat((mask, torch.ones(len(prompts), 1, dtype=torch.long)), dim=1)
    return answers


def _choose(logits: Tensor, heat: Tensor, generator: torch.Generator) -> Tensor:
    """One id per row: the best one at temperature 0, else a sample from the 40 best."""
    best = logits.argmax(-1)
    top, places = logits.topk(min(40, logits.shape[-1]))
    law = (top / heat.clamp_min(1e-3)).softmax(-1)
    drawn = places.gather(1, torch.multinomial(law, 1, generator=generator))[:, 0]
    return torch.where(heat[:, 0] > 0, drawn, best)
