"""The figures of simulated answers, with the names that the device's own statistics use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from outrider.netsim.virtual.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One answer, or the sums and quotients of several (`together`). Times in seconds."""

    answers: int = 1
    tokens: int
    """Tokens of the answer as it stands: decided ones, and those written alone after a link that never came back."""
    verified: int
    seconds: float
    """From the question to the answer's last token."""
    firsts_s: tuple[float, ...]
    """From the question to the first token on display, of the answers that had one."""
    gaps_s: tuple[float, ...]
    """Between moments at which new tokens appeared; provisional ones count."""
    rounds_s: tuple[float, ...]
    """Per round (of unary calls: per call) from sending to verdict."""
    rounds: int
    round_tokens: int
    drafted: int
    accepted: int
    superseded: int
    calls: int
    reconnects: int
    forward_s: float
    bytes_up: int
    bytes_down: int
    provisional: int
    kept: int
    revised: int
    offline_s: float

    @classmethod
    def of(cls, session: Session) -> Outcome:
        """What has become of a session that is over."""
        display, counts = session.display, session.counts
        return cls(
            tokens=session.committed + session.shown,
            verified=session.committed,
            seconds=max(display.last_at, session.now) - session.asked_s,
            firsts_s=() if display.first_at == math.inf else (display.first_at - session.asked_s,),
            gaps_s=tuple(display.gaps_s),
            rounds_s=tuple(counts.rounds_s),
            rounds=counts.rounds,
            round_tokens=counts.round_tokens,
            drafted=counts.drafted,
            accepted=counts.accepted,
            superseded=counts.superseded,
            calls=counts.calls,
            reconnects=counts.reconnects,
            forward_s=counts.forward_s,
            bytes_up=counts.bytes_up,
            bytes_down=counts.bytes_down,
            provisional=display.provisional,
            kept=display.kept,
            revised=display.revised,
            offline_s=display.alone_s,
        )

    def figures(self) -> dict[str, Any]:
        """What tables show, named and computed as those of real runs; rounded, so that equal runs print equal bytes."""
        tokens, rounds = self.tokens, self.rounds
        told: dict[str, Any] = {
            "answers": self.answers,
            "tokens": tokens,
            "verified": self.verified,
            "seconds": self.seconds,
            "tokens_per_s": tokens / self.seconds if self.seconds else None,
            "ttft_s": quantile(self.firsts_s, 0.5),
            "first_token_s": sum(self.firsts_s) / len(self.firsts_s) if self.firsts_s else None,
            "gap_p50_s": quantile(self.gaps_s, 0.5),
            "gap_p95_s": quantile(self.gaps_s, 0.95),
            "longest_gap_s": quantile(self.gaps_s, 1.0),
            "round_p95_s": quantile(self.rounds_s, 0.95),
            "rounds": rounds,
            "tau": self.round_tokens / rounds if rounds else None,
            "calls_per_token": self.calls / tokens if tokens else None,
            "forward_ms_per_token": 1e3 * self.forward_s / tokens if tokens else None,
            "bytes_up_per_token": self.bytes_up / tokens if tokens else None,
            "bytes_down_per_token": self.bytes_down / tokens if tokens else None,
            "provisional": self.provisional,
            "kept": self.kept,
            "revised": self.revised,
            "offline_s": self.offline_s,
            "reconnects": self.reconnects,
        }
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in told.items()}


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Answers one after the other: sums, all gaps and first tokens."""
    lists = ("gaps_s", "firsts_s", "rounds_s")
    sums: dict[str, Any] = {
        name: sum(getattr(one, name) for one in outcomes)
        for name in Outcome.__dataclass_fields__
        if name not in lists
    }
    joined: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(one, name) for one in outcomes)) for name in lists
    }
    return Outcome(**sums, **joined)


def quantile(values: Sequence[float], share: float) -> float | None:
    """By nearest rank; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
