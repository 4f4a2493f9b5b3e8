"""Running a plan of scripts through the bulk decoder into a corpus file that can be stopped and resumed anywhere."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.cloud.train.bulk import BulkDecoder, Job
from outrider.cloud.train.prompts import Ask, Plan, Row, Script

_ASKS = 64


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    rows: int = 0
    tokens: int = 0
    """Answer tokens in the file."""
    computed: int = 0
    """Tokens the target wrote in this run, prompts of its own and documents included."""
    seconds: float = 0.0
    by_source: Counter[str] = field(default_factory=Counter)
    """Answer tokens by source."""

    def line(self) -> str:
        """One line for a log."""
        sources = " ".join(f"{name}={count}" for name, count in sorted(self.by_source.items()))
        rate = self.computed / max(self.seconds, 1e-9)
        return f"{self.seconds:.0f} s {self.rows} rows {self.tokens} tokens {rate:.0f} tokens/s {sources}"


@dataclass(slots=True)
class _Running:
    script: Script
    asks: list[Ask]
    answers: list[list[int] | None]
    asked: int


class Harvest:
    """Takes scripts of a plan in order, several at once, and appends the rows of each when it is over."""

    def __init__(self, plan: Plan, decoder: BulkDecoder, out: Path) -> None:
        """Raises ValueError if `out` holds rows that are not of a harvest."""
        self.plan, self.decoder, self.out = plan, decoder, out
        self.progress = Progress()
        self._done = self._read_back()
        self._next = 0
        self._running: dict[int, _Running] = {}
        self._ready: deque[Job] = deque()

    def run(
        self,
        *,
        seconds: float = float("inf"),
        tokens: float = float("inf"),
        scripts: int | None = None,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> Progress:
        """Write until the time, the answer tokens, the scripts or the plan are over; scripts begun are finished,
        except for lack of time. `report` is called after every script.
        """
        started = time.monotonic()
        limit = min((n for n in (scripts, self.plan.size) if n is not None), default=None)
        jobs = self._jobs(lambda: self.progress.tokens >= tokens or time.monotonic() - started >= 0.97 * seconds, limit)
        with self.out.open("a", encoding="utf-8") as stream:
            for job, answer in self.decoder.run(jobs):
                rows = self._answered(job, answer)
                self.progress.computed = self.decoder.tokens
                self.progress.seconds = time.monotonic() - started
                if rows is not None:
                    index = job.key // _ASKS
                    stream.writelines(_line(row, index, part) for part, row in enumerate(rows))
                    stream.flush()
                    self._count(rows)
                    report(self.progress)
                if self.progress.seconds >= seconds:
                    break
        return self.progress

    def _jobs(self, over: Callable[[], bool], limit: int | None) -> Iterator[Job | None]:
        while True:
            if self._ready:
                yield self._ready.popleft()
            elif over() or (limit is not None and self._next >= limit):
                if not self._running:
                    return
                yield None
            else:
                self._start(self._next)
                self._next += 1

    def _start(self, index: int) -> None:
        if index in self._done:
            return
        script = self.plan.script(index)
        self._running[index] = running = _Running(script, [], [], 0)
        self._ask(index, running, next(script))

    def _ask(self, index: int, running: _Running, asks: list[Ask]) -> None:
        running.asks, running.answers = asks, [None] * len(asks)
        for ask in asks:
            self._ready.append(Job(index * _ASKS + running.asked, ask.prompt, ask.max_tokens, ask.temperature))
            running.asked += 1

    def _answered(self, job: Job, answer: list[int]) -> list[Row] | None:
        """Note an answer; the script's rows if it is over."""
        index, number = divmod(job.key, _ASKS)
        running = self._running[index]
        running.answers[number - running.asked + len(running.asks)] = answer
        answers = [given for given in running.answers if given is not None]
        while len(answers) == len(running.asks):
            try:
                asks = running.script.send(answers)
            except StopIteration as end:
                del self._running[index]
                rows: list[Row] = end.value
                return rows
            self._ask(index, running, asks)
            answers = []
        return None

    def _count(self, rows: list[Row]) -> None:
        for row in rows:
            self.progress.rows += 1
            self.progress.tokens += len(row.answer)
            self.progress.by_source[row.source] += len(row.answer)

    def _read_back(self) -> set[int]:
        """Scripts whose rows are in the file; a torn last line and what belongs to it are removed."""
        if not self.out.exists():
            return set()
        kept: list[str] = []
        done: set[int] = set()
        for number, line in enumerate(self.out.read_text(encoding="utf-8").splitlines(keepends=True), start=1):
            if not line.endswith("\n"):
                break
            row = _parsed(line, f"{self.out}:{number}")
            done.add(row["index"])
            kept.append(line)
            self.progress.rows += 1
            self.progress.tokens += len(row["answer_ids"])
            self.progress.by_source[row["source"]] += len(row["answer_ids"])
        self.out.write_text("".join(kept), encoding="utf-8")
        return done


def _line(row: Row, index: int, part: int) -> str:
    fields = {
        "prompt_ids": row.prompt.tolist(),
        "answer_ids": row.answer,
        "temperature": row.temperature,
        "source": row.source,
        "index": index,
        "part": part,
    }
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        row: dict[str, Any] = json.loads(line)
        row["index"], row["answer_ids"], row["source"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not a row of a corpus that can be resumed: {error}") from error
    return row
