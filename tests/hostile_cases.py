"""Messages that no well-behaved device sends, each with the answer it must get."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from outrider.shared.anchor import EMPTY, extend
from outrider.shared.draft import Draft
from outrider.shared.frames import (
    Context,
    DraftFrame,
    FailureReason,
    Open,
    Turn,
    Window,
)
from outrider.shared.wire import up_to_wire
from outrider.v1 import verifier_pb2 as pb
from tests.raw_device import ALL_FEATURES

PROMPT = (3, 1, 4, 1, 5)
LENGTH = 12
SEEN = extend(EMPTY, PROMPT)

BAD = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def ids(*values: int) -> bytes:
    """Token ids as the wire has them."""
    return struct.pack(f"<{len(values)}I", *values)


def parents(*values: int) -> bytes:
    """Parents as the wire has them."""
    return struct.pack(f"<{len(values)}H", *values)


@dataclass(frozen=True)
class Case:
    """What is done to a good message, and the answer it must get."""

    name: str
    spoil: Callable[[pb.DecodeRequest], object]
    field: str = ""
    status: grpc.StatusCode = BAD
    reason: FailureReason = FailureReason.INVALID


def good_open(session: bytes) -> pb.DecodeRequest:
    """An Open that would be served."""
    turn = Turn(1, EMPTY, PROMPT, len(PROMPT), len(PROMPT) + LENGTH)
    return up_to_wire(Open(session, 1, EMPTY, turn, Window(EMPTY, 0), features=ALL_FEATURES))


def good_draft(_session: bytes) -> pb.DecodeRequest:
    """A first draft that would be judged."""
    return up_to_wire(DraftFrame(1, 1, Window(SEEN, 0), Draft((7, 8, 9), (0, 0, 1))))


def set_window(message: pb.DecodeRequest, **fields: int) -> None:
    """Change fields of the draft's window.seen."""
    for name, value in fields.items():
        setattr(message.draft.window.seen, name, value)


def chain(message: pb.DecodeRequest, count: int) -> None:
    """Make the draft a chain of ``count``."""
    message.draft.ids, message.draft.parents = ids(*[1] * count), b""


def many_features(message: pb.DecodeRequest) -> None:
    """More features than there can be."""
    message.open.features.extend([pb.FEATURE_TREES] * 300)


def add_feature(message: pb.DecodeRequest, value: Any) -> None:
    """A feature by number, known or not."""
    message.open.features.append(value)


def newer_protocol(message: pb.DecodeRequest) -> None:
    """A device that speaks later versions only."""
    message.open.protocol_min, message.open.protocol_max = 7, 9


def wide_tree(message: pb.DecodeRequest) -> None:
    """65 nodes."""
    message.draft.ids, message.draft.parents = ids(*([1] * 65)), parents(*range(65))


def deep_tree(message: pb.DecodeRequest) -> None:
    """A tree of depth 17."""
    message.draft.ids, message.draft.parents = ids(*range(18)), parents(*range(17), 0)


def replace_by(frame: pb.DecodeRequest) -> Callable[[pb.DecodeRequest], object]:
    """Send something else altogether."""
    return lambda message: message.CopyFrom(frame)


OPEN_CASES = [
    Case("no frame", replace_by(pb.DecodeRequest()), "frame"),
    Case("draft first", replace_by(good_draft(b"")), "frame"),
    Case("ping first", replace_by(pb.DecodeRequest(ping=pb.Ping(nonce=1))), "frame"),
    Case("short session id", lambda m: setattr(m.open, "session_id", b"x" * 15), "open.session_id"),
    Case("long session id", lambda m: setattr(m.open, "session_id", b"x" * 60_000), "open.session_id"),
    Case("epoch 0", lambda m: setattr(m.open, "epoch", 0), "open.epoch"),
    Case("no turn", lambda m: m.open.ClearField("turn"), "open.turn"),
    Case("turn 0", lambda m: setattr(m.open.turn, "turn", 0), "open.turn.turn"),
    Case("no window", lambda m: m.open.ClearField("window"), "open.window"),
    Case("window is not have", lambda m: setattr(m.open.window.seen, "length", 3), "open.window.seen"),
    Case("empty prompt", lambda m: setattr(m.open.turn, "append_ids", b""), "open.turn.append_ids"),
    Case("cut id", lambda m: setattr(m.open.turn, "append_ids", ids(1) + b"\x01"), "open.turn.append_ids"),
    Case("id out of range", lambda m: setattr(m.open.turn, "append_ids", ids(1, 64)), "open.turn.append_ids"),
    Case("largest id", lambda m: setattr(m.open.turn, "append_ids", ids(2**32 - 1)), "open.turn.append_ids"),
    Case(
        "prompt over the limit",
        lambda m: setattr(m.open.turn, "append_ids", ids(*[1] * 3000)),
        status=grpc.StatusCode.OUT_OF_RANGE,
        reason=FailureReason.OUT_OF_RANGE,
    ),
    Case(
        "field over 64 KiB",
        lambda m: setattr(m.open.turn, "append_ids", ids(*[1] * 20_000)),
        "open.turn.append_ids",
    ),
    Case(
        "generated beyond the end",
        lambda m: setattr(m.open.turn, "generated_from", 99),
        "open.turn.generated_from",
    ),
    Case("stop id out of range", lambda m: setattr(m.open.turn, "stop_ids", ids(999)), "open.turn.stop_ids"),
    Case(
        "too many stop ids",
        lambda m: setattr(m.open.turn, "stop_ids", ids(*[1] * 1000)),
        "open.turn.stop_ids",
    ),
    Case("keep beyond the limit", lambda m: setattr(m.open.turn.keep, "length", 10**6), "open.turn.keep"),
    *(
        Case(
            f"temperature {value}",
            lambda m, value=value: setattr(m.open.turn.sampling, "temperature", value),  # type: ignore[misc]
            "open.turn.sampling.temperature",
        )
        for value in (math.nan, math.inf, -math.inf, -0.5)
    ),
    *(
        Case(
            f"top_p {value}",
            lambda m, value=value: setattr(m.open.turn.sampling, "top_p", value),  # type: ignore[misc]
            "open.turn.sampling.top_p",
        )
        for value in (math.nan, 1.5, -0.1)
    ),
    Case("unknown rule", lambda m: setattr(m.open.turn.rule, "name", "no-such-rule"), "open.turn.rule.name"),
    Case("no rule name", lambda m: setattr(m.open.turn.rule, "name", ""), "open.turn.rule.name"),
    Case(
        "unknown rule parameter",
        lambda m: m.open.turn.rule.parameters.update(eps=0.1),
        "open.turn.rule.parameters",
    ),
    Case(
        "rule parameter NaN",
        lambda m: m.open.turn.rule.parameters.update(eps=math.nan),
        "open.turn.rule.parameters",
    ),
    Case("unknown feature", lambda m: add_feature(m, 99), "open.features"),
    Case("unspecified feature", lambda m: add_feature(m, 0), "open.features"),
    Case("300 features", many_features, "open.features"),
    Case("short law", lambda m: setattr(m.open.fingerprints, "law", b"x" * 31), "open.fingerprints.law"),
    Case(
        "other law",
        lambda m: setattr(m.open.fingerprints, "law", b"x" * 32),
        "law",
        PRECONDITION,
        FailureReason.FINGERPRINT,
    ),
    Case(
        "other tokenizer",
        lambda m: setattr(m.open.fingerprints, "tokenizer", b"x" * 32),
        "tokenizer",
        PRECONDITION,
        FailureReason.FINGERPRINT,
    ),
    Case(
        "newer protocol only",
        newer_protocol,
        "",
        PRECONDITION,
        FailureReason.PROTOCOL,
    ),
    Case("protocol upside down", lambda m: setattr(m.open, "protocol_min", 9), "open.protocol_min"),
    Case(
        "context of nothing",
        lambda m: m.open.context.MergeFrom(pb.Context(start=5, ids=ids(1))),
        "open.context",
    ),
    Case("unknown row encoding", lambda m: setattr(m.open.rows, "encoding", 77), "open.rows.encoding"),
    Case(
        "held upside down",
        lambda m: m.open.rows.MergeFrom(
            pb.RowsWanted(encoding=pb.ROW_ENCODING_INT8, held_from=9, held_until=3)
        ),
        "open.rows.held_from",
    ),
    Case(
        "draft numbered 2",
        lambda m: m.open.draft.MergeFrom(pb.Draft(round=2, turn=1, window=pb.Window())),
        "open.draft",
    ),
]

FRAME_CASES = [
    Case("no frame", replace_by(pb.DecodeRequest()), "frame"),
    Case("open again", replace_by(good_open(b"x" * 16)), "frame"),
    Case("round 0", lambda m: setattr(m.draft, "round", 0), "draft.round"),
    Case(
        "a gap in rounds", lambda m: setattr(m.draft, "round", 5), "", PRECONDITION, FailureReason.ROUND_GAP
    ),
    Case("turn 0", lambda m: setattr(m.draft, "turn", 0), "draft.turn"),
    Case("a turn to come", lambda m: setattr(m.draft, "turn", 9), "draft.turn"),
    Case("no window", lambda m: m.draft.ClearField("window"), "draft.window"),
    Case(
        "seen with another hash",
        lambda m: set_window(m, hash=1),
        "",
        PRECONDITION,
        FailureReason.DIVERGED,
    ),
    Case(
        "seen more than there is",
        lambda m: set_window(m, length=50),
        "",
        PRECONDITION,
        FailureReason.DIVERGED,
    ),
    Case("id out of range", lambda m: setattr(m.draft, "ids", ids(7, 8, 64)), "draft.ids"),
    Case("cut id", lambda m: setattr(m.draft, "ids", ids(7, 8, 9)[:-1]), "draft.ids"),
    Case("cut parent", lambda m: setattr(m.draft, "parents", parents(0, 0, 1)[:-1]), "draft.parents"),
    Case(
        "more parents than ids", lambda m: setattr(m.draft, "parents", parents(0, 0, 1, 1)), "draft.parents"
    ),
    Case("fewer parents than ids", lambda m: setattr(m.draft, "parents", parents(0, 0)), "draft.parents"),
    Case("forward parent", lambda m: setattr(m.draft, "parents", parents(0, 3, 1)), "draft.parents"),
    Case("own parent", lambda m: setattr(m.draft, "parents", parents(0, 2, 1)), "draft.parents"),
    Case("parent of the first", lambda m: setattr(m.draft, "parents", parents(1, 0, 0)), "draft.parents"),
    Case("parent far away", lambda m: setattr(m.draft, "parents", parents(0, 65_535, 0)), "draft.parents"),
    Case("twin siblings", lambda m: setattr(m.draft, "ids", ids(7, 7, 9)), "draft.ids"),
    Case("65 nodes", wide_tree, "draft.ids"),
    Case("depth 17", deep_tree, "draft.parents"),
    Case("chain of 513", lambda m: chain(m, 513), "draft.ids"),
    Case("chain of 64 KiB", lambda m: chain(m, 16_385), "draft.ids"),
    Case("laws not granted", lambda m: m.draft.laws.MergeFrom(pb.SparseLaws(bits=4)), "draft.laws"),
    Case("context unasked", replace_by(up_to_wire(Context(0, (1, 2)))), "context"),
    Case("an old turn", replace_by(up_to_wire(Turn(1, SEEN, (1,), 1, 99))), "turn.turn"),
    Case(
        "a turn that keeps what is not there",
        replace_by(up_to_wire(Turn(2, extend(SEEN, (9, 9)), (1,), 1, 99))),
        "",
        PRECONDITION,
        FailureReason.DIVERGED,
    ),
    Case("cancel turn 0", replace_by(pb.DecodeRequest(cancel=pb.Cancel())), "cancel.turn"),
    Case("steer without window", replace_by(pb.DecodeRequest(steer=pb.Steer(turn=1))), "steer.window"),
    Case("padding over 64 KiB", lambda m: setattr(m, "padding", bytes(70_000)), "padding"),
]
