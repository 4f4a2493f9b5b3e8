"""A target and a drafter that are tables, so that whole texts can be drawn by the ten thousand through the real stack.

Ids are 3 … 10; those below end texts elsewhere and are never said. An answer is a row of *blocks* of three tokens;
every law depends on the tokens of its block alone, so a long answer is many independent draws of three tokens, and
rounds begin and end anywhere in them. At most four ids are possible at each place (top_k), which makes 64 blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from outrider.client.drafter import Budget, Drawing, Proposal, SequenceDrafter
from outrider.client.drafters.drawing import Drawn, Entries, draw
from outrider.client.drafters.growth import ROOT, Pool
from outrider.client.machine_settings import Offline
from outrider.client.plan import Plan
from outrider.cloud.events import Verified, Verify
from outrider.cloud.rounds import FIRST_WINDOW
from outrider.cloud.rules import KNOWN, Nodes, read_parameters
from outrider.cloud.table import SessionTable
from outrider.cloud.table_state import TableSettings
from outrider.shared.coins import Coins
from outrider.shared.frames import Feature, Rule
from outrider.shared.laws import SparseLaw
from outrider.shared.noise import gumbel
from outrider.shared.sampling import Sampling, law
from outrider.shared.tokenizer import Tokenizer
from outrider.shared.warps import softmax
from tests.device import Device, chain, tree
from tests.harness import Handle, running_verifier
from tests.toy_engine import ToyEngine
from tests.toy_verifier import toy_loaded

IDS, BLOCK, POSSIBLE = 11, 3, 4
NOISE = 0.25
"""Of the drafter's logits: its law is off by about 0.13 at every token, at temperature 1."""
SESSIONS = 8
"""That are open at once, so that passes are packed, and threads change hands for many rounds and not for each."""
SILENT = 3
"""Ids below are never said."""
PROMPT = (3, 4, 5, 6, 4)
FEATURES = (Feature.TREES, Feature.RUN_AHEAD, Feature.PIPELINE, Feature.DRAFT_LAWS)

NOISE_KEPT = 1000
"""Positions whose shared noise a drafter keeps: most are drafted again in the next round."""
DEPTH, WIDTH = 8, 4
"""Of trees: so many nodes deep, and so many at each depth on average."""
TREES = ("multidraft", "batch", "traversal", "delta", "look", "typical")
"""Rules that are given trees here."""
Block = tuple[int, ...]


@cache
def logits_of(block: Block, noise: float = 0.0) -> NDArray[np.float32]:
    """The target's logits [IDS] after the tokens of a block; the drafter's are these with ``noise``."""
    own = np.random.default_rng((1, *block)).normal(0.0, 1.4, IDS)
    base = np.random.default_rng((0, *block)).normal(0.0, 1.4, IDS)
    logits = (base + noise * own).astype(np.float32)
    logits[:SILENT] = -100.0
    return logits


def block_of(ids: Sequence[int]) -> Block:
    """The tokens of the block that ``ids``, an answer so far, ends in the midst of."""
    return tuple(ids[len(ids) // BLOCK * BLOCK :])


def exact(sampling: Sampling) -> dict[Block, float]:
    """The target's own law of a block, by the shared warps; of answers of one block where they look at the text."""
    found: dict[Block, float] = {(): 1.0}
    for _ in range(BLOCK):
        longer: dict[Block, float] = {}
        for block, chance in found.items():
            text = sampling.history((*PROMPT, *block), len(PROMPT))
            for token, share in enumerate(law(logits_of(block), sampling, text)):
                if share > 0.0:
                    longer[*block, token] = chance * float(share)
        found = longer
    return found


class TableNodes(Nodes):
    """The real view of a round; a law that the text before the block has no part in is worked out once."""

    blocks: tuple[Block, ...] = ()
    known: dict[tuple[Block, Sampling], NDArray[np.float64]]

    def law(self, row: int) -> NDArray[np.float64]:
        """As always."""
        if self.sampling.needs_history:
            return super().law(row)
        key = (self.blocks[row], replace(self.sampling, seed=0))
        if key not in self.known:
            self.known[key] = super().law(row)
        return self.known[key]


class TableDrawn(Drawn):
    """The real drawing; likewise."""

    def __init__(
        self, budget: Budget, drawing: Drawing, ids: Sequence[int], known: dict[Block, SparseLaw]
    ) -> None:
        super().__init__(budget, drawing, ids)
        self._answer, self._known = ids[len(PROMPT) :], known

    def block(self, node: int) -> Block:
        """Where a node stands."""
        return block_of([*self._answer, *self.path(node)])

    def law(self, parent: int, entries: Entries) -> SparseLaw:
        """As always."""
        if self.budget.sampling.needs_history:
            return super().law(parent, entries)
        block = self.block(parent)
        if block not in self._known:
            self._known[block] = super().law(parent, entries)
        return self._known[block]


class TableEngine(ToyEngine):
    """The engine contract over the table, judging by the real rules."""

    def __init__(self) -> None:
        super().__init__(IDS)
        self._known: dict[tuple[Block, Sampling], NDArray[np.float64]] = {}

    def logits(self, prefix: Sequence[int]) -> NDArray[np.float64]:
        """Scores after a whole text."""
        return logits_of(block_of(prefix[len(PROMPT) :])).astype(np.float64)

    def _verify(self, kv: list[int], work: Verify) -> Verified:
        kv.extend(work.pending)
        draft = work.draft
        blocks = [block_of(kv[len(PROMPT) :])]
        for token, parent in zip(draft.ids, draft.parents, strict=True):
            blocks.append((*blocks[parent], token) if len(blocks[parent]) < BLOCK - 1 else ())
        rows = np.stack([logits_of(block) for block in blocks])
        nodes = TableNodes(
            draft, rows, work.sampling, len(kv), coins=Coins(work.coin_key), history=work.history
        )
        nodes.blocks, nodes.known = tuple(blocks), self._known
        rule = KNOWN.find(work.rule, work.sampling)
        decision = rule(nodes, read_parameters(rule, dict(work.rule.parameters)))
        kv.extend(draft.ids[node] for node in decision.path)
        return Verified(work.key, decision.path, decision.next_id, kinds=decision.kinds, audit=decision.audit)


class TableDrafter(SequenceDrafter):
    """Drafts from the other table; drawn as asked for, or the likeliest as a tree."""

    kind = "table"

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Block, SparseLaw] = {}
        self._noise: dict[tuple[int, int], NDArray[np.float64]] = {}
        self._likely: dict[tuple[Block, int], list[tuple[int, float]]] = {}

    def propose(self, budget: Budget) -> Proposal:
        """A draft of the full size."""
        text = self.ids[len(PROMPT) :]
        if budget.drawing is not None:
            drawn = TableDrawn(budget, budget.drawing, self.ids, self._known)
            return self.count(draw(drawn, lambda node: self._entries(drawn.block(node))))
        pool = Pool(replace(budget, max_depth=min(budget.max_depth, budget.max_nodes)))
        best = partial(self._best, sampling=budget.sampling, count=pool.shape.children)
        paths: dict[int, list[int]] = {ROOT: text}
        fresh = pool.add_level([ROOT], [best(text)])
        while frontier := pool.frontier(fresh):
            for node in frontier:
                paths[node] = [*paths[pool.nodes[node].parent], pool.nodes[node].token_id]
            fresh = pool.add_level(frontier, [best(paths[node]) for node in frontier])
        return self.count(pool.proposal()[0])

    def _entries(self, block: Block) -> Entries:
        return np.arange(SILENT, IDS), logits_of(block, NOISE)[SILENT:].astype(np.float64)

    def _best(self, text: Sequence[int], sampling: Sampling, count: int) -> list[tuple[int, float]]:
        """The likeliest, or those that the shared noise makes so."""
        block = block_of(text)
        if sampling.greedy:
            if (block, count) not in self._likely:
                self._likely[block, count] = self._ranked(block, count, np.zeros(IDS))
            return self._likely[block, count]
        place = (sampling.seed, len(PROMPT) + len(text))
        if len(self._noise) > NOISE_KEPT:
            self._noise.clear()
        if place not in self._noise:
            self._noise[place] = gumbel(*place, None, IDS)
        return self._ranked(block, count, self._noise[place])

    def _ranked(self, block: Block, count: int, noise: NDArray[np.float64]) -> list[tuple[int, float]]:
        chances = softmax(logits_of(block, NOISE) + noise)
        best = np.argsort(-chances)[:count]
        return [(int(token), float(np.log(chances[token]))) for token in best]


@dataclass(slots=True)
class Draws:
    """Answers asked for in one session, and what they were made of."""

    blocks: dict[Block, int] = field(default_factory=dict)
    tokens: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Blocks drawn."""
        return sum(self.blocks.values())

    def add(self, other: Draws) -> None:
        """Those of another session too."""
        self.tokens += other.tokens
        for block, count in other.blocks.items():
            self.blocks[block] = self.blocks.get(block, 0) + count
        for kind, count in other.kinds.items():
            self.kinds[kind] = self.kinds.get(kind, 0) + count


@dataclass(frozen=True, slots=True)
class World:
    """A verifier of the table."""

    handle: Handle
    tokenizer: Tokenizer

    def draws(self, rule: Rule, sampling: Sampling, count: int, seed: int, *, per_turn: int = 125) -> Draws:
        """``count`` blocks or a few more under a rule, ``per_turn`` in an answer; the same for the same seed."""
        return asyncio.run(self._together(rule, sampling, count, seed, per_turn))

    async def _together(self, rule: Rule, sampling: Sampling, count: int, seed: int, per_turn: int) -> Draws:
        """From sessions side by side, each with seeds of its own."""
        share = -(-count // SESSIONS)
        seeds = [seed + (number << 32) for number in range(SESSIONS)]
        alone = [
            self._draws(self._device(rule, own, per_turn), rule, replace(sampling, seed=own), share, per_turn)
            for own in seeds
        ]
        found = Draws()
        for draws in await asyncio.gather(*alone):
            found.add(draws)
        return found

    def _device(self, rule: Rule, seed: int, per_turn: int) -> Device:
        return Device(
            address=self.handle.address,
            tokenizer=self.tokenizer,
            drafter=TableDrafter(),
            plan=plan_of(rule, BLOCK * per_turn),
            offline=Offline.NEVER,
            settings={"session_id": seed.to_bytes(16, "little"), "draft_secret": seed.to_bytes(32, "big")},
        )

    @staticmethod
    async def _draws(device: Device, rule: Rule, sampling: Sampling, count: int, per_turn: int) -> Draws:
        found = Draws()
        async with device.session() as session:
            while found.count < count:
                # Shared noise is a function of seed and position: with one seed all answers would be the same.
                sampling = replace(sampling, seed=sampling.seed + 1_000_003)
                events = session.generate(
                    PROMPT, keep=0, max_new=BLOCK * per_turn, sampling=sampling, rule=rule
                )
                async for _ in events:
                    pass
                transcript = session.transcript
                ids = () if transcript is None else transcript.ids
                if len(ids) != BLOCK * per_turn or transcript is None:
                    raise ValueError(f"an answer of {len(ids)} tokens")
                for start in range(0, len(ids), BLOCK):
                    block = tuple(ids[start : start + BLOCK])
                    found.blocks[block] = found.blocks.get(block, 0) + 1
                for piece in transcript.pieces:
                    found.kinds[piece.label] = found.kinds.get(piece.label, 0) + 1
                found.tokens += len(ids)
        return found


def plan_of(rule: Rule, longest: int) -> Plan:
    """Long chains (longer than the verifier judges in one pass) or trees, and nothing else: no run-ahead that would let
    the target write by itself. No deeper than the ``longest`` answer."""
    depth = min(longest, DEPTH if rule.name in TREES else FIRST_WINDOW + 4)
    return tree(WIDTH * depth, depth) if rule.name in TREES else chain(depth)


@contextmanager
def law_world(tokenizer: Tokenizer) -> Iterator[World]:
    """A verifier of the table that serves every rule, until the block ends; its coins are always the same."""
    loaded = toy_loaded(TableEngine(), tokenizer_file=tokenizer.artefact)
    table = loaded.table()
    if not isinstance(table, SessionTable):
        raise TypeError("a toy verifier has another table")
    served = replace(table.served, rules=KNOWN, features=FEATURES, sources=(), coin_secret=b"a fixed secret")
    loaded = replace(loaded, table=partial(SessionTable, served, TableSettings()), rows=None)
    with running_verifier(loaded=loaded) as handle:
        yield World(handle, tokenizer)
