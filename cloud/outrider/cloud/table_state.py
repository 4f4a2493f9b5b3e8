"""What the session table keeps, and the small verbs that every part of it uses: send, fail, count, evict."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from secrets import token_bytes

from outrider.cloud.events import Count, EndStream, EvictKv, Priority, SendFrame, TableAction, TruncateKv
from outrider.cloud.rounds import Rounds, question
from outrider.cloud.rows_schedule import RowsSchedule
from outrider.cloud.rules import EXACT, Rulebook
from outrider.cloud.session_log import Session
from outrider.shared.coins import question_key, turn_key
from outrider.shared.draft import Draft
from outrider.shared.errors import OutriderError, to_failure
from outrider.shared.frames import (
    CostCurve,
    DownFrame,
    Failure,
    FailureReason,
    Feature,
    Fingerprints,
    Limits,
    Numerics,
    Open,
    Pong,
    Progress,
    RowPlane,
    Turn,
)

EARLY = float("inf")
"""The time since when nothing waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """Dials of the table; times in seconds."""

    max_sessions: int = 1024
    """Sessions known at once, attached or not."""
    max_sessions_per_principal: int = 256
    """Of these, sessions of one principal."""
    max_waiting_drafts: int = 64
    """Drafts waiting over all sessions; more are answered BUSY."""
    max_prefill_backlog_tokens: int = 65_536
    """Tokens still to prefill over all sessions; above it a session that needs a prefill is not admitted."""
    max_step_tokens: int = 512
    """Tokens in one packed pass, except that one work alone may be longer."""
    prefill_chunk: int = 128
    """Prompt tokens in one pass while no draft waits."""
    prefill_chunk_busy: int = 32
    """Prompt tokens in one pass that carries drafts as well."""
    busy_retry_ms: int = 50
    """Advice sent with BUSY."""
    max_queued_bytes: int = 262_144
    """Bytes queued towards a device above which run-ahead and rows pause."""
    progress_s: float = 0.35
    """Silence after which a session that waits for the target hears Progress."""
    pong_s: float = 1.0
    """Silence after which an open turn hears an unasked Pong."""
    stream_idle_s: float = 180.0
    """Silence of the device after which its stream is ended; the session stays."""
    drain_spread_ms: int = 2_000
    """Devices sent away spread their return over this time."""


@dataclass(frozen=True, slots=True)
class RowSource:
    """A drafter whose state rows are made here."""

    bundle: bytes
    """SHA-256 of the bundle that reads them."""
    planes: tuple[RowPlane, ...]
    needs_final: bool = False
    """Rows are made of the target's final hidden states too, which are kept for sessions that use this drafter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What this verifier serves; the same for every session."""

    vocabulary: int
    """Ids are 0 … vocabulary-1."""
    fingerprints: Fingerprints
    stop_ids: frozenset[int]
    """The target's own end tokens."""
    limits: Limits = field(default_factory=Limits)
    rules: Rulebook = EXACT
    features: tuple[Feature, ...] = (Feature.TREES, Feature.RUN_AHEAD, Feature.PIPELINE)
    sources: tuple[RowSource, ...] = ()
    """Drafters whose rows a session can have, each by its bundle; empty = none are made."""
    cost: CostCurve = field(default_factory=CostCurve)
    numerics: Numerics = field(default_factory=Numerics)
    replica: bytes = b""
    """8 bytes, stable for the life of the process, or empty."""
    kv_bytes_per_token: int = 1
    final_bytes_per_token: int = 0
    """On top of it, in sessions that keep final hidden states."""
    kv_budget_bytes: int = 2**30
    coin_secret: bytes = field(default_factory=lambda: token_bytes(32), repr=False)
    """What every coin of every rule comes from; replicas that are to give the same verdicts have the same."""

    def source_of(self, bundle: bytes) -> RowSource | None:
        """The drafter behind a bundle, if its rows are made here."""
        return next((source for source in self.sources if source.bundle == bundle), None)

    @property
    def most_bytes_per_token(self) -> int:
        """What a token costs in the most demanding session there can be."""
        final = any(source.needs_final for source in self.sources)
        return self.kv_bytes_per_token + (self.final_bytes_per_token if final else 0)


@dataclass(slots=True)
class Stream:
    """One Decode call that passed its Open."""

    number: int
    session: Session
    granted: frozenset[Feature]
    now: float
    rounds: Rounds = field(default_factory=Rounds)
    source: RowSource | None = None
    """The drafter this stream's rows are for."""
    rows: RowsSchedule | None = None
    opening: Open | None = None
    """The Open whose context has not arrived yet."""
    known: tuple[int, ...] = ()
    pieces: list[int] = field(default_factory=list)
    queued_bytes: int = 0
    sent_at: float = 0.0
    heard_at: float = 0.0

    def __post_init__(self) -> None:
        self.sent_at = self.heard_at = self.now


class TableState:
    """Sessions, streams and the actions collected for the present event."""

    def __init__(self, served: Served, settings: TableSettings) -> None:
        longest = served.kv_budget_bytes // max(served.most_bytes_per_token, 1)
        limits = replace(served.limits, max_context_tokens=min(served.limits.max_context_tokens, longest))
        self.served = replace(served, limits=limits)
        self.settings = settings
        self.sessions: dict[int, Session] = {}
        self.streams: dict[int, Stream] = {}
        self.keys: dict[tuple[str, bytes], int] = {}
        self.next_key = 1
        self.now = 0.0
        self.drain_deadline: float | None = None
        self._out: list[TableAction] = []

    @property
    def longest(self) -> int:
        """Tokens a sequence may have."""
        return self.served.limits.max_context_tokens

    def stop_ids(self, session: Session) -> frozenset[int]:
        """The ids that end the session's turn."""
        own = session.turn.stop_ids if session.turn else ()
        return frozenset(own) if own else self.served.stop_ids

    def stream_of(self, session: Session) -> Stream | None:
        """The stream a session is attached by."""
        return None if session.stream is None else self.streams.get(session.stream)

    def granted(self, session: Session, feature: Feature) -> bool:
        """Whether the session's present stream may use a feature."""
        stream = self.stream_of(session)
        return stream is not None and feature in stream.granted

    def coin_key(self, session: Session, turn: Turn, stop_ids: Collection[int], draft: Draft) -> bytes:
        """The key of a verdict's coins: nobody's but this verifier's, and the same whenever it is asked for again."""
        whose = session.principal.encode() + b"\0" + session.session_id
        asked = question(turn, session.log.anchor, stop_ids, draft)
        return question_key(turn_key(self.served.coin_secret, whose, turn.turn), asked)

    # ------------------------------------------------------------------------------------------------ actions

    def act(self, action: TableAction) -> None:
        """Collect an action."""
        self._out.append(action)

    def count(self, metric: str, value: float = 1.0, **labels: str) -> None:
        """Collect a metric."""
        self._out.append(Count(metric, value, tuple(sorted(labels.items()))))

    def send(self, stream: Stream, frame: DownFrame, priority: Priority = Priority.COMMIT) -> None:
        """Write a frame to a stream."""
        stream.sent_at = self.now
        self._out.append(SendFrame(stream.number, frame, priority))

    def sign(self, stream: Stream, frame: Progress | Pong) -> None:
        """Write a sign of life."""
        self.send(stream, frame, Priority.SIGN)

    def refuse(self, number: int, failure: Failure) -> None:
        """End a stream with a last frame and its status."""
        self._out.append(SendFrame(number, failure, Priority.URGENT))
        self._out.append(EndStream(number, failure.reason, failure.detail))
        self.detach(number)

    def fail(self, stream: Stream, reason: FailureReason, detail: str) -> None:
        """End a stream for a reason; the session stays."""
        session = stream.session
        self.refuse(stream.number, Failure(reason, detail, session.log.anchor, last_epoch=session.epoch))

    def fail_with(self, number: int, error: OutriderError) -> None:
        """End a stream with the failure that an error stands for."""
        failure, stream = to_failure(error), self.streams.get(number)
        if stream is not None:
            failure = replace(failure, committed=stream.session.log.anchor)
        self.refuse(number, failure)

    # --------------------------------------------------------------------------------------- sessions and their KV

    def detach(self, number: int) -> None:
        """Forget a stream; drafts that no pass has taken up go with it."""
        stream = self.streams.pop(number, None)
        if stream is not None and stream.session.stream == number:
            stream.session.stream = None
            stream.session.used_at = self.now

    def evict(self, session: Session) -> None:
        """Drop a session's KV, after the pass that uses it."""
        session.evict_when_idle = session.running
        if session.kv and not session.running:
            session.kv = []
            stream = self.stream_of(session)
            session.final = stream is not None and stream.source is not None and stream.source.needs_final
            self.act(EvictKv(session.key))
            self.count("evictions_total")

    def forget(self, session: Session) -> None:
        """Drop a session with everything it has."""
        self.evict(session)
        self.keys.pop((session.principal, session.session_id), None)
        self.sessions.pop(session.key, None)
        self.count("sessions_open", len(self.sessions))
        if session.stream is not None:
            self.detach(session.stream)

    def trim_kv(self, session: Session) -> None:
        """Cut the KV back to what agrees with the log; waits for the pass under way."""
        if session.running:
            return
        if session.evict_when_idle:
            self.evict(session)
        if not session.dirty:
            return
        session.dirty = False
        length = session.kv_surplus()
        if length == 0:
            self.evict(session)
        elif length is not None:
            del session.kv[length:]
            self.act(TruncateKv(session.key, length))

    def keep_final(self, session: Session, needed: bool) -> None:
        """Whether final hidden states are kept beside the session's KV from now on.

        A KV without them is built anew. Those that no drafter needs any more are dropped by the next pass.
        """
        if needed and not session.final and (session.kv or session.running):
            self.evict(session)
        session.final = needed

    def token_bytes(self, session: Session) -> int:
        """What a token in the session's KV costs."""
        return self.served.kv_bytes_per_token + (self.served.final_bytes_per_token if session.final else 0)

    def kv_bytes(self, extra_bytes: int = 0) -> int:
        """KV bytes held by all sessions, plus this many."""
        return extra_bytes + sum(
            len(session.kv) * self.token_bytes(session) for session in self.sessions.values()
        )

    def make_room(self, needed_bytes: int, keep: Collection[int], before: tuple[float, int]) -> bool:
        """Evict until ``needed_bytes`` more fit; sessions in ``keep`` and those with older waiting work are spared.

        ``before`` is (since, key): of works that wait equally long the lower key is older, lest nobody may evict.
        With since = EARLY (nothing waits for this room) attached sessions are spared altogether.
        """
        victims = sorted(
            (s for s in self.sessions.values() if s.kv and s.key not in keep and not s.running),
            key=lambda s: (self.waits_since(s) is not None, s.stream is not None, s.used_at, s.key),
        )
        for victim in victims:
            if self.kv_bytes(needed_bytes) <= self.served.kv_budget_bytes:
                return True
            since = self.waits_since(victim)
            if before[0] == EARLY:
                spared = victim.stream is not None or since is not None
            else:
                spared = since is not None and (since, victim.key) <= before
            if not spared:
                self.evict(victim)
        return self.kv_bytes(needed_bytes) <= self.served.kv_budget_bytes

    def waits_since(self, session: Session) -> float | None:
        """When the oldest work that the session waits for was asked for; None when it waits for nothing."""
        stream = self.stream_of(session)
        if session.turn is None or session.ended is not None or (stream and stream.opening):
            return None
        if stream is not None and stream.rounds.waiting:
            return stream.rounds.waiting[0].received_at
        return session.since if self.may_run_ahead(session) else None

    def prefills(self, session: Session) -> bool:
        """Whether an attached session has tokens to prefill that no draft waits for yet.

        That is done early, out of free room only: sessions that evict each other for it would never come to rest.
        """
        stream = self.stream_of(session)
        if stream is None or stream.opening is not None or session.turn is None or session.ended is not None:
            return False
        return len(session.kv) < session.length - 1

    def may_run_ahead(self, session: Session) -> bool:
        """Whether the target may go on alone for this session."""
        stream = self.stream_of(session)
        congested = stream is not None and stream.queued_bytes > self.settings.max_queued_bytes
        return session.ended is None and session.length < session.run_until and not congested

    def prefill_backlog(self) -> int:
        """Tokens that attached sessions still wait to have prefilled."""
        return sum(
            max(session.length - 1 - len(session.kv), 0)
            for session in self.sessions.values()
            if session.stream is not None and session.ended is None
        )

    def prefill_us(self, tokens: int) -> int:
        """Estimated time of prefilling ``tokens``, in microseconds."""
        return tokens * self.served.cost.prefill_us_per_token
