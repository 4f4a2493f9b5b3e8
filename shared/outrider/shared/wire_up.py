"""Frames from the device to the verifier: dataclass to protobuf and back, with every schema check."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from outrider.shared.codec import pack_ids, pack_parents, unpack_ids, unpack_parents
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import InvalidField
from outrider.shared.frames import (
    Cancel,
    Close,
    Context,
    DraftFrame,
    Feature,
    Limits,
    Open,
    Ping,
    RowEncoding,
    RowsWanted,
    Steer,
    Turn,
    UpFrame,
    Window,
)
from outrider.shared.wire_laws import laws_from_wire, laws_to_wire
from outrider.shared.wire_parts import (
    MAX_LIST,
    anchor_from_wire,
    anchor_to_wire,
    check_bytes,
    check_count,
    check_message,
    enum_member,
    enum_value,
    features_from_wire,
    fingerprints_from_wire,
    fingerprints_to_wire,
)
from outrider.shared.wire_rules import rule_from_wire, rule_to_wire
from outrider.shared.wire_sampling import sampling_from_wire, sampling_to_wire
from outrider.v1 import verifier_pb2 as pb


@dataclass(frozen=True, slots=True)
class UpChecks:
    """What a receiver of up frames knows; ``granted`` is None before Opened."""

    limits: Limits = Limits()
    vocabulary: int | None = None
    granted: Collection[Feature] | None = None


def up_to_wire(frame: UpFrame, padding: bytes = b"") -> pb.DecodeRequest:
    """A frame of the device as protobuf; ``padding`` is sent along and ignored by the receiver."""
    match frame:
        case Open():
            request = pb.DecodeRequest(open=_open_to_wire(frame))
        case DraftFrame():
            request = pb.DecodeRequest(draft=_draft_to_wire(frame))
        case Steer():
            request = pb.DecodeRequest(steer=pb.Steer(turn=frame.turn, window=_window_to_wire(frame.window)))
        case Turn():
            request = pb.DecodeRequest(turn=_turn_to_wire(frame))
        case Context():
            request = pb.DecodeRequest(context=_context_to_wire(frame))
        case Cancel():
            request = pb.DecodeRequest(cancel=pb.Cancel(turn=frame.turn))
        case Close():
            request = pb.DecodeRequest(close=pb.Close(forget=frame.forget))
        case Ping():
            request = pb.DecodeRequest(ping=pb.Ping(nonce=frame.nonce))
    if padding:
        request.padding = padding
    return request


def up_from_wire(request: pb.DecodeRequest, checks: UpChecks | None = None) -> UpFrame:
    """The frame in ``request``. Raises InvalidField(path, why) for whatever a device must not send."""
    checks = checks or UpChecks()
    check_message(request, "request")
    check_bytes(request.padding, "padding")
    kind = request.WhichOneof("frame")
    match kind:
        case "open":
            return _open_from_wire(request.open, checks)
        case "draft":
            return _draft_from_wire(request.draft, checks, "draft")
        case "steer":
            turn = _positive(request.steer.turn, "steer.turn")
            return Steer(turn, _window_from_wire(request.steer, checks, "steer"))
        case "turn":
            return _turn_from_wire(request.turn, checks, "turn")
        case "context":
            return _context_from_wire(request.context, checks, "context")
        case "cancel":
            return Cancel(_positive(request.cancel.turn, "cancel.turn"))
        case "close":
            return Close(request.close.forget)
        case "ping":
            return Ping(request.ping.nonce)
        case _:
            raise InvalidField("frame", "no frame that this version knows")


# ----------------------------------------------------------------------------------------------------------- open


def _open_to_wire(frame: Open) -> pb.Open:
    message = pb.Open(
        session_id=frame.session_id,
        epoch=frame.epoch,
        protocol_min=frame.protocol_min,
        protocol_max=frame.protocol_max,
        fingerprints=fingerprints_to_wire(frame.fingerprints),
        features=[enum_value(feature) for feature in frame.features],
        have=anchor_to_wire(frame.have),
        turn=_turn_to_wire(frame.turn),
        rejoin=frame.rejoin,
        window=_window_to_wire(frame.window),
    )
    if frame.context is not None:
        message.context.CopyFrom(_context_to_wire(frame.context))
    if frame.draft is not None:
        message.draft.CopyFrom(_draft_to_wire(frame.draft))
    if frame.rows is not None:
        message.rows.CopyFrom(_wanted_to_wire(frame.rows))
    return message


def _open_from_wire(message: pb.Open, checks: UpChecks) -> Open:
    if len(message.session_id) != 16:
        raise InvalidField("open.session_id", f"{len(message.session_id)} bytes, expected 16")
    if not message.HasField("turn"):
        raise InvalidField("open.turn", "missing")
    if message.protocol_min > message.protocol_max:
        raise InvalidField("open.protocol_min", "above protocol_max")
    features = features_from_wire(message.features, "open.features")
    wanted = UpChecks(checks.limits, checks.vocabulary, features)
    have = anchor_from_wire(message.have, "open.have", checks.limits.max_context_tokens)
    frame = Open(
        session_id=message.session_id,
        epoch=_positive(message.epoch, "open.epoch"),
        have=have,
        turn=_turn_from_wire(message.turn, wanted, "open.turn"),
        window=_window_from_wire(message, wanted, "open"),
        protocol_min=message.protocol_min,
        protocol_max=message.protocol_max,
        fingerprints=fingerprints_from_wire(message.fingerprints, "open.fingerprints"),
        features=features,
        context=_open_context(message, wanted),
        draft=_draft_from_wire(message.draft, wanted, "open.draft") if message.HasField("draft") else None,
        rows=_wanted_from_wire(message.rows, "open.rows") if message.HasField("rows") else None,
        rejoin=message.rejoin,
    )
    _check_open(frame)
    return frame


def _open_context(message: pb.Open, checks: UpChecks) -> Context | None:
    if not message.HasField("context"):
        return None
    check_bytes(message.context.ids, "open.context.ids", checks.limits.max_inline_context_bytes)
    return _context_from_wire(message.context, checks, "open.context")


def _check_open(frame: Open) -> None:
    if frame.window.seen != frame.have:
        raise InvalidField("open.window.seen", "must equal open.have")
    if frame.context is not None and (frame.context.start, len(frame.context.ids)) != (0, frame.have.length):
        raise InvalidField("open.context", f"must hold positions 0 … {frame.have.length - 1}")
    if frame.draft is not None and frame.draft.round != 1:
        raise InvalidField("open.draft.round", f"{frame.draft.round}, expected 1")


def _wanted_to_wire(wanted: RowsWanted) -> pb.RowsWanted:
    return pb.RowsWanted(
        first=wanted.first,
        held_from=wanted.held_from,
        held_until=wanted.held_until,
        encoding=enum_value(wanted.encoding),
        bulk_window_bytes=wanted.bulk_window_bytes,
    )


def _wanted_from_wire(message: pb.RowsWanted, path: str) -> RowsWanted:
    if message.held_from > message.held_until:
        raise InvalidField(f"{path}.held_from", "above held_until")
    encoding = enum_member(RowEncoding, message.encoding, f"{path}.encoding")
    return RowsWanted(
        message.first, message.held_from, message.held_until, encoding, message.bulk_window_bytes
    )


# ----------------------------------------------------------------------------------------------------------- turn


def _turn_to_wire(turn: Turn) -> pb.Turn:
    return pb.Turn(
        turn=turn.turn,
        keep=anchor_to_wire(turn.keep),
        append_ids=pack_ids(turn.append_ids),
        generated_from=turn.generated_from,
        max_length=turn.max_length,
        stop_ids=pack_ids(turn.stop_ids),
        sampling=sampling_to_wire(turn.sampling),
        rule=rule_to_wire(turn.rule),
        log_probs=turn.log_probs,
    )


def _turn_from_wire(message: pb.Turn, checks: UpChecks, path: str) -> Turn:
    keep = anchor_from_wire(message.keep, f"{path}.keep", checks.limits.max_context_tokens)
    append_ids = _ids(message.append_ids, f"{path}.append_ids", checks)
    stop_ids = _ids(message.stop_ids, f"{path}.stop_ids", checks)
    check_count(len(stop_ids), MAX_LIST, f"{path}.stop_ids")
    length = keep.length + len(append_ids)
    if length < 1:
        raise InvalidField(f"{path}.append_ids", "the sequence would be empty")
    if message.generated_from > length:
        raise InvalidField(
            f"{path}.generated_from", f"{message.generated_from} is beyond the length {length}"
        )
    return Turn(
        turn=_positive(message.turn, f"{path}.turn"),
        keep=keep,
        append_ids=append_ids,
        generated_from=message.generated_from,
        max_length=message.max_length,
        stop_ids=stop_ids,
        sampling=sampling_from_wire(message.sampling, f"{path}.sampling", checks.vocabulary),
        rule=rule_from_wire(message.rule, f"{path}.rule"),
        log_probs=message.log_probs,
    )


def _context_to_wire(context: Context) -> pb.Context:
    return pb.Context(start=context.start, ids=pack_ids(context.ids))


def _context_from_wire(message: pb.Context, checks: UpChecks, path: str) -> Context:
    ids = _ids(message.ids, f"{path}.ids", checks)
    if message.start + len(ids) > checks.limits.max_context_tokens:
        raise InvalidField(f"{path}.ids", f"reach beyond {checks.limits.max_context_tokens} tokens")
    return Context(message.start, ids)


# ---------------------------------------------------------------------------------------------------------- draft


def _draft_to_wire(frame: DraftFrame) -> pb.Draft:
    message = pb.Draft(
        round=frame.round,
        turn=frame.turn,
        window=_window_to_wire(frame.window),
        ids=pack_ids(frame.draft.ids),
        parents=b"" if frame.draft.is_chain else pack_parents(frame.draft.parents),
    )
    if frame.draft.laws:
        message.laws.CopyFrom(laws_to_wire(frame.draft))
    if frame.base is not None:
        message.base.CopyFrom(anchor_to_wire(frame.base))
    return message


def _draft_from_wire(message: pb.Draft, checks: UpChecks, path: str) -> DraftFrame:
    if message.HasField("laws") and Feature.DRAFT_LAWS not in (checks.granted or ()):
        raise InvalidField(f"{path}.laws", "DRAFT_LAWS was not granted")
    base = anchor_from_wire(message.base, f"{path}.base") if message.HasField("base") else None
    return DraftFrame(
        round=_positive(message.round, f"{path}.round"),
        turn=_positive(message.turn, f"{path}.turn"),
        window=_window_from_wire(message, checks, path),
        draft=_tokens_from_wire(message, checks, path),
        base=base,
    )


def _tokens_from_wire(message: pb.Draft, checks: UpChecks, path: str) -> Draft:
    ids = _ids(message.ids, f"{path}.ids", checks)
    if not message.parents:
        check_count(len(ids), checks.limits.max_chain_tokens, f"{path}.ids")
        return _with_laws(message, Draft.chain(ids), checks, path)
    if checks.granted is not None and Feature.TREES not in checks.granted:
        raise InvalidField(f"{path}.parents", "TREES was not granted")
    check_count(len(ids), checks.limits.max_tree_nodes, f"{path}.ids")
    parents = unpack_parents(check_bytes(message.parents, f"{path}.parents"), f"{path}.parents")
    if len(parents) != len(ids):
        raise InvalidField(f"{path}.parents", f"{len(parents)} entries for {len(ids)} ids")
    draft = _with_laws(message, Draft(ids, parents), checks, path)
    if draft.has_twins and draft.kind is not DraftKind.SAMPLED:
        raise InvalidField(f"{path}.ids", "two siblings have the same id")
    if max(draft.depths) > checks.limits.max_tree_depth:
        raise InvalidField(
            f"{path}.parents", f"depth {max(draft.depths)}, at most {checks.limits.max_tree_depth}"
        )
    return draft


def _with_laws(message: pb.Draft, draft: Draft, checks: UpChecks, path: str) -> Draft:
    if not message.HasField("laws"):
        return draft
    return laws_from_wire(message.laws, draft, f"{path}.laws", checks.vocabulary)


def _window_to_wire(window: Window) -> pb.Window:
    return pb.Window(
        seen=anchor_to_wire(window.seen),
        run_ahead_until=window.run_ahead_until,
        bulk_acked_bytes=window.bulk_acked_bytes,
    )


def _window_from_wire(holder: pb.Open | pb.Draft | pb.Steer, checks: UpChecks, path: str) -> Window:
    if not holder.HasField("window"):
        raise InvalidField(f"{path}.window", "missing")
    message = holder.window
    if message.run_ahead_until and checks.granted is not None and Feature.RUN_AHEAD not in checks.granted:
        raise InvalidField(f"{path}.window.run_ahead_until", "RUN_AHEAD was not granted")
    return Window(
        anchor_from_wire(message.seen, f"{path}.window.seen", checks.limits.max_context_tokens),
        message.run_ahead_until,
        message.bulk_acked_bytes,
    )


# ---------------------------------------------------------------------------------------------------------- checks


def _ids(data: bytes, path: str, checks: UpChecks) -> tuple[int, ...]:
    return unpack_ids(check_bytes(data, path), path, checks.vocabulary)


def _positive(value: int, path: str) -> int:
    if value < 1:
        raise InvalidField(path, "must be at least 1")
    return value
