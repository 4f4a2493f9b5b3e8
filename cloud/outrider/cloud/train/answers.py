"""Making a corpus ready to train on: the target answers prompts, and writes prompts of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.cloud.export.bundle import stop_ids
from outrider.cloud.train.corpus import read_json_lines, read_prompts

REPORT_SECONDS = 10.0
"""Between two lines about progress."""


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
    """Files ready to train on: those with answers as they are, the others answered into `work`, once.

    What was answered before an interruption is kept. Raises ValueError for files that cannot be read as prompts.
    """
    from outrider.cloud.train.prompts import Lengths

    ready = [path for path in files if has_answers(path)]
    bare = [path for path in files if path not in ready]
    if not bare and not self_written:
        return ready
    work.mkdir(parents=True, exist_ok=True)
    room = max_length - answer_tokens
    if room < 1:
        raise ValueError(
            f"answers of {answer_tokens} tokens leave no room for prompts in texts of {max_length}"
        )
    lengths = Lengths(answer=answer_tokens, document_answer=answer_tokens, prompt=room)
    writer = Writer(target, lengths, seed=seed)
    if bare:
        prompts = [prompt for path in bare for prompt in read_prompts(path, writer.tokenizer, room)]
        ready.append(_written(writer, work / "answers.jsonl", {"file": 1}, prompts, None, say))
    if self_written:
        ready.append(_written(writer, work / "self.jsonl", {"self": 1}, (), self_written, say))
    return ready


def has_answers(path: Path) -> bool:
    """Whether the first row of a file holds prompt and answer ids."""
    first = next(iter(read_json_lines(path)), {})
    return "prompt_ids" in first and "answer_ids" in first


class Writer:
    """A loaded target that writes corpora."""

    def __init__(
        self,
        target: Path,
        lengths: Any,
        *,
        seed: int = 1,
        slots: int = 128,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """Loads a target folder; raises ValueError if it names no end token or its chat template cannot be used."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from outrider.cloud.train.prompts import ChatFrame

        self.stops = stop_ids(target)
        self.tokenizer = AutoTokenizer.from_pretrained(str(target), local_files_only=True)
        self.frame = ChatFrame(self.tokenizer, self.stops)
        model = AutoModelForCausalLM.from_pretrained(
            str(target), dtype=dtype, use_safetensors=True, local_files_only=True
        )
        self.model = model.eval().requires_grad_(False)
        self._lengths, self._seed, self._slots = lengths, seed, slots

    def harvest(self, out: Path, shares: dict[str, int], prompts: Sequence[NDArray[np.int32]] = ()) -> Any:
        """A `Harvest` into `out` with these shares of the kinds of prompts (see `prompts.Plan`)."""
        from outrider.cloud.train.bulk import BulkDecoder
        from outrider.cloud.train.harvest import Harvest
        from outrider.cloud.train.prompts import Plan

        plan = Plan(self.frame, prompts, shares, self._seed, self._lengths)
        decoder = BulkDecoder(
            self.model, self.stops, slots=self._slots, capacity=self._lengths.longest, seed=self._seed
        )
        return Harvest(plan, decoder, out)


def _written(
    writer: Writer,
    out: Path,
    shares: dict[str, int],
    prompts: Sequence[NDArray[np.int32]],
    scripts: int | None,
    say: Callable[[str], None],
) -> Path:
    last = 0.0

    def report(progress: Any) -> None:
        nonlocal last
        if progress.seconds - last >= REPORT_SECONDS:
            last = progress.seconds
            say(f"{out.name}: {progress.line()}")

    done = writer.harvest(out, shares, prompts).run(scripts=scripts, report=report)
    say(f"{out.name}: {done.rows} prompts answered, {done.tokens} tokens")
    return out
