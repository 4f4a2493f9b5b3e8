"""What mining and comparing share: the loaded target with its drafter, and the tasks of a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from outrider.cloud.config import shipped_drafter
from outrider.cloud.evaluate.chains import ChainDrafter
from outrider.cloud.evaluate.contenders import Contender, open_contender
from outrider.cloud.evaluate.prompts import chat_ids
from outrider.cloud.judge.engine_passes import EnginePasses
from outrider.cloud.judge.families import FAMILIES, Family, Split, Task
from outrider.cloud.judge.mine import Propose
from outrider.cloud.oracle import end_ids
from outrider.cloud.target import Target, load_target
from outrider.shared.errors import ConfigError
from outrider.shared.tokenizer import Tokenizer

_TRIES = 50
"""Draws for one prompt that was not there before."""


class Purpose(IntEnum):
    """What prompts are made for: each has a stream of its own."""

    SELECT = 1
    MINE = 2
    COMPARE = 3


@dataclass(frozen=True, slots=True)
class Workshop:
    """A target and a drafter at work."""

    target: Target
    contender: Contender
    tokenizer: Tokenizer
    passes: EnginePasses
    stops: frozenset[int]
    kept_out: frozenset[int]
    """Ids that are never judged: stop ids and the tokenizer's specials."""

    def drafter(self) -> Propose:
        """A fresh drafter for one text."""
        return ChainDrafter(self.contender.make()).propose

    def prompt(self, task: Task) -> list[int]:
        """Ids of the task as a conversation, up to where the answer begins."""
        return list(chat_ids(self.tokenizer, task.prompt))

    def described(self) -> dict[str, Any]:
        """What labels and figures depend on, for the record."""
        return {
            "target": self.target.weights.hex(),
            "dtype": self.target.dtype,
            "drafter": {"kind": self.contender.kind, "bundle": self.contender.digest},
        }


def open_workshop(
    drafter: str | None, target: str, dtype: str, threads: int, report: Callable[[str], None]
) -> Workshop:
    """Load everything. ``drafter``: NAME=WHAT as for `eval drafters`; None: the shipped one with prompt lookup.

    Raises ConfigError for what cannot be loaded or does not belong together.
    """
    loaded = load_target(target, dtype, threads, report)
    contender = open_contender(drafter or _shipped(), loaded)
    tokenizer = Tokenizer.from_folder(loaded.folder)
    stops = frozenset(end_ids(loaded, tokenizer))
    passes = EnginePasses(loaded, contender)
    return Workshop(loaded, contender, tokenizer, passes, stops, stops | tokenizer.special_ids)


def _shipped() -> str:
    folder = shipped_drafter()
    if folder is None:
        raise ConfigError(
            "--drafter", "no drafter comes with this installation", remedy="name one: NAME=WHAT"
        )
    return f"shipped=hybrid:{folder}"


def families(names: Sequence[str]) -> list[Family]:
    """Families by name, all without names. Raises ConfigError ("--family") for one there is not."""
    for name in names:
        if name not in FAMILIES:
            raise ConfigError("--family", f"{name} is none of {', '.join(FAMILIES)}")
    return [FAMILIES[name] for name in dict.fromkeys(names or FAMILIES)]


def make_tasks(
    chosen: Sequence[Family], count: int, purpose: Purpose, seed: int, splits: Sequence[Split]
) -> list[Task]:
    """``count`` tasks, families in turn and each family's splits in turn; no two with the same prompt.

    Fewer where a family has no more prompts: that place stays empty.
    """
    seen: set[str] = set()
    tasks: list[Task] = []
    for index in range(count):
        turn, place = divmod(index, len(chosen))
        rng = np.random.default_rng((seed, purpose, index))
        for _ in range(_TRIES):
            task = chosen[place].make(rng, splits[turn % len(splits)])
            if task.prompt not in seen:
                seen.add(task.prompt)
                tasks.append(task)
                break
    return tasks
