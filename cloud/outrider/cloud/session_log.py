"""One session as the verifier keeps it: the log by position, the turn that is being written, and what the KV holds.

Everything here is a cache of the device's journal. The log of a turn only grows; the device alone rewrites its end,
by a new turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.cloud.rules import Audit
from outrider.shared.anchor import TokenSequence
from outrider.shared.frames import Commit, FinishReason, Rule, RuleReport, TokenKind, Turn, TurnEnd
from outrider.shared.sampling import LogProbs

COMMIT_IDS = 8192
"""Ids in one catch-up Commit, at most: half of what a bytes field may hold."""


@dataclass(slots=True)
class Session:
    """A session of this process. ``key`` names it to the engine."""

    key: int
    principal: str
    session_id: bytes
    log: TokenSequence = field(default_factory=TokenSequence)
    kinds: list[TokenKind] = field(default_factory=list)
    """Kinds of the tokens from ``kinds_from`` on; what lies before came from the device."""
    kinds_from: int = 0
    log_probs: list[LogProbs] = field(default_factory=list)
    """Of these tokens, in turns that ask for them; otherwise empty."""
    audit: Audit = field(default_factory=Audit)
    """What the turn's rule did to the law here, summed over its rounds."""
    rule: Rule = field(default_factory=Rule)
    """The turn's, with every parameter it has."""
    client_laws: bool = False
    """A verdict of this turn rests on laws that the client alone vouches for."""
    turn: Turn | None = None
    ended: FinishReason | None = None
    epoch: int = 0
    stream: int | None = None
    generation: int = 0
    """Counts rewrites of the log; work begun under an older one must not reach the log."""
    kv: list[int] = field(default_factory=list)
    """Ids whose keys and values the engine holds; always shorter than the log once the turn runs."""
    final: bool = False
    """The target's final hidden states are kept beside the KV."""
    running: bool = False
    evict_when_idle: bool = False
    dirty: bool = False
    """The log was rewritten and the KV not yet cut to it."""
    run_until: int = 0
    """Length up to which the target may go on alone (already clipped to the limits)."""
    since: float = 0.0
    """When the oldest work that waits was asked for; older work has the right of way."""
    used_at: float = 0.0
    skipped: bool = False
    """A run-ahead step gave way to drafts last time, and goes first next time."""

    @property
    def length(self) -> int:
        """Tokens in the log."""
        return len(self.log)

    @property
    def turn_number(self) -> int:
        """The current turn; 0 before the first."""
        return self.turn.turn if self.turn else 0

    def rewrite(self, turn: Turn, ids: Sequence[int], rule: Rule | None = None) -> None:
        """The device's new truth: the whole sequence is ``ids``, of which nothing was committed here.

        ``rule`` is the turn's with every parameter; None: as asked for.
        """
        same = common_prefix(self.log.ids, ids)
        self.log.cut(same)
        self.log.append(ids[same:])
        self.kinds, self.log_probs, self.kinds_from = [], [], len(ids)
        self.turn, self.ended = turn, None
        self.rule, self.audit, self.client_laws = rule or turn.rule, Audit(), False
        self.generation += 1
        self.run_until = 0
        self.dirty = True

    def append(
        self, ids: Sequence[int], kinds: Sequence[TokenKind], log_probs: Sequence[LogProbs] = ()
    ) -> None:
        """Commit tokens at the end of the log."""
        self.log.append(ids)
        self.kinds.extend(kinds)
        self.log_probs.extend(log_probs)

    def audited(self, audit: Audit | None, client_laws: bool) -> None:
        """Count a round of the turn."""
        self.audit += audit or Audit()
        self.client_laws |= client_laws

    def kv_surplus(self) -> int | None:
        """The length to cut the KV to, when it holds what is not in the log; None if there is nothing to cut.

        At least the last committed id stays out of the KV: the next pass needs a row for it.
        """
        keep = min(common_prefix(self.kv, self.log.ids), max(self.length - 1, 0))
        return keep if keep < len(self.kv) else None

    def end_reason(self, longest: int, stop_ids: frozenset[int]) -> FinishReason | None:
        """Why the turn is over at the log's present end, if it is."""
        if self.turn is None:
            return None
        if self.length > self.turn.generated_from and self.log.ids[-1] in stop_ids:
            return FinishReason.STOP_ID
        if self.length >= self.turn.max_length:
            return FinishReason.LENGTH
        return FinishReason.CONTEXT if self.length >= longest else None

    def commits_from(self, start: int) -> list[Commit]:
        """The log from ``start`` on, as frames; only what was committed here."""
        frames: list[Commit] = []
        start = max(start, self.kinds_from)
        while start < self.length:
            stop = min(self.length, start + COMMIT_IDS)
            frames.append(self.commit_frame(start, stop))
            start = stop
        return frames

    def commit_frame(self, start: int, stop: int, near_ties: int = 0) -> Commit:
        """Positions start … stop-1 of the log as one frame."""
        span = slice(start - self.kinds_from, stop - self.kinds_from)
        return Commit(
            self.turn_number,
            start,
            self.log.slice(start, stop),
            tuple(self.kinds[span]),
            near_ties=near_ties,
            log_probs=tuple(self.log_probs[span]),
        )

    def end_frame(self) -> TurnEnd:
        """The end of the turn as a frame; only when ``ended``."""
        reason = self.ended or FinishReason.CANCELLED
        return TurnEnd(self.turn_number, reason, self.log.anchor, self._rule_report())

    def _rule_report(self) -> RuleReport | None:
        if self.turn is None:
            return None
        rule, audit = self.rule, self.audit
        return RuleReport(
            rule=rule,
            positions=audit.positions,
            rejection=audit.rejection,
            loss=audit.loss,
            tv=audit.tv,
            client_laws=self.client_laws,
        )


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading ids are equal."""
    count = min(len(left), len(right))
    if left[:count] == right[:count]:
        return count
    for index in range(count):
        if left[index] != right[index]:
            return index
    return count
