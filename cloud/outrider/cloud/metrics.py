"""What the verifier counts, in Prometheus' text format.

Names carry base units, counters end in ``_total``, labels are few and never name a session. One `Metrics` has a
registry of its own, so that several verifiers fit into one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
    start_http_server,
)

from outrider.shared.frames import Commit as CommitFrame
from outrider.shared.frames import DownFrame, Failure, Opened, Rows, TokenKind, TurnEnd, Verdict

_FINE = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
_SMALL = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
_PER_ROUND = tuple(float(n) for n in range(17))


class Kind(Enum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Spec:
    """One metric: name without the prefix ``outrider_``, kind, help, label names, bucket bounds of a histogram."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

SPECS: tuple[Spec, ...] = (
    Spec("sessions_open", _G, "Sessions remembered, attached or not"),
    Spec("streams_open", _G, "Decode streams under way"),
    Spec("attachments_total", _C, "Streams admitted, by how they found their session", ("attach",)),
    Spec("stream_failures_total", _C, "Streams that ended with a failure", ("reason",)),
    Spec("rounds_total", _C, "Drafts answered", ("outcome",)),
    Spec("draft_tokens_total", _C, "Draft tokens handed to the target"),
    Spec("committed_tokens_total", _C, "Tokens committed, by kind", ("kind",)),
    Spec("accepted_tokens_per_round", _H, "Draft tokens accepted in a verified round", (), _PER_ROUND),
    Spec(
        "accepted_tokens_per_position_total",
        _C,
        "Rounds whose draft was accepted at this depth",
        ("position",),
    ),
    Spec("turns_ended_total", _C, "Turns that ended", ("reason",)),
    Spec("near_ties_total", _C, "Committed positions where the target's top two were nearly equal"),
    Spec("diverged_total", _C, "Sessions whose log contradicted the device's"),
    Spec("rebuilds_total", _C, "Sessions whose KV had to be computed again"),
    Spec("evictions_total", _C, "KV dropped to stay within the budget"),
    Spec("forwards_total", _C, "Target passes"),
    Spec("packed_forwards_total", _C, "Target passes that carried two or more sessions"),
    Spec("batch_size", _H, "Sessions in a target pass", (), _SMALL),
    Spec("verify_seconds", _H, "Target passes that judged a draft or took a step", (), _FINE),
    Spec("prefill_seconds", _H, "Target passes that only consumed context", (), _FINE),
    Spec("queue_seconds", _H, "From the receipt of a draft to the start of its pass", (), _FINE),
    Spec("rows_seconds", _H, "Making state rows", (), _FINE),
    Spec("work_failures_total", _C, "Work that failed in the engine", ("why",)),
    Spec("kv_bytes", _G, "Bytes held by KV caches"),
    Spec("kv_limit_bytes", _G, "Budget for KV caches"),
    Spec("row_bytes_total", _C, "Bytes of state rows sent", ("kind",)),
    Spec("bytes_total", _C, "Message bytes on Decode and FetchBundle", ("direction",)),
    Spec("invalid_input_total", _C, "Messages refused, by method", ("method",)),
    Spec("internal_errors_total", _C, "Unexpected exceptions; each has an incident in the log", ("where",)),
    Spec("requests_total", _C, "Calls ended, by method and status", ("method", "code")),
)
"""Every metric, in the order shown."""

Metric = Counter | Gauge | Histogram


class Metrics:
    """The counters of one verifier."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._specs = {spec.name: spec for spec in SPECS}
        self._metrics: dict[str, Metric] = {spec.name: self._make(spec) for spec in SPECS}

    def _make(self, spec: Spec) -> Metric:
        name = f"outrider_{spec.name}"
        if spec.kind is Kind.COUNTER:
            return Counter(name, spec.help, spec.labels, registry=self.registry)
        if spec.kind is Kind.GAUGE:
            return Gauge(name, spec.help, spec.labels, registry=self.registry)
        return Histogram(name, spec.help, spec.labels, buckets=spec.buckets, registry=self.registry)

    def count(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Add to a counter, set a gauge, observe with a histogram. Raises KeyError for a name not in ``SPECS``."""
        metric = self._metrics[name]
        child = metric.labels(**labels) if labels else metric
        if isinstance(child, Counter):
            child.inc(value)
        elif isinstance(child, Gauge):
            child.set(value)
        else:
            child.observe(value)

    def follow(self, name: str, read: Callable[[], float]) -> None:
        """Let a gauge ask ``read`` whenever the metrics are shown."""
        gauge = self._metrics[name]
        if not isinstance(gauge, Gauge):
            raise TypeError(f"{name} is no gauge")
        gauge.set_function(read)

    def describe(self, build: Mapping[str, str], model: Mapping[str, str]) -> None:
        """Publish what runs here as ``outrider_build_info`` and ``outrider_model_info``."""
        Info("outrider_build", "This program", registry=self.registry).info(dict(build))
        Info("outrider_model", "The target served", registry=self.registry).info(dict(model))

    def value(self, name: str, **labels: str) -> float:
        """The present value of a counter or gauge, or the number of observations of a histogram."""
        spec = self._specs[name]
        sample = f"outrider_{name}" + ("_count" if spec.kind is Kind.HISTOGRAM else "")
        return self.registry.get_sample_value(sample, labels) or 0.0

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    # ------------------------------------------------------------------------------------------ what frames tell

    def observe_frame(self, frame: DownFrame) -> None:
        """Count what a frame on its way to a device says."""
        match frame:
            case Opened():
                self.count("attachments_total", attach=frame.attach.name.lower())
            case Verdict():
                self._observe_verdict(frame)
            case CommitFrame():
                self._observe_commit(frame)
            case Rows():
                self.count("row_bytes_total", len(frame.data), kind="bulk" if frame.bulk else "new")
            case TurnEnd():
                self.count("turns_ended_total", reason=frame.reason.name.lower())
            case Failure():
                self.count("stream_failures_total", reason=frame.reason.name.lower())
            case _:
                pass

    def _observe_verdict(self, verdict: Verdict) -> None:
        self.count("rounds_total", outcome=verdict.outcome.name.lower())
        if verdict.commit is None or verdict.replayed:
            return
        self._observe_commit(verdict.commit)
        self.count("accepted_tokens_per_round", verdict.accepted)
        self.count("queue_seconds", verdict.queue_us / 1e6)
        if verdict.trimmed == 0:
            # Trimmed rounds start deeper in the draft: their positions are not those of a whole draft.
            for position in range(1, verdict.accepted + 1):
                self.count("accepted_tokens_per_position_total", position=str(position))

    def _observe_commit(self, commit: CommitFrame) -> None:
        for kind in TokenKind:
            number = commit.kinds.count(kind)
            if number:
                self.count("committed_tokens_total", number, kind=kind.name.lower())
        if commit.near_ties:
            self.count("near_ties_total", commit.near_ties)


class MetricsServer:
    """Serves `Metrics` over HTTP on ``host:port`` (0 = any free port) until closed."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self._server: WSGIServer
        self._thread: threading.Thread
        self._server, self._thread = start_http_server(port, addr=host, registry=metrics.registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
