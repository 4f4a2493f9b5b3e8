"""What disconnections do to answers: the target's own, cut ones, and cut ones that a device finished alone.

For every task the target answers once; then, per cut and drafter, a device writes the rest alone, and the target reads
what it wrote. Records are plain JSON, one a task, so that a run can be stopped and resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.cloud.describe import measure_cost
from outrider.cloud.evaluate.contenders import Contender
from outrider.cloud.evaluate.cuts import SHARES, cut_after, kept_of, write_alone
from outrider.cloud.evaluate.evaluation import stop_ids
from outrider.cloud.evaluate.prompts import chat_ids
from outrider.cloud.evaluate.rounds import Case
from outrider.cloud.evaluate.scoring.tasks import Scorer, Task
from outrider.cloud.evaluate.texts import BATCH, TargetText, TextRequest, TextStore
from outrider.cloud.target import Target
from outrider.cloud.worker import Worker
from outrider.shared.frames import CostCurve
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer

COST_WIDTHS = (1, 8, 16, 32, 64, 128, 256)
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    tokens: int = 256
    """Of an answer, at most, whoever writes it."""
    shares: tuple[float, ...] = SHARES
    temperature: float = 0.8
    """Of the samples for pass@k; their cuts are scored, not judged token by token."""
    samples: int = 5
    seed: int = 1
    """Of sample 0; each has the next one."""
    contenders: tuple[str, ...] = ()
    """Digests of what drafts, for the record."""


class Disconnection:
    """The experiment on one target."""

    def __init__(
        self, target: Target, contenders: Sequence[Contender], plan: Plan, scorer: Scorer, folder: Path
    ) -> None:
        """``folder`` holds the target's texts and states while a batch is being measured."""
        self.plan = plan
        self.contenders = list(contenders)
        self._drafters = [one.make() for one in self.contenders]
        self._scorer = scorer
        self._store = TextStore(target, folder)
        self._tokenizer = Tokenizer.from_folder(target.folder)
        self._stops = stop_ids(self._store, self._tokenizer)
        self._vocabulary = target.vocabulary

    def cost(self) -> CostCurve:
        """What a target pass costs here, up to the widest that reconciling takes."""
        return measure_cost(Worker(self._store.engine), self._vocabulary, COST_WIDTHS)

    def greedy(self, tasks: Sequence[Task]) -> Iterator[Record]:
        """A record per task, as `_answered` makes it, with what the target thinks of every token written alone."""
        for task, (text,) in self._answers(tasks, [Sampling()]):
            record: Record = {"task": task.name, **self._answered(task, text, Sampling(), judged=True)}
            yield record

    def sampled(self, tasks: Sequence[Task]) -> Iterator[Record]:
        """A record per task with ``samples``, one per seed."""
        plan = self.plan
        ways = [Sampling(plan.temperature, seed=plan.seed + number) for number in range(plan.samples)]
        for task, texts in self._answers(tasks, ways):
            pairs = zip(texts, ways, strict=True)
            yield {
                "task": task.name,
                "samples": [self._answered(task, text, way, judged=False) for text, way in pairs],
            }

    def _answers(
        self, tasks: Sequence[Task], ways: Sequence[Sampling]
    ) -> Iterator[tuple[Task, list[TargetText]]]:
        """Tasks with the target's texts, which are deleted once used: their states are large."""
        size = max(1, BATCH // len(ways))
        for first in range(0, len(tasks), size):
            batch = tasks[first : first + size]
            texts = self._store.get([self._request(task, way) for task in batch for way in ways])
            for number, task in enumerate(batch):
                own = texts[number * len(ways) : (number + 1) * len(ways)]
                yield task, own
                for text in own:
                    text.path.unlink(missing_ok=True)

    def _request(self, task: Task, sampling: Sampling) -> TextRequest:
        tokens = self.plan.tokens
        prompt = chat_ids(self._tokenizer, task.message)
        return TextRequest(prompt, tokens, tokens, sampling, self._stops)

    @torch.inference_mode()
    def _answered(self, task: Task, text: TargetText, sampling: Sampling, *, judged: bool) -> Record:
        """Verdicts on the target's answer, on each cut of it, and on what each drafter made of that."""
        answer = text.answer
        record: Record = {
            "answer": len(answer),
            "ended": answer[-1] in self._stops,
            "right": self._right(task, answer),
            "cuts": [],
        }
        if len(answer) < 2:
            return record
        if judged:
            surprises = (text.surprise(self._store.head, text.prompt + n, t) for n, t in enumerate(answer))
            record["nll"] = [round(nats, 3) for nats in surprises]
        rows = [one.rows(text) for one in self.contenders]
        for share in self.plan.shares:
            cut = cut_after(len(answer), share)
            found: Record = {
                "share": share,
                "cut": cut,
                "right": self._right(task, answer[:cut]),
                "alone": {},
            }
            for number, contender in enumerate(self.contenders):
                case = Case(
                    ids=text.ids,
                    prompt=text.prompt,
                    tokens=len(answer),
                    rows=rows[number],
                    sampling=sampling,
                )
                found["alone"][contender.name] = self._alone(task, number, case, cut, judged)
            record["cuts"].append(found)
        return record

    def _alone(self, task: Task, number: int, case: Case, cut: int, judged: bool) -> Record:
        line = write_alone(self._drafters[number], case, cut, self.plan.tokens - cut, self._stops)
        answer, rest = case.ids[case.prompt :], case.ids[case.prompt + cut :]
        record: Record = {
            "drafted": len(line.ids),
            "ended": line.ended,
            "kept": kept_of(line.ids, rest),
            "right": self._right(task, (*answer[:cut], *line.ids)),
            "step_ms": round(1e3 * line.step_s, 4),
        }
        if judged and line.ids:
            record |= self._judged(case.ids[: case.prompt + cut], line.ids, rest)
        return record

    def _judged(self, prefix: Sequence[int], line: Sequence[int], rest: Sequence[int]) -> Record:
        """Whether the target would have said each token there, its surprise, and whether reconciling is exact."""
        logits = self._store.logits(prefix, line)
        said = logits.argmax(-1).tolist()
        laws = logits[:-1].log_softmax(-1)
        nll = -laws[torch.arange(len(line)), torch.tensor(list(line))]
        agrees = [one == other for one, other in zip(said, line, strict=False)]
        kept = kept_of(line, rest)
        # The verdict on this line: the tokens up to the first that is not the target's own, and that one.
        verdict = said[: (agrees.index(False) if False in agrees else len(agrees)) + 1]
        return {
            "agrees": "".join("01"[agreed] for agreed in agrees),
            "nll": [round(nats, 3) for nats in nll.tolist()],
            "exact": verdict[: len(rest)] == list(rest[: kept + 1]),
        }

    def _right(self, task: Task, ids: Sequence[int]) -> bool:
        return self._scorer.score(task, self._tokenizer.decode(ids)).passed


def settings(plan: Plan, target: Target, walls: str) -> dict[str, Any]:
    """What records depend on beside the tasks."""
    return {
        "tokens": plan.tokens,
        "shares": list(plan.shares),
        "temperature": plan.temperature,
        "samples": plan.samples,
        "seed": plan.seed,
        "contenders": list(plan.contenders),
        "target": target.name,
        "dtype": target.dtype,
        "weights": target.weights.hex()[:16],
        "sandbox": walls,
    }
