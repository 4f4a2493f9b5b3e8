"""The rounds of one stream: their order, their digests, and how a draft is fitted to a log that has moved on."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from outrider.shared.anchor import TokenSequence
from outrider.shared.codec import pack_ids, pack_parents
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.frames import Anchor, DraftFrame, RoundOutcome, Turn, Verdict

REMEMBERED = 8
"""Rounds whose digest and answer are kept for a repeat."""
FIRST_WINDOW = 16
"""Ids of a long chain verified in its first pass; doubled while everything is accepted."""


@dataclass(slots=True)
class WaitingRound:
    """A draft that has no verdict yet."""

    frame: DraftFrame
    received_at: float
    busy: bool = False
    """Refused at admission; answered in its turn."""
    window: int = FIRST_WINDOW
    base: Anchor | None = None
    """Where the rest of the draft now hangs, once a part of a long chain was committed."""
    rest: Draft | None = None
    trimmed: int = 0
    started_at: float = 0.0

    @property
    def anchor(self) -> Anchor:
        """The prefix that the (rest of the) draft continues."""
        return self.base or self.frame.base or self.frame.window.seen

    @property
    def draft(self) -> Draft:
        """The (rest of the) draft."""
        return self.rest if self.rest is not None else self.frame.draft


@dataclass(slots=True)
class Rounds:
    """Numbering, digests and the queue of one stream."""

    last: int = 0
    digests: dict[int, bytes] = field(default_factory=dict)
    answers: dict[int, Verdict] = field(default_factory=dict)
    waiting: deque[WaitingRound] = field(default_factory=deque)

    def accept(self, frame: DraftFrame, now: float, busy: bool) -> WaitingRound:
        """Enqueue the next round."""
        self.last = frame.round
        self.digests[frame.round] = digest(frame)
        for old in [number for number in self.digests if number <= self.last - REMEMBERED]:
            del self.digests[old]
            self.answers.pop(old, None)
        self.waiting.append(WaitingRound(frame, now, busy))
        return self.waiting[-1]

    def answer(self, verdict: Verdict) -> None:
        """Remember the answer of the oldest waiting round and take it off the queue."""
        self.waiting.popleft()
        if verdict.round in self.digests:
            self.answers[verdict.round] = verdict


def digest(frame: DraftFrame) -> bytes:
    """What makes two drafts the same: turn, base, tokens, their kind and laws; never the bytes that carried them."""
    parts = frame.turn.to_bytes(4, "little"), _named(frame.base or frame.window.seen, frame.draft)
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def question(turn: Turn, base: Anchor, stop_ids: Collection[int], draft: Draft) -> bytes:
    """Everything a verdict on ``draft`` below ``base`` depends on, but for the target and the coins.

    The same on any replica, whatever stream or round it is asked in.
    """
    terms = repr((turn.sampling, turn.rule, turn.generated_from, sorted(stop_ids))).encode()
    return hashlib.blake2b(len(terms).to_bytes(4, "little") + terms + _named(base, draft)).digest()


def _named(base: Anchor, draft: Draft) -> bytes:
    """A draft and where it hangs, as bytes that no other has."""
    laws = [number for law in draft.laws for number in (law.bits, len(law.ids), *law.ids, *law.counts)]
    parts = (
        base.length.to_bytes(4, "little"),
        base.hash.to_bytes(8, "little"),
        len(draft.ids).to_bytes(4, "little"),
        pack_ids(draft.ids),
        pack_parents(draft.parents),
        bytes((draft.kind,)),
        pack_ids(laws),
    )
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A draft that continues the log as it is now."""

    draft: Draft
    trimmed: int
    """Draft tokens that had been committed already."""


def fit(draft: Draft, base: Anchor, log: TokenSequence) -> Fitted | None:
    """The part of ``draft`` below what was committed since ``base``; None when the log went another way.

    A drawn draft must begin where the log ends. What was committed meanwhile may come from a verdict on this very
    draft, and the rest of it would then no longer be a draw that knows nothing of the coins.
    """
    if not log.contains(base):
        return None
    if draft.kind is not DraftKind.CHOSEN and base.length < len(log):
        return None
    node = 0  # as in parents: 0 = the base, k = node k-1
    for token_id in log.ids[base.length :]:
        child = _child(draft, node, token_id)
        if child is None:
            return None
        node = child + 1
    return Fitted(_below(draft, node), len(log) - base.length)


def bound(draft: Draft, depth: int, stop_ids: Collection[int]) -> Draft:
    """``draft`` without nodes deeper than ``depth`` tokens and without what follows a stop id.

    Either way a row keeps all its children or none, so a drawn draft stays one.
    """
    if draft.is_chain:
        ids = draft.ids[: max(depth, 0)]
        end = next((i + 1 for i, token_id in enumerate(ids) if token_id in stop_ids), len(ids))
        return draft.only(range(end))
    depths = draft.depths
    kept = {0}
    for index, parent in enumerate(draft.parents):
        closed = parent and draft.ids[parent - 1] in stop_ids
        if parent in kept and depths[index] <= depth and not closed:
            kept.add(index + 1)
    return draft.only([row - 1 for row in sorted(kept) if row])


def path_ids(draft: Draft, accepted: Sequence[int]) -> tuple[int, ...] | None:
    """Ids along node indices ``accepted``; None unless they are a path from the base."""
    parent = 0
    for node in accepted:
        if not 0 <= node < len(draft.ids) or draft.parents[node] != parent:
            return None
        parent = node + 1
    return tuple(draft.ids[node] for node in accepted)


def superseded(number: int) -> Verdict:
    """The answer to a draft that no longer fits."""
    return Verdict(number, RoundOutcome.SUPERSEDED)


def _child(draft: Draft, node: int, token_id: int) -> int | None:
    if draft.is_chain:
        return node if node < len(draft.ids) and draft.ids[node] == token_id else None
    for index in range(node, len(draft.ids)):
        if draft.parents[index] == node and draft.ids[index] == token_id:
            return index
    return None


def _below(draft: Draft, node: int) -> Draft:
    if node == 0:
        return draft
    kept = {node}
    for index in range(node, len(draft.ids)):
        if draft.parents[index] in kept:
            kept.add(index + 1)
    return draft.only([row - 1 for row in sorted(kept) if row != node], root=node)
