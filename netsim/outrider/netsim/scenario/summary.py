"""A run in figures: the JSON line at its end, and the table for people. Virtual runs use the same names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from outrider.netsim.scenario.meter import Measured, quantile
from outrider.netsim.state import Stats


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    answers: tuple[Measured, ...]
    """In their order; the last may be unfinished."""
    link: Stats | None = None
    """The proxy's counts."""
    interrupted: bool = False


def figures(outcome: Outcome) -> dict[str, Any]:
    """All figures; None where there is nothing to say. Seconds and milliseconds as their names say.

    Gaps are those between moments at which tokens appeared, all answers together, their quantiles by nearest rank. Of
    the first token `ttft_s` is the median over answers, `first_token_s` the mean. The other figures are sums, or
    quotients of sums. Bytes are gRPC message bytes, `wire_…` what passed the link. `identical`: every token that the
    target decided is its own (None: not compared).
    """
    answers = outcome.answers
    stats = [answer.stats for answer in answers]
    tokens = sum(s.tokens for s in stats)
    rounds = sum(s.rounds for s in stats)
    seconds = sum(answer.seconds for answer in answers)
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    firsts = [answer.first_s for answer in answers if answer.first_s is not None]
    compared = [answer.identical for answer in answers if answer.identical is not None]
    told: dict[str, Any] = {
        "answers": len(answers),
        "complete": sum(answer.complete for answer in answers),
        "tokens": tokens,
        "verified": sum(answer.verified for answer in answers),
        "seconds": seconds,
        "tokens_per_s": tokens / seconds if seconds > 0 else None,
        "ttft_s": quantile(firsts, 0.5),
        "first_token_s": sum(firsts) / len(firsts) if firsts else None,
        "gap_p50_s": quantile(gaps, 0.5),
        "gap_p95_s": quantile(gaps, 0.95),
        "longest_gap_s": quantile(gaps, 1.0),
        "rounds": rounds,
        "tau": sum(s.round_tokens for s in stats) / rounds if rounds else None,
        "calls_per_token": sum(answer.calls for answer in answers) / tokens if tokens else None,
        "forward_ms_per_token": sum(a.forward_s for a in answers) * 1e3 / tokens if tokens else None,
        "bytes_up": sum(s.bytes_up for s in stats),
        "bytes_down": sum(s.bytes_down for s in stats),
        "bytes_up_per_token": sum(s.bytes_up for s in stats) / tokens if tokens else None,
        "bytes_down_per_token": sum(s.bytes_down for s in stats) / tokens if tokens else None,
        "wire_up": None if outcome.link is None else outcome.link.bytes_up,
        "wire_down": None if outcome.link is None else outcome.link.bytes_down,
        "provisional": sum(s.provisional for s in stats),
        "kept": sum(s.kept for s in stats),
        "revised": sum(s.revised for s in stats),
        "offline_s": sum(s.offline_s for s in stats),
        "reconnects": sum(max(answer.openings - 1, 0) for answer in answers),
        "identical": all(compared) if compared else None,
        "interrupted": outcome.interrupted,
    }
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in told.items()}


_ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("answers, complete", ("answers", "complete"), "{} / {}"),
    ("tokens", ("tokens",), "{}"),
    ("tokens/s", ("tokens_per_s",), "{:.1f}"),
    ("first token", ("ttft_s",), "{:.2f} s"),
    ("pauses, median / 95th percentile", ("gap_p50_s", "gap_p95_s"), "{:.3f} / {:.3f} s"),
    ("longest pause", ("longest_gap_s",), "{:.2f} s"),
    ("τ (tokens a round)", ("tau",), "{:.2f}"),
    ("calls a token", ("calls_per_token",), "{:.2f}"),
    ("target's time a token", ("forward_ms_per_token",), "{:.1f} ms"),
    ("bytes up / down", ("bytes_up", "bytes_down"), "{} / {}"),
    ("drafted alone", ("provisional",), "{}"),
    ("   of these kept / revised", ("kept", "revised"), "{} / {}"),
    ("without the link", ("offline_s",), "{:.1f} s"),
    ("reconnects", ("reconnects",), "{}"),
)


def table(told: dict[str, Any], title: str) -> Table:
    """The figures for people."""
    made = Table(title=title, show_header=False)
    made.add_column("")
    made.add_column("", justify="right")
    for label, names, form in _ROWS:
        values = [told[name] for name in names]
        made.add_row(label, "–" if None in values else form.format(*values))
    if told["identical"] is not None:
        made.add_row("text", "the target's own" if told["identical"] else "[bold red]not the target's own[/]")
    return made


def common(ids: Sequence[int], other: Sequence[int]) -> int:
    """How many leading ids are the same."""
    return next(
        (i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other))
    )
