"""What is counted, and that Prometheus can read it."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from outrider.cloud.metrics import SPECS, Kind, Metrics, MetricsServer
from outrider.shared.frames import (
    Anchor,
    Commit,
    Failure,
    FailureReason,
    FinishReason,
    RoundOutcome,
    TokenKind,
    TurnEnd,
    Verdict,
)

A, R, B = TokenKind.ACCEPTED, TokenKind.RECOVERED, TokenKind.BONUS


def verdict(accepted: int, trimmed: int = 0) -> Verdict:
    """A verified round."""
    commit = Commit(1, 10, tuple(range(accepted + 1)), (A,) * accepted + (R,), near_ties=1)
    return Verdict(1, RoundOutcome.VERIFIED, commit, trimmed, accepted, queue_us=2000)


def test_names_follow_the_conventions() -> None:
    """Counters end in _total, nothing else does, and no label could name a session."""
    for spec in SPECS:
        assert spec.name.endswith("_total") == (spec.kind is Kind.COUNTER), spec.name
        assert not {"session", "stream", "principal"} & set(spec.labels)
    assert len({spec.name for spec in SPECS}) == len(SPECS)


def test_the_text_is_valid_and_complete() -> None:
    """Prometheus' own parser reads the text and finds every metric under the prefix."""
    metrics = Metrics()
    metrics.describe({"version": "1"}, {"target": "toy"})
    names = {family.name for family in text_string_to_metric_families(metrics.text())}
    assert {f"outrider_{spec.name.removesuffix('_total')}" for spec in SPECS} <= names
    assert {"outrider_build_info", "outrider_model_info"} <= names


def test_verdicts_are_counted_by_position() -> None:
    """A round with three accepted tokens counts once at each of depths 1 to 3; a trimmed one has no depths."""
    metrics = Metrics()
    for frame in (verdict(3), verdict(1), verdict(2, trimmed=1), Verdict(4, RoundOutcome.SUPERSEDED)):
        metrics.observe_frame(frame)
    by_depth = [
        metrics.value("accepted_tokens_per_position_total", position=str(depth)) for depth in (1, 2, 3, 4)
    ]
    assert by_depth == [2, 1, 1, 0]
    assert metrics.value("rounds_total", outcome="verified") == 3
    assert metrics.value("rounds_total", outcome="superseded") == 1
    assert metrics.value("committed_tokens_total", kind="accepted") == 6
    assert metrics.value("committed_tokens_total", kind="recovered") == 3
    assert metrics.value("near_ties_total") == 3
    assert metrics.value("queue_seconds") == 3


def test_a_replayed_verdict_commits_nothing_twice() -> None:
    """A verdict answered from the log counts as a round and adds no tokens."""
    metrics = Metrics()
    frame = Verdict(1, RoundOutcome.VERIFIED, Commit(1, 0, (1,), (B,)), replayed=True)
    metrics.observe_frame(frame)
    assert metrics.value("committed_tokens_total", kind="bonus") == 0


def test_ends_and_failures_are_counted_by_reason() -> None:
    """Why turns and streams ended can be told apart."""
    metrics = Metrics()
    metrics.observe_frame(TurnEnd(1, FinishReason.STOP_ID, Anchor(3, 0)))
    metrics.observe_frame(Failure(FailureReason.FENCED))
    assert metrics.value("turns_ended_total", reason="stop_id") == 1
    assert metrics.value("stream_failures_total", reason="fenced") == 1


def test_unknown_names_are_errors() -> None:
    """A name that no dashboard could know is a bug, not a new metric."""
    with pytest.raises(KeyError):
        Metrics().count("no_such_metric")
    with pytest.raises(TypeError):
        Metrics().follow("rounds_total", lambda: 0.0)


def test_metrics_are_served_over_http_until_closed() -> None:
    """A scrape sees a live gauge; after closing, the port is free."""
    metrics = Metrics()
    metrics.follow("kv_bytes", lambda: 42.0)
    server = MetricsServer(metrics, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=20) as answer:
            assert "outrider_kv_bytes 42.0" in answer.read().decode()
    finally:
        server.close()
    MetricsServer(metrics, "127.0.0.1", server.port).close()
