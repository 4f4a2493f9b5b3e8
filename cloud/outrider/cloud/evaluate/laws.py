"""`outrider-cloud eval laws`: both models' laws along real texts, as `outrider-sim theory --pair` reads them.

The form of the file is docs/theory.md's. What the draft's law is at a position:

- along a text of the target, the drafter's first guess there: its law for the next token given the text alone, with
  state rows of everything but the last token, as at the beginning of a round;
- in a text of a rule, the very law that the draft was drawn from, as it went to the verifier: with chains of one that
  is the same thing, further down a chain the drafter has seen no row of its own tokens. Where nothing was tested (a
  bonus token) it is the law of the next token of the same chain, which was drafted and not sent.

Either is cut and rounded by the device's own code. The target's probabilities are those of the engine's logits, the
bits that the text was chosen from.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Drafter, Drawing
from outrider.cloud.engine import Engine
from outrider.cloud.evaluate.contenders import Contender
from outrider.cloud.evaluate.prompts import PromptSet, chat_ids
from outrider.cloud.evaluate.ruled import Desk, Manner, Task, Writing
from outrider.cloud.rules import KNOWN, Decision, Nodes
from outrider.shared import frames
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import ConfigError
from outrider.shared.frames import TokenKind
from outrider.shared.laws import SparseLaw
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer

FORMAT, VERSION = "outrider-laws", 1
RULE, UNO = "overaccept", "overaccept-uno"

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LawsPlan:
    """What is written."""

    tokens: int = 64
    """Of each text, at most."""
    samples: int = 1
    """Texts of each prompt, by the target and by each rule."""
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    entries: int = 16
    """Of a draft's law, at most."""
    bits: int = 12
    """The draft's probabilities are multiples of 2^-bits."""
    chain: int = 1
    """Tokens a rule is sent at once."""
    bonus: bool = False
    """Keep the token behind a chain that was accepted whole."""
    width: int = 8
    """Texts in one pass of the target."""
    seed: int = 1

    @property
    def sampling(self) -> Sampling:
        """How the target chooses."""
        return Sampling(self.temperature, self.top_k, self.top_p)

    @property
    def drawing(self) -> Drawing:
        """How the drafter's law is cut and rounded; its key is put in for each draft."""
        return Drawing(DraftKind.SAMPLED, b"", top=self.entries, bits=self.bits)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One kind of text: the target's own, or those of the ε-rule."""

    rule: frames.Rule
    label: dict[str, Any] | None
    """As the file says it."""

    @property
    def name(self) -> str:
        """For people."""
        if self.label is None:
            return "target"
        return f"{self.rule.name}, ε = {self.label['epsilon']:g}"


def wanted(epsilons: Sequence[float], *, uno: bool) -> list[Wanted]:
    """The target's own texts, then for each ε those of the rule, and with ``uno`` of its sibling."""
    found = [Wanted(frames.Rule("coupled"), None)]
    for epsilon in epsilons:
        for name, replace in ((RULE, "opt"), *(((UNO, "uno"),) if uno else ())):
            label = {"epsilon": epsilon, "replace": replace}
            found.append(Wanted(frames.Rule(name, (("epsilon", epsilon),)), label))
    return found


class LawsWriter:
    """Writes texts and notes the laws along them."""

    def __init__(self, engine: Engine, contender: Contender, plan: LawsPlan, stop_ids: Sequence[int]) -> None:
        self._engine, self._contender, self._plan = engine, contender, plan
        self._stop_ids = tuple(stop_ids)
        self._noted: dict[int, list[Entry]] = {}
        self._idle: list[Drafter] = []

    def header(self) -> dict[str, Any]:
        """The file's first line."""
        plan, target = self._plan, self._engine.target
        return {
            "format": FORMAT,
            "version": VERSION,
            "bits": plan.bits,
            "target": target.name,
            "draft": self._contender.name,
            "dtype": target.dtype,
            "bundle": self._contender.digest,
            "temperature": plan.temperature,
            "top_k": plan.top_k,
            "top_p": plan.top_p,
            "entries": plan.entries,
            "tokens": plan.tokens,
            "samples": plan.samples,
            "chain": plan.chain,
            "bonus": plan.bonus,
            "seed": plan.seed,
        }

    def texts(self, prompts: Sequence[tuple[str, tuple[int, ...]]], one: Wanted) -> Iterator[dict[str, Any]]:
        """The file's lines about one kind of text; ``prompts`` are names and ids.

        Raises ConfigError ("--bundle") where the drafter has nothing to say, `EngineFailed` if the target has not.
        """
        plan, own = self._plan, one.label is None
        spare = 1 if plan.bonus else 0
        depth = 1 if own else plan.chain + spare
        manner = Manner(
            rule=one.rule,
            sampling=plan.sampling,
            budget=Budget(depth, depth, drawing=plan.drawing),
            tokens=plan.tokens,
            stop_ids=self._stop_ids,
            bonus=plan.bonus,
            sent=0 if own else plan.chain,
        )
        tasks: list[Task] = []
        names: dict[int, str] = {}
        for number, (name, ids) in enumerate(list(prompts) * plan.samples):
            task = Task(ids, (plan.seed << 32) + number)
            tasks.append(task)
            names[task.seed] = name
        desk = Desk(self._engine, self._contender, KNOWN.named(one.rule.name), plan.width, self._idle)
        for text in desk.write(tasks, manner, self._note):
            positions = self._noted.pop(text.key)[: min(len(text.ids), plan.tokens)]
            yield {"prompt": names[text.task.seed], "rule": one.label, "positions": positions}

    def _note(self, text: Writing, nodes: Nodes, decision: Decision) -> None:
        noted = self._noted.setdefault(text.key, [])
        tokens = [*(nodes.draft.ids[node] for node in decision.path), decision.next_id]
        if decision.path and decision.kinds[-1] is TokenKind.BONUS and not self._plan.bonus:
            tokens.pop()
        for row, token in enumerate(tokens):
            if row and tokens[row - 1] in self._stop_ids:
                return
            rejected = decision.kinds[row] is TokenKind.RECOVERED if row < len(nodes.draft) else None
            noted.append(self._entry(nodes, row, text.drafted, token, rejected))

    def _entry(self, nodes: Nodes, row: int, drafted: Draft, token: int, rejected: bool | None) -> Entry:
        if row >= len(drafted.laws):
            raise ConfigError(
                "--bundle",
                f"{self._contender.name} has no law at position {nodes.position(row)}",
                remedy="use a drafter with a model, and prompts and texts that it has room for",
            )
        return entry(drafted.laws[row], nodes.law(row), token, rejected)


def entry(law: SparseLaw, target: NDArray[np.float64], token: int, rejected: bool | None) -> Entry:
    """One position; ``target`` is the target's law of every id [vocabulary]."""
    return {
        "draft": list(law.counts),
        "target": target[list(law.ids)].tolist(),
        "at": law.ids.index(token) if token in law.ids else -1,
        "rejected": rejected,
    }


def named_prompts(
    sets: Sequence[PromptSet], per_set: int, tokenizer: Tokenizer
) -> list[tuple[str, tuple[int, ...]]]:
    """Names ("category/number") and ids of ``per_set`` prompts of each set, at even distances."""
    return [
        (f"{one.category}/{number}", chat_ids(tokenizer, message))
        for one in sets
        for number, message in enumerate(one.spread(per_set))
    ]


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """A text file (gzip by suffix) that is there once it is complete. Raises ConfigError ("--out")."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream: Any = gzip.open if path.suffix == ".gz" else open
        with stream(partial, "wt", encoding="utf-8") as out:
            yield out
        partial.replace(path)
    except OSError as error:
        raise ConfigError("--out", f"{path}: {error.strerror or error}") from error


def line(found: dict[str, Any]) -> str:
    """One line of the file."""
    return json.dumps(found, separators=(",", ":")) + "\n"
