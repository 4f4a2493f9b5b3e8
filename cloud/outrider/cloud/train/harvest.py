"""Running a plan of scripts through the bulk decoder into a corpus file that can be stopped and resumed anywhere."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
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
        """Goes on with the rows `out` holds. Raises ValueError if they are not of this plan."""
        self.plan, self.decoder, self.out = plan, decoder, out
        self._fingerprint = plan.fingerprint()
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
        except for lack of time. `report` is called after every script. In the end the rows are in the plan's order.
        """
        started = time.monotonic()
        limit = min((n for n in (scripts, self.plan.size) if n is not None), default=None)
        jobs = self._jobs(
            lambda: self.progress.tokens >= tokens or time.monotonic() - started >= 0.97 * seconds, limit
        )
        with self.out.open("a", encoding="utf-8") as stream:
            for job, answer in self.decoder.run(jobs):
                rows = self._answered(job, answer)
                self.progress.computed = self.decoder.tokens
                self.progress.seconds = time.monotonic() - started
                if rows is not None:
                    index = job.key // _ASKS
                    stream.writelines(self._lines(rows, index))
                    stream.flush()
                    self._count(rows)
                    report(self.progress)
                if self.progress.seconds >= seconds:
                    break
        self._settle()
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
        try:
            asks = next(script)
        except StopIteration:
            return  # without a single question: its texts are too long
        self._running[index] = running = _Running(script, [], [], 0)
        self._ask(index, running, asks)

    def _ask(self, index: int, running: _Running, asks: list[Ask]) -> None:
        running.asks, running.answers = asks, [None] * len(asks)
        for ask in asks:
            self._ready.append(
                Job(index * _ASKS + running.asked, ask.prompt, ask.max_tokens, ask.temperature)
            )
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
            self._add(row.source, len(row.answer))

    def _add(self, source: str, tokens: int) -> None:
        self.progress.rows += 1
        self.progress.tokens += tokens
        self.progress.by_source[source] += tokens

    def _lines(self, rows: list[Row], index: int) -> Iterator[str]:
        for part, row in enumerate(rows):
            fields = {
                "prompt_ids": row.prompt.tolist(),
                "answer_ids": row.answer,
                "temperature": row.temperature,
                "source": row.source,
                "place": [index, part, len(rows)],
                "plan": self._fingerprint,
            }
            yield json.dumps(fields, separators=(",", ":")) + "\n"

    def _read_back(self) -> set[int]:
        """Scripts whose rows are in the file; rows of a script that were not all written are removed."""
        if not self.out.exists():
            return set()
        kept = [(row, line) for row, line in self._rows() if row is not None]
        found = Counter(row["place"][0] for row, _ in kept)
        whole = [(row, line) for row, line in kept if found[row["place"][0]] == row["place"][2]]
        for row, _ in whole:
            self._add(str(row["source"]), len(row["answer_ids"]))
        self._replace(line for _, line in whole)
        return {row["place"][0] for row, _ in whole}

    def _rows(self) -> Iterator[tuple[dict[str, Any] | None, str]]:
        """Each line with its row; None for a torn last one."""
        with self.out.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                yield (self._parsed(line, number) if line.endswith("\n") else None), line

    def _parsed(self, line: str, number: int) -> dict[str, Any]:
        try:
            row: dict[str, Any] = json.loads(line)
            index, part, parts = row["place"]
            plan, _ = row["plan"], (row["answer_ids"], row["source"], index, part, parts)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.out}:{number}: not a row that can be gone on from: {error}") from error
        if plan != self._fingerprint:
            raise ValueError(f"{self.out}:{number}: made with other prompts, shares, lengths or seed")
        return row

    def _settle(self) -> None:
        rows = [(row["place"], line) for row, line in self._rows() if row is not None]
        self._replace(line for _, line in sorted(rows))

    def _replace(self, lines: Iterable[str]) -> None:
        partial = self.out.with_name(self.out.name + ".partial")
        with partial.open("w", encoding="utf-8") as stream:
            stream.writelines(lines)
        partial.replace(self.out)
