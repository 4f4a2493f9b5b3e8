"""The figures of simulated answers, with the names that the device's own statistics use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.netsim.virtual.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One answer, or the sums and quotients of several (`together`). Times in seconds."""

    tokens: int
    """Tokens of the answer as it stands: decided ones, and those written alone after a link that never came back."""
    verified: int
    seconds: float
    """From the question to the answer's last token."""
    first_token_s: float | None
    decode_s: float
    """From the first token on display to the last."""
    gaps_s: tuple[float, ...]
    """Between moments at which new tokens appeared; provisional ones count."""
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
        last = max(display.last_at, session.now)
        first = None if display.first_at == math.inf else display.first_at
        return cls(
            tokens=session.committed + session.shown,
            verified=session.committed,
            seconds=last,
            first_token_s=first,
            decode_s=last - (first if first is not None else last),
            gaps_s=tuple(display.gaps_s),
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
        """What tables show; rounded, so that equal runs print equal bytes."""
        tokens = max(self.tokens, 1)
        return {
            "tokens": self.tokens,
            "verified": self.verified,
            "tokens_per_s": _rounded(self.tokens / self.seconds if self.seconds else 0.0),
            "first_token_s": _rounded(self.first_token_s),
            "gap_p50_s": _rounded(quantile(self.gaps_s, 0.50)),
            "gap_p95_s": _rounded(quantile(self.gaps_s, 0.95)),
            "longest_gap_s": _rounded(max(self.gaps_s, default=None)),
            "tau": _rounded(self.round_tokens / self.rounds if self.rounds else None),
            "calls_per_token": _rounded(self.calls / tokens),
            "forward_ms_per_token": _rounded(1e3 * self.forward_s / tokens),
            "bytes_up_per_token": _rounded(self.bytes_up / tokens),
            "bytes_down_per_token": _rounded(self.bytes_down / tokens),
            "provisional": self.provisional,
            "kept": self.kept,
            "revised": self.revised,
            "offline_s": _rounded(self.offline_s),
            "reconnects": self.reconnects,
        }


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Answers one after the other: sums, all gaps, and the mean time to first token of those that had one."""
    firsts = [one.first_token_s for one in outcomes if one.first_token_s is not None]
    sums = {
        name: sum(getattr(one, name) for one in outcomes)
        for name in Outcome.__dataclass_fields__
        if name not in ("gaps_s", "first_token_s")
    }
    return Outcome(
        gaps_s=tuple(gap for one in outcomes for gap in one.gaps_s),
        first_token_s=sum(firsts) / len(firsts) if firsts else None,
        **sums,
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """By nearest rank; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
