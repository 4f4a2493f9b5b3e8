"""Texts written under any rule by drafter and target in one process, several at once, with state rows as in a session.

`outrider.cloud.local.speculate` is the same loop without rows, for rules that throw no coins.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Drafter
from outrider.cloud.engine import Engine
from outrider.cloud.evaluate.contenders import Contender
from outrider.cloud.events import Outcome, Prefill, Prefilled, Verified, Verify, Work
from outrider.cloud.local import no_verdict
from outrider.cloud.rules import NOTHING, Audit, Decision, Nodes, Rule, Rulebook
from outrider.cloud.worker import Worker
from outrider.shared import frames
from outrider.shared.draft import Draft
from outrider.shared.errors import EngineFailed
from outrider.shared.frames import TokenKind
from outrider.shared.sampling import Sampling

_keys = itertools.count(-3_000_002, -1)


@dataclass(frozen=True, slots=True)
class Task:
    """A text to be written."""

    prompt: tuple[int, ...]
    """At least one id."""
    seed: int
    """64 bits: of the target's noise, and of all coins of this text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How texts are written."""

    rule: frames.Rule
    sampling: Sampling
    """Its seed is each text's own."""
    budget: Budget | None
    """What a draft may be, its sampling and the key of its coins aside; None: no drafts at all."""
    tokens: int
    """No round begins in a text that has so many."""
    stop_ids: tuple[int, ...] = ()
    bonus: bool = True
    """Keep the token behind a draft that was accepted whole; without it every token was tested."""
    sent: int | None = None
    """Send the first so many tokens of a chain only; None: the whole draft."""

    def drawn_for(self, task: Task, number: int) -> Budget | None:
        """The budget of a text's draft: coins of its own where it is drawn."""
        if self.budget is None:
            return None
        budget = replace(self.budget, sampling=self.sampling_of(task), stop_ids=self.stop_ids)
        budget = replace(budget, generated_from=len(task.prompt))
        if budget.drawing is None:
            return budget
        return replace(budget, drawing=replace(budget.drawing, key=_key(b"draft", task.seed, number)))

    def sampling_of(self, task: Task) -> Sampling:
        """How the target chooses in this text."""
        return replace(self.sampling, seed=task.seed)


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One draft and its verdict."""

    draft: Draft
    accepted: tuple[int, ...]
    ids: tuple[int, ...]
    """What it brought, up to the end of the text."""
    kinds: tuple[TokenKind, ...]
    """One per id."""
    audit: Audit | None


class Watched:
    """A rule with a spectator, who sees rounds in the order of a step's works."""

    def __init__(self, rule: Rule, watch: Callable[[Nodes, Decision], None]) -> None:
        self._rule = rule
        self._watch = watch
        self.name, self.parameters, self.drafts = rule.name, rule.parameters, rule.drafts
        self.needs_hidden, self.needs_laws, self.lossy = rule.needs_hidden, rule.needs_laws, rule.lossy

    def check(self, sampling: Sampling, given: Mapping[str, float] = NOTHING) -> None:
        """The rule's own."""
        self._rule.check(sampling, given)

    def takes(self, draft: Draft) -> None:
        """The rule's own."""
        self._rule.takes(draft)

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """The rule's verdict."""
        decision = self._rule(nodes, given)
        self._watch(nodes, decision)
        return decision


@dataclass(slots=True)
class Writing:
    """A text on its way, and what its drafter knows."""

    task: Task
    manner: Manner
    drafter: Drafter
    final: bool
    """Its drafter's rows are made of the target's final states."""
    key: int = field(default_factory=lambda: next(_keys))
    ids: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    ended: bool = False
    _start: int = 0
    _pending: tuple[int, ...] = ()
    _rows: int = 0
    drafted: Draft = Draft.chain(())
    """The last draft, with what of it was not sent."""
    _draft: Draft = Draft.chain(())

    def prefill(self) -> tuple[Prefill, ...]:
        """The prompt but for its last token."""
        prompt = self.task.prompt
        self.drafter.rollback(0)
        self.drafter.begin(prompt)
        self._start, self._pending = len(prompt) - 1, prompt[-1:]
        return (Prefill(self.key, 0, prompt[:-1], self.final),) if self._start else ()

    def work(self) -> Verify:
        """The next round, with a fresh draft."""
        manner, task = self.manner, self.task
        budget = manner.drawn_for(task, len(self.rounds))
        self.drafted = self.drafter.propose(budget).draft if budget is not None else Draft.chain(())
        sent = len(self.drafted) if manner.sent is None else min(manner.sent, len(self.drafted))
        self._draft = self.drafted.only(range(sent)) if sent < len(self.drafted) else self.drafted
        sampling = manner.sampling_of(task)
        return Verify(
            self.key,
            self._start,
            self._pending,
            self._draft,
            sampling,
            manner.rule,
            self.final,
            sampling.history((*task.prompt, *self.ids), len(task.prompt), manner.stop_ids),
            coin_key=_key(b"verdict", task.seed),
        )

    def take(self, outcome: Verified, worker: Worker) -> None:
        """Commit what a round brought."""
        path, draft = outcome.accepted, self._draft
        ids = [*(draft.ids[node] for node in path), outcome.next_id]
        held = self._start + len(self._pending) + len(path)
        if outcome.kinds[-1] is TokenKind.BONUS and path and not self.manner.bonus:
            ids, held = ids[:-1], held - 1
            worker.truncate(self.key, held)
        end = next((n for n, token in enumerate(ids, 1) if token in self.manner.stop_ids), None)
        ids = ids[:end]
        self.rounds.append(Round(draft, path, tuple(ids), outcome.kinds[: len(ids)], outcome.audit))
        self.ids += ids
        self.ended = end is not None or len(self.ids) >= self.manner.tokens
        self._start, self._pending = held, (ids[-1],)
        self.drafter.accept(ids)

    def give_rows(self, rows: LiveRows) -> None:
        """Rows of everything the target has read since the last time."""
        for plane, values in enumerate(rows(self.key, self._rows, self._start)):
            self.drafter.add_rows(plane, self._rows, values)
        self._rows = self._start


class LiveRows:
    """State rows of a running text, through the wire's int8."""

    def __init__(self, engine: Engine, contender: Contender) -> None:
        self._engine = engine
        self._contender = contender

    @property
    def final(self) -> bool:
        """Whether they are made of final hidden states."""
        half = self._contender.half
        return half is not None and bool(self._contender.planes) and half.needs_final

    @torch.inference_mode()
    def __call__(self, key: int, start: int, stop: int) -> list[NDArray[np.float32]]:
        """Rows of positions start … stop-1, per plane [stop-start, width]; none for a drafter that reads none.

        Raises EngineFailed for positions that the target does not hold.
        """
        half = self._contender.half
        if half is None or not self._contender.planes or start >= stop:
            return []
        layers = half.needed_layers
        states = self._engine.states(key, layers, start, stop)
        final = self._engine.final(key, start, stop) if self.final else None
        if states is None or (self.final and final is None):
            raise EngineFailed(f"the target does not hold positions {start} to {stop}")
        kv = {layer: (states[index, 0], states[index, 1]) for index, layer in enumerate(layers)}
        return self._contender.decoded(kv, final, start, stop)


Watch = Callable[[Writing, Nodes, Decision], None]


class Desk:
    """Writes texts, ``width`` of them in one packed pass."""

    def __init__(
        self,
        engine: Engine,
        contender: Contender,
        rule: Rule,
        width: int = 4,
        idle: list[Drafter] | None = None,
    ) -> None:
        """``rule`` is the one that manners name; ``idle`` are drafters of ``contender`` that another desk has left."""
        self._rows = LiveRows(engine, contender)
        self._contender = contender
        self._idle: list[Drafter] = [] if idle is None else idle
        self._width = width
        self._seen: list[tuple[Nodes, Decision]] = []
        watched = Watched(rule, lambda nodes, decision: self._seen.append((nodes, decision)))
        self._worker = Worker(engine, rules=Rulebook((watched,)))

    def write(self, tasks: Iterable[Task], manner: Manner, watch: Watch | None = None) -> Iterator[Writing]:
        """The texts, as they end. ``watch`` sees every round before it is committed.

        Raises `EngineFailed` if the target cannot do it, and what the rule refuses as `InvalidField`.
        """
        waiting = iter(tasks)
        running: list[Writing] = []
        try:
            while True:
                running += self._begin(itertools.islice(waiting, self._width - len(running)), manner)
                if not running:
                    return
                self._round(running, watch)
                for one in [one for one in running if one.ended]:
                    running.remove(one)
                    self._worker.evict(one.key)
                    self._idle.append(one.drafter)
                    yield one
        finally:
            for one in running:
                self._worker.evict(one.key)

    def _begin(self, tasks: Iterable[Task], manner: Manner) -> list[Writing]:
        fresh = []
        for task in tasks:
            drafter = self._idle.pop() if self._idle else self._contender.make()
            fresh.append(Writing(task, manner, drafter, self._rows.final))
        self._run([work for one in fresh for work in one.prefill()])
        for one in fresh:
            one.give_rows(self._rows)
        return fresh

    def _round(self, running: Sequence[Writing], watch: Watch | None) -> None:
        self._seen.clear()
        outcomes = self._run([one.work() for one in running])
        for one, outcome, (nodes, decision) in zip(running, outcomes, self._seen, strict=True):
            if not isinstance(outcome, Verified):
                raise no_verdict(outcome)
            if watch is not None:
                watch(one, nodes, decision)
            one.take(outcome, self._worker)
            one.give_rows(self._rows)

    def _run(self, works: Sequence[Work]) -> Sequence[Outcome]:
        outcomes = self._worker.run(works) if works else ()
        for outcome in outcomes:
            if not isinstance(outcome, Verified | Prefilled):
                refused = getattr(outcome, "refused", None)
                raise refused if refused is not None else no_verdict(outcome)
        return outcomes


def _key(purpose: bytes, seed: int, number: int = 0) -> bytes:
    address = seed.to_bytes(8, "little") + number.to_bytes(8, "little")
    return hashlib.blake2b(address, digest_size=32, person=purpose.ljust(16, b"\0")).digest()
