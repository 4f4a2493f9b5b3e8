"""What one turn cost and brought. Counted here, printed and exported elsewhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from outrider.client.events import Label, LinkState
from outrider.shared.frames import DraftFrame, RoundOutcome, Verdict


@dataclass(slots=True)
class TurnStats:
    """Counters of one turn. Bytes are gRPC message bytes; τ counts the recovered or bonus token."""

    started_at: float
    prompt_tokens: int = 0
    first_at: float | None = None
    ended_at: float | None = None
    tokens: int = 0
    """Tokens of the answer as it stands."""
    rounds: int = 0
    """Drafts that the target judged."""
    round_tokens: int = 0
    """Tokens committed by these verdicts."""
    drafted: int = 0
    """Nodes sent in judged drafts."""
    accepted: int = 0
    superseded: int = 0
    near_ties: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    provisional: int = 0
    """Tokens shown before they were verified."""
    kept: int = 0
    """Of these, tokens that the target then said too (or that were adopted)."""
    revised: int = 0
    """Of these, tokens that were taken back."""
    offline_s: float = 0.0
    longest_gap_s: float = 0.0
    """Longest time without a new token on display, the first one excluded."""
    labels: dict[str, int] = field(default_factory=dict)
    verdict_s: list[float] = field(default_factory=list)
    """Per round: from handing over the draft to its verdict."""
    compute_s: list[float] = field(default_factory=list)
    """Per round: what the verifier spent on it."""
    rtt_s: list[float] = field(default_factory=list)
    _sent: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)
    _shown_at: float | None = None
    _down_since: float | None = None

    # ---------------------------------------------------------------------------------------------------- observing

    def sent(self, conn: int, frame: DraftFrame, now: float) -> None:
        """A draft was handed to gRPC."""
        self._sent[conn, frame.round] = (now, len(frame.draft.ids))

    def verdict(self, conn: int, frame: Verdict, now: float) -> None:
        """A draft was answered."""
        at, nodes = self._sent.pop((conn, frame.round), (None, 0))
        if frame.outcome is RoundOutcome.SUPERSEDED:
            self.superseded += 1
        if frame.outcome is not RoundOutcome.VERIFIED or frame.commit is None or frame.replayed:
            return
        self.rounds += 1
        self.round_tokens += len(frame.commit.ids)
        self.drafted += nodes
        self.accepted += frame.accepted
        self.compute_s.append(frame.compute_us / 1e6)
        if at is not None:
            self.verdict_s.append(now - at)
            self.rtt_s.append(max(now - at - (frame.queue_us + frame.compute_us) / 1e6, 0.0))

    def shown(self, labels: tuple[Label, ...], now: float) -> None:
        """Tokens came on display."""
        if self.first_at is None:
            self.first_at = now
        elif self._shown_at is not None:
            self.longest_gap_s = max(self.longest_gap_s, now - self._shown_at)
        self._shown_at = now
        self.provisional += sum(label is Label.PROVISIONAL for label in labels)

    def link(self, state: LinkState, now: float) -> None:
        """The link came or went."""
        down = state in (LinkState.LATE, LinkState.OFFLINE)
        if down and self._down_since is None:
            self._down_since = now
        elif not down and self._down_since is not None:
            self.offline_s += now - self._down_since
            self._down_since = None

    def finish(self, now: float) -> None:
        """The turn is over."""
        self.ended_at = now
        if self._down_since is not None:
            self.offline_s += now - self._down_since
            self._down_since = None

    # ----------------------------------------------------------------------------------------------------- readings

    @property
    def seconds(self) -> float:
        """From the question to the end of the answer."""
        return (self.ended_at or self.started_at) - self.started_at

    @property
    def tau(self) -> float:
        """Acceptance length: tokens committed per judged draft."""
        return self.round_tokens / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the answer per second, prefill included."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def rtt_ms(self) -> float | None:
        """Median round trip without the verifier's own time, milliseconds."""
        return median(self.rtt_s) * 1e3 if self.rtt_s else None

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON-able numbers, lists reduced to medians."""
        raw = asdict(self)
        hidden = ("verdict_s", "compute_s", "rtt_s", "started_at", "ended_at", "first_at")
        result = {key: value for key, value in raw.items() if not key.startswith("_") and key not in hidden}
        result["seconds"] = self.seconds
        result["first_token_s"] = None if self.first_at is None else self.first_at - self.started_at
        result["tau"], result["tokens_per_s"], result["rtt_ms"] = self.tau, self.tokens_per_s, self.rtt_ms
        result["verdict_ms"] = median(self.verdict_s) * 1e3 if self.verdict_s else None
        result["compute_ms"] = median(self.compute_s) * 1e3 if self.compute_s else None
        return result
