"""Frames from the verifier to the device: dataclass to protobuf and back, with every schema check.

A server is not trusted: sizes, shapes and numbers are checked here; whether a frame fits the session (turn, position,
epoch, path of the draft) is the session machine's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.shared.codec import pack_ids, row_bytes, unpack_ids
from outrider.shared.errors import InvalidField
from outrider.shared.frames import (
    Anchor,
    Attach,
    Commit,
    DownFrame,
    Drain,
    Failure,
    FailureReason,
    FinishReason,
    Opened,
    Pong,
    Progress,
    RoundOutcome,
    RowPlane,
    Rows,
    TokenKind,
    TurnEnd,
    Verdict,
)
from outrider.shared.wire_parts import (
    anchor_from_wire,
    anchor_to_wire,
    check_bytes,
    check_count,
    check_digest,
    check_message,
    cost_from_wire,
    cost_to_wire,
    enum_member,
    enum_value,
    features_from_wire,
    fingerprints_from_wire,
    fingerprints_to_wire,
    limits_from_wire,
    limits_to_wire,
    numerics_from_wire,
    numerics_to_wire,
    plane_to_wire,
    planes_from_wire,
)
from outrider.shared.wire_rules import report_from_wire, report_to_wire
from outrider.shared.wire_sampling import log_probs_from_wire, log_probs_to_wire
from outrider.v1 import verifier_pb2 as pb

MAX_BULK_BYTES = 16_384
"""No bulk Rows frame carries more."""
MAX_RETRY_MS = 60_000
"""Waits asked for by a server are clamped to this."""
_DETAIL_CHARS = 1_000
_REMEDY_CHARS = 300


@dataclass(frozen=True, slots=True)
class DownChecks:
    """What a receiver of down frames knows: vocabulary size, longest sequence, and the planes once agreed."""

    vocabulary: int | None = None
    max_context_tokens: int | None = None
    planes: Mapping[int, RowPlane] | None = None


def down_to_wire(frame: DownFrame, padding: bytes = b"") -> pb.DecodeResponse:
    """A frame of the verifier as protobuf; ``padding`` is sent along and ignored by the receiver."""
    match frame:
        case Opened():
            response = pb.DecodeResponse(opened=_opened_to_wire(frame))
        case Verdict():
            response = pb.DecodeResponse(verdict=_verdict_to_wire(frame))
        case Commit():
            response = pb.DecodeResponse(commit=_commit_to_wire(frame))
        case Rows():
            response = pb.DecodeResponse(rows=_rows_to_wire(frame))
        case TurnEnd():
            response = pb.DecodeResponse(turn_end=_turn_end_to_wire(frame))
        case Progress():
            response = pb.DecodeResponse(progress=_progress_to_wire(frame))
        case Pong():
            response = pb.DecodeResponse(pong=pb.Pong(nonce=frame.nonce, hold_us=frame.hold_us))
        case Drain():
            response = pb.DecodeResponse(
                drain=pb.Drain(deadline_ms=frame.deadline_ms, reconnect_after_ms=frame.reconnect_after_ms)
            )
        case Failure():
            response = pb.DecodeResponse(failure=_failure_to_wire(frame))
    if padding:
        response.padding = padding
    return response


def down_from_wire(response: pb.DecodeResponse, checks: DownChecks | None = None) -> DownFrame:
    """The frame in ``response``. Raises InvalidField(path, why) for whatever a verifier must not send."""
    checks = checks or DownChecks()
    check_message(response, "response")
    check_bytes(response.padding, "padding")
    match response.WhichOneof("frame"):
        case "opened":
            return _opened_from_wire(response.opened, checks)
        case "verdict":
            return _verdict_from_wire(response.verdict, checks)
        case "commit":
            return _commit_from_wire(response.commit, checks, "commit")
        case "rows":
            return _rows_from_wire(response.rows, checks, "rows")
        case "turn_end":
            return _turn_end_from_wire(response.turn_end, checks)
        case "progress":
            message = response.progress
            return Progress(message.turn, message.prefilled, message.remaining_estimate_us)
        case "pong":
            return Pong(response.pong.nonce, response.pong.hold_us)
        case "drain":
            wait_ms = min(response.drain.reconnect_after_ms, MAX_RETRY_MS)
            return Drain(response.drain.deadline_ms, wait_ms)
        case "failure":
            return _failure_from_wire(response.failure)
        case _:
            raise InvalidField("frame", "no frame that this version knows")


# --------------------------------------------------------------------------------------------------------- opened


def _opened_to_wire(frame: Opened) -> pb.Opened:
    return pb.Opened(
        epoch=frame.epoch,
        protocol=frame.protocol,
        attach=enum_value(frame.attach),
        committed=anchor_to_wire(frame.committed),
        context_from=frame.context_from,
        fingerprints=fingerprints_to_wire(frame.fingerprints),
        features=[enum_value(feature) for feature in frame.features],
        limits=limits_to_wire(frame.limits),
        planes=[plane_to_wire(plane) for plane in frame.planes],
        cost=cost_to_wire(frame.cost),
        prefill_estimate_us=frame.prefill_estimate_us,
        replica=frame.replica,
        numerics=numerics_to_wire(frame.numerics),
    )


def _opened_from_wire(message: pb.Opened, checks: DownChecks) -> Opened:
    return Opened(
        epoch=message.epoch,
        attach=enum_member(Attach, message.attach, "opened.attach"),
        committed=_anchor(message.committed, "opened.committed", checks),
        protocol=message.protocol,
        context_from=message.context_from,
        fingerprints=fingerprints_from_wire(message.fingerprints, "opened.fingerprints"),
        features=features_from_wire(message.features, "opened.features"),
        limits=limits_from_wire(message.limits, "opened.limits"),
        planes=planes_from_wire(message.planes, "opened.planes"),
        cost=cost_from_wire(message.cost, "opened.cost"),
        prefill_estimate_us=message.prefill_estimate_us,
        replica=check_digest(message.replica, "opened.replica", (0, 8)),
        numerics=numerics_from_wire(message.numerics, "opened.numerics"),
    )


# -------------------------------------------------------------------------------------------------------- verdict


def _verdict_to_wire(frame: Verdict) -> pb.Verdict:
    message = pb.Verdict(
        round=frame.round,
        outcome=enum_value(frame.outcome),
        trimmed=frame.trimmed,
        accepted=frame.accepted,
        queue_us=frame.queue_us,
        compute_us=frame.compute_us,
        retry_after_ms=frame.retry_after_ms,
        replayed=frame.replayed,
    )
    if frame.commit is not None:
        message.commit.CopyFrom(_commit_to_wire(frame.commit))
    return message


def _verdict_from_wire(message: pb.Verdict, checks: DownChecks) -> Verdict:
    if message.round < 1:
        raise InvalidField("verdict.round", "must be at least 1")
    outcome = enum_member(RoundOutcome, message.outcome, "verdict.outcome")
    has_commit = message.HasField("commit")
    commit = _commit_from_wire(message.commit, checks, "verdict.commit") if has_commit else None
    if (outcome is RoundOutcome.VERIFIED) != (commit is not None):
        raise InvalidField(
            "verdict.commit", f"must be there with VERIFIED and only then, came with {outcome.name}"
        )
    if message.accepted > (len(commit.ids) if commit else 0):
        raise InvalidField("verdict.accepted", f"{message.accepted} is more than the commit holds")
    return Verdict(
        round=message.round,
        outcome=outcome,
        commit=commit,
        trimmed=message.trimmed,
        accepted=message.accepted,
        queue_us=message.queue_us,
        compute_us=message.compute_us,
        retry_after_ms=min(message.retry_after_ms, MAX_RETRY_MS),
        replayed=message.replayed,
    )


# ------------------------------------------------------------------------------------------------- commit and rows


def _commit_to_wire(frame: Commit) -> pb.Commit:
    raw, warped = log_probs_to_wire(frame)
    return pb.Commit(
        turn=frame.turn,
        start=frame.start,
        ids=pack_ids(frame.ids),
        kinds=bytes(frame.kinds),
        rows=[_rows_to_wire(rows) for rows in frame.rows],
        near_ties=frame.near_ties,
        raw_log_probs=raw,
        warped_log_probs=warped,
    )


def _commit_from_wire(message: pb.Commit, checks: DownChecks, path: str) -> Commit:
    ids = unpack_ids(check_bytes(message.ids, f"{path}.ids"), f"{path}.ids", checks.vocabulary)
    if not ids:
        raise InvalidField(f"{path}.ids", "must not be empty")
    if len(message.kinds) != len(ids):
        raise InvalidField(f"{path}.kinds", f"{len(message.kinds)} entries for {len(ids)} ids")
    if checks.max_context_tokens is not None and message.start + len(ids) > checks.max_context_tokens:
        raise InvalidField(f"{path}.start", f"reaches beyond {checks.max_context_tokens} tokens")
    if message.near_ties > len(ids):
        raise InvalidField(f"{path}.near_ties", f"{message.near_ties} of {len(ids)} positions")
    check_count(len(message.rows), 16, f"{path}.rows")
    return Commit(
        turn=message.turn,
        start=message.start,
        ids=ids,
        kinds=tuple(enum_member(TokenKind, kind, f"{path}.kinds") for kind in message.kinds),
        rows=_commit_rows(message.rows, message.turn, checks, path),
        near_ties=message.near_ties,
        log_probs=log_probs_from_wire(message, len(ids), path),
    )


def _commit_rows(messages: Sequence[pb.Rows], turn: int, checks: DownChecks, path: str) -> tuple[Rows, ...]:
    rows = tuple(_rows_from_wire(one, checks, f"{path}.rows[{i}]") for i, one in enumerate(messages))
    if any(one.turn != turn for one in rows):
        raise InvalidField(f"{path}.rows", "of another turn than the commit")
    return rows


def _rows_to_wire(rows: Rows) -> pb.Rows:
    return pb.Rows(
        turn=rows.turn, plane=rows.plane, start=rows.start, count=rows.count, data=rows.data, bulk=rows.bulk
    )


def _rows_from_wire(message: pb.Rows, checks: DownChecks, path: str) -> Rows:
    check_bytes(message.data, f"{path}.data", MAX_BULK_BYTES if message.bulk else 65_536)
    if message.count < 1:
        raise InvalidField(f"{path}.count", "must be at least 1")
    if checks.max_context_tokens is not None and message.start + message.count > checks.max_context_tokens:
        raise InvalidField(f"{path}.start", f"reaches beyond {checks.max_context_tokens} tokens")
    if checks.planes is not None:
        plane = checks.planes.get(message.plane)
        if plane is None:
            raise InvalidField(f"{path}.plane", f"{message.plane} was not agreed")
        expected = message.count * row_bytes(plane)
        if len(message.data) != expected:
            raise InvalidField(f"{path}.data", f"{len(message.data)} bytes, expected {expected}")
    return Rows(
        turn=message.turn,
        plane=message.plane,
        start=message.start,
        count=message.count,
        data=message.data,
        bulk=message.bulk,
    )


# ---------------------------------------------------------------------------------------------------------- others


def _turn_end_to_wire(frame: TurnEnd) -> pb.TurnEnd:
    message = pb.TurnEnd(turn=frame.turn, reason=enum_value(frame.reason), end=anchor_to_wire(frame.end))
    if frame.report is not None:
        message.report.CopyFrom(report_to_wire(frame.report))
    return message


def _turn_end_from_wire(message: pb.TurnEnd, checks: DownChecks) -> TurnEnd:
    reason = enum_member(FinishReason, message.reason, "turn_end.reason")
    end = _anchor(message.end, "turn_end.end", checks)
    report = report_from_wire(message.report, "turn_end.report") if message.HasField("report") else None
    return TurnEnd(message.turn, reason, end, report)


def _progress_to_wire(frame: Progress) -> pb.Progress:
    return pb.Progress(
        turn=frame.turn, prefilled=frame.prefilled, remaining_estimate_us=frame.remaining_estimate_us
    )


def _failure_to_wire(frame: Failure) -> pb.Failure:
    message = pb.Failure(
        reason=enum_value(frame.reason),
        detail=frame.detail[:_DETAIL_CHARS],
        retry_after_ms=frame.retry_after_ms,
        last_epoch=frame.last_epoch,
        field=frame.field,
        remedy=frame.remedy[:_REMEDY_CHARS],
    )
    if frame.committed is not None:
        message.committed.CopyFrom(anchor_to_wire(frame.committed))
    return message


def _failure_from_wire(message: pb.Failure) -> Failure:
    committed = anchor_from_wire(message.committed, "failure.committed")
    return Failure(
        reason=enum_member(FailureReason, message.reason, "failure.reason"),
        detail=_plain(message.detail, _DETAIL_CHARS),
        committed=committed if message.HasField("committed") else None,
        retry_after_ms=min(message.retry_after_ms, MAX_RETRY_MS),
        last_epoch=message.last_epoch,
        field=_plain(message.field, _REMEDY_CHARS),
        remedy=_plain(message.remedy, _REMEDY_CHARS),
    )


def _plain(text: str, limit: int) -> str:
    """At most ``limit`` printable characters: this text reaches a terminal."""
    return "".join(char if char.isprintable() else " " for char in text[:limit])


def _anchor(message: pb.Anchor, path: str, checks: DownChecks) -> Anchor:
    return anchor_from_wire(message, path, checks.max_context_tokens)
