"""CPU time of a rule's verdict on one round, beside that of the target's pass it judges."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.client.drafter import Budget, Drafter, Drawing
from outrider.client.rules import manner_of
from outrider.cloud.engine import Engine, Request
from outrider.cloud.evaluate.contenders import Contender
from outrider.cloud.evaluate.ruled import LiveRows
from outrider.cloud.rules import NOTHING, Decision, Nodes, Rule, read_parameters
from outrider.shared import frames
from outrider.shared.coins import Purpose
from outrider.shared.draft import Draft
from outrider.shared.sampling import Sampling

GAMMA, NODES, SEQUENCES = 8, 24, 4
CHAIN, TREE, PARALLEL = "chain", "tree", "parallel"
REPEATS = 15

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    rule: str
    shape: str

    @property
    def name(self) -> str:
        """For people, and for ``--only``."""
        return f"{self.rule}, {self.shape}"

    @property
    def budget(self) -> Budget:
        """What a device would draft for it."""
        manner = manner_of(frames.Rule(self.rule))
        nodes = {CHAIN: GAMMA, TREE: NODES, PARALLEL: SEQUENCES * GAMMA}[self.shape]
        tree = self.shape != CHAIN
        if manner is None:
            return Budget(nodes, GAMMA, tree)
        first, below = (manner.first, manner.below) if tree else (1, 1)
        return Budget(nodes, GAMMA, tree, drawing=Drawing(manner.kind, b"", first=first, below=below))


@dataclass(slots=True)
class Timed:
    """A rule that notes the CPU time of its verdicts, milliseconds."""

    rule: Rule
    times: list[float] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """The rule's own."""
        begun = time.thread_time()
        decision = self.rule(nodes, given)
        self.times.append(1e3 * (time.thread_time() - begun))
        return decision


@dataclass(frozen=True, slots=True)
class SameCoin:
    """Every coin falls alike: 0 accepts whatever can be accepted, almost 1 refuses whatever can be refused."""

    value: float

    def __call__(self, base: int, position: int, purpose: Purpose, index: int = 0) -> float:
        """That coin."""
        del base, position, index
        return self.value if purpose is Purpose.ACCEPT else 0.5


COINS = (SameCoin(0.0), SameCoin(1.0 - 2.0**-53))


class Cost:
    """Rounds after a fixed context, with the drafter's own drafts and the target's own logits."""

    def __init__(self, engine: Engine, contender: Contender, ids: Sequence[int]) -> None:
        """``ids`` is the text before the round, one token more than the context."""
        context = len(ids) - 1
        self.engine, self.context = engine, context
        self._key = -4_000_001
        rows = LiveRows(engine, contender)
        for start in range(0, context, 256):
            piece = tuple(ids[start : min(start + 256, context)])
            engine.forward([Request(self._key, start, piece, final=rows.final)])
            engine.keep(self._key, start + len(piece))
        self._final, self._base = rows.final, tuple(ids[context:])
        self._drafter: Drafter = contender.make()
        self._drafter.begin(ids)
        for plane, values in enumerate(rows(self._key, 0, context)):
            self._drafter.add_rows(plane, 0, values)

    def of(self, case: Case, rule: Rule, temperature: float) -> Row:
        """Worst milliseconds of a round and of the bare pass of its width."""
        sampling = Sampling(temperature, seed=1)
        budget = replace(case.budget, sampling=sampling)
        if budget.drawing is not None:
            budget = replace(budget, drawing=replace(budget.drawing, key=b"cost"))
        draft = self._drafter.propose(budget).draft
        request = Request(self._key, self.context, self._base, draft, self._final)
        passes, found = [], None
        for _ in range(REPEATS):
            begun = time.thread_time()
            (found,) = self.engine.forward([request], hidden=rule.needs_hidden)
            passes.append(1e3 * (time.thread_time() - begun))
        if found is None:
            sys.exit("the target gave no logits")
        states = None if found.hidden is None else found.hidden.float().numpy()
        nodes = Nodes(draft, found.logits.numpy(), sampling, self.context + 1, found.exact, states=states)
        if not draft.laws:
            nodes.draft = agreeing(case, nodes)
        worst = max(self._worst(rule, nodes, coins) for coins in COINS)
        bare = statistics.median(passes)
        return {"nodes": len(draft), "worst_ms": worst, "pass_ms": bare, "worst_share": worst / bare}

    @staticmethod
    def _worst(rule: Rule, nodes: Nodes, coins: SameCoin) -> float:
        given = read_parameters(rule, lenient(rule) if coins.value == 0.0 else NOTHING)
        timed = Timed(rule)
        for _ in range(REPEATS):
            # A new view each time: it remembers what was asked of it, and a round asks anew.
            timed(replace(nodes, coins=coins, _choices={}, _histories={}), given)
        return statistics.median(timed.times)


def agreeing(case: Case, nodes: Nodes) -> Draft:
    """The draft with the target's own token (of `look`, the one it draws) as the first child of every row."""
    draft, looked = nodes.draft, replace(nodes, coins=COINS[0])
    ids = list(draft.ids)
    for row in draft.inner_rows:
        own = (
            looked.draw(looked.law(row), row, Purpose.REPLACE)
            if case.rule == "look"
            else nodes.choice(row).token
        )
        ids[draft.children(row)[0]] = own
    return replace(draft, ids=tuple(ids))


def lenient(rule: Rule) -> Mapping[str, float]:
    """Parameters under which `typical` and `judge` keep a chain whole."""
    return {
        "typical": {"epsilon": 0.0},
        "judge": {"delta": 0.0, "floor": 0.0},
    }.get(rule.name, {})
