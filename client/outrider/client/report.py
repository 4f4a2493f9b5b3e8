"""The figures of a turn, for people on stderr and as one JSON object for scripts."""

from __future__ import annotations

import math
from typing import Any

from outrider.client.answers import Finished
from outrider.client.events import Label
from outrider.client.rules import rule_as_json, rule_lines
from outrider.client.transcript import Transcript
from outrider.shared.rule_names import QUIET


def as_json(finished: Finished, transcript: Transcript) -> dict[str, Any]:
    """One object: text, ids, labels, how it ended, and the figures; log-probabilities where they were asked for."""
    answer: dict[str, Any] = {
        "text": transcript.text(),
        "ids": list(transcript.ids),
        "labels": [piece.label.value for piece in transcript.pieces],
        "finish": finished.reason,
        "verified": finished.verified,
        "error": str(finished.error) if finished.error else None,
        "rule": rule_as_json(finished.rule, finished.report),
        "stats": finished.stats.as_dict(),
    }
    told = [piece.log_probs for piece in transcript.pieces]
    if any(told):
        answer["log_probs"] = {
            "raw": [None if one is None else _finite(one.raw) for one in told],
            "warped": [None if one is None else _finite(one.warped) for one in told],
        }
    return answer


def log_prob_lines(transcript: Transcript) -> list[str]:
    """What ``--logprobs`` prints: each token with its log-probability by the logits alone, and after all warps."""
    rows = ["    raw   warped  token"]
    for piece in transcript.pieces:
        told = piece.log_probs
        numbers = "   not verified " if told is None else f"{told.raw:8.3f} {told.warped:8.3f}"
        rows.append(f"{numbers}  {piece.text!r}")
    return rows


def _finite(value: float) -> float | None:
    """JSON has no infinity: the logarithm of 0 becomes None."""
    return value if math.isfinite(value) else None


def lines(finished: Finished) -> list[str]:
    """What ``--stats`` prints."""
    s = finished.stats
    first = "–" if s.first_at is None else f"{s.first_at - s.started_at:.2f} s"
    rtt = "–" if s.rtt_ms is None else f"{s.rtt_ms:.0f} ms"
    rows = [
        f"{s.tokens} tokens in {s.seconds:.2f} s: {s.tokens_per_s:.1f} tokens/s, first after {first}",
        f"{s.rounds} rounds, τ {s.tau:.2f}, {s.accepted} of {s.drafted} drafted tokens accepted",
        f"{s.bytes_up} bytes up, {s.bytes_down} bytes down, RTT {rtt}",
        f"drafted alone: {s.provisional} tokens, {s.kept} kept, {s.revised} revised; "
        f"{s.offline_s:.1f} s without the link",
    ]
    if finished.rule.name not in QUIET:
        rows += rule_lines(finished.rule, s.labels.get(Label.JUDGED, 0), finished.report)
    if s.near_ties:
        rows.append(f"{s.near_ties} near ties")
    if not finished.verified:
        rows.append("the end of this text was not verified")
    return rows
