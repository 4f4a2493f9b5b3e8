"""A target and a drafter that cost nothing and forgive nothing: every token is a keyed hash of what came before.

Any token that is lost, doubled, shifted or taken from another text changes everything after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.client.drafter import Budget, Proposal
from outrider.cloud.events import MakeRows, Outcome, Prefill, Prefilled, Verified, Verify, Work, WorkFailed
from outrider.shared.codec import encode_rows
from outrider.shared.draft import Draft
from outrider.shared.frames import RowEncoding, RowPlane
from outrider.shared.sampling import Sampling

VOCABULARY = 97
STOP_ID = 0
PLANE = RowPlane(0, 3, RowEncoding.F32, "toy.prefix", 1)
_MASK = 2**64 - 1
_ORDER = 4


def mix(*numbers: int) -> int:
    """A 64-bit hash of small numbers, the same on every machine."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = ((state ^ (number & _MASK)) * 0x100000001B3) & _MASK
        state ^= state >> 29
    state = (state * 0xBF58476D1CE4E5B9) & _MASK
    return state ^ (state >> 32)


@dataclass(frozen=True, slots=True)
class ToyTarget:
    """The target: its next token is a hash of the last four ids and, when sampling, of seed and position."""

    key: int

    def next_id(self, ids: Sequence[int], sampling: Sampling) -> int:
        """The token that follows ``ids``."""
        coin = (sampling.seed + 1, len(ids)) if sampling.temperature > 0 else ()
        return mix(self.key, *ids[-_ORDER:], *coin) % VOCABULARY

    def row(self, ids: Sequence[int], turn: int) -> tuple[float, float, float]:
        """The state row of the last of ``ids``: its id, its position, and a hash of prefix and turn."""
        return (float(ids[-1]), float(len(ids) - 1), float(mix(self.key, turn, *ids[-_ORDER:]) % 2**20))


class ToyEngine:
    """The engine's contract over the toy target. ``broken`` collects works that do not fit the KV."""

    def __init__(self, target: ToyTarget) -> None:
        self.target = target
        self.kv: dict[int, list[int]] = {}
        self.fail_next = ""
        self.broken: list[str] = []
        self.shared_passes = 0

    def run(self, works: Sequence[Work]) -> tuple[Outcome, ...]:
        """One pass."""
        self.shared_passes += len({work.key for work in works}) > 1
        failure, self.fail_next = self.fail_next, ""
        return tuple(
            self._fail(w, failure) if failure and not i else self._one(w) for i, w in enumerate(works)
        )

    def rows(self, work: MakeRows) -> tuple[bytes, ...]:
        """Encoded rows of one plane; empty when the KV does not hold the positions."""
        kv = self.kv.get(work.key, [])
        if work.stop > len(kv):
            return ()
        values = [self.target.row(kv[: n + 1], work.turn) for n in range(work.start, work.stop)]
        return (encode_rows(np.asarray(values, np.float32), PLANE),)

    def truncate(self, key: int, length: int) -> None:
        """Keep the first positions."""
        if length > len(self.kv.get(key, [])):
            self.broken.append(f"truncate to {length} of {len(self.kv.get(key, []))}")
        del self.kv[key][length:]

    def evict(self, key: int) -> None:
        """Forget a session."""
        self.kv.pop(key, None)

    def _fail(self, work: Work, failure: str) -> Outcome:
        self.evict(work.key)
        return WorkFailed(work.key, "told to", no_room=failure == "no_room")

    def _one(self, work: Work) -> Outcome:
        kv = self.kv.setdefault(work.key, [])
        if work.start != len(kv):
            self.broken.append(f"work starts at {work.start}, the KV holds {len(kv)}")
        if isinstance(work, Prefill):
            kv.extend(work.ids)
            return Prefilled(work.key)
        return self._verify(kv, work)

    def _verify(self, kv: list[int], work: Verify) -> Verified:
        if not work.pending:
            self.broken.append("a verification without a committed token")
        kv.extend(work.pending)
        accepted: list[int] = []
        node = 0
        while True:
            chosen = self.target.next_id(kv, work.sampling)
            child = find_child(work.draft, node, chosen)
            if child is None:
                return Verified(work.key, tuple(accepted), chosen)
            accepted.append(child)
            kv.append(chosen)
            node = child + 1


def find_child(draft: Draft, node: int, token_id: int) -> int | None:
    """Index of the child of ``node`` (0 = the base, k = node k-1) with this id."""
    for index, parent in enumerate(draft.parents):
        if parent == node and draft.ids[index] == token_id:
            return index
    return None


@dataclass(slots=True)
class ToyDrafter:
    """The target with a seeded error rate; at rate 1 it is wrong at every position."""

    target: ToyTarget
    seed: int
    error_rate: float
    ids: list[int]

    def propose(self, budget: Budget) -> Proposal:
        """A chain, or with ``tree`` a chain with a wrong sibling at each depth."""
        depth = min(budget.max_depth, budget.max_nodes)
        chain: list[int] = []
        for _ in range(depth):
            chain.append(
                self._guess([*self.ids[-_ORDER:], *chain], len(self.ids) + len(chain), budget.sampling)
            )
        if not budget.tree or budget.max_nodes < 2 * depth:
            return Proposal.chain(chain, [-0.1] * len(chain))
        return _with_siblings(chain)

    def _guess(self, context: list[int], position: int, sampling: Sampling) -> int:
        coin = (sampling.seed + 1, position) if sampling.temperature > 0 else ()
        right = mix(self.target.key, *context[-_ORDER:], *coin) % VOCABULARY
        draw = mix(self.seed, position, *context[-_ORDER:])
        if draw % 1000 >= self.error_rate * 1000:
            return right
        wrong = (draw >> 16) % (VOCABULARY - 1)
        return wrong if wrong < right else wrong + 1


def _with_siblings(chain: list[int]) -> Proposal:
    ids: list[int] = []
    parents: list[int] = []
    best: list[int] = []
    parent = 0
    for token_id in chain:
        ids += [(token_id + 1) % VOCABULARY, token_id]
        parents += [parent, parent]
        best.append(len(ids) - 1)
        parent = len(ids)
    return Proposal(Draft(tuple(ids), tuple(parents)), (-0.1,) * len(ids), tuple(best))
