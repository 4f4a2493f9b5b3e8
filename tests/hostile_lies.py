"""Every way in which `tests/hostile_server.py` lies, by name: a frame changed, left out, or followed by more."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from outrider.v1 import verifier_pb2 as pb
from tests.hostile_server import Ending, Endless, Frame, Lie, Mutation, Out, Over, Scene, Silence

BIG = 2**32 - 1

LIES: dict[str, Lie] = {}


def lie(name: str, kind: str, mutate: Mutation, ending: Ending = Ending.SAME, **more: Any) -> None:
    """Enter a behaviour into the table."""
    LIES[name] = Lie(name, kind, mutate, ending, **more)


def sets(path: str, value: Any) -> Mutation:
    """Set the field at a dotted path."""

    def mutate(frame: Frame, scene: Scene) -> None:
        *above, last = path.split(".")
        message: Any = frame
        for name in above:
            message = getattr(message, name)
        setattr(message, last, value(getattr(message, last)) if callable(value) else value)

    return mutate


def sends(*out: Out) -> Mutation:
    """Send these in place of the honest frame."""
    return lambda frame, scene: out


# ------------------------------------------------------------------------------------------------------- about verdicts


def ids_of(data: bytes) -> list[int]:
    """Unpacked ids."""
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def packed(ids: Iterable[int]) -> bytes:
    """Packed ids."""
    return b"".join(struct.pack("<I", token) for token in ids)


def _other_id(at: int) -> Mutation:
    """Another id at a place of a verdict's or commit's ids."""

    def mutate(frame: Frame, scene: Scene) -> None:
        commit = _commit(frame)
        ids = ids_of(commit.ids)
        ids[at] = (ids[at] + 1 + scene.rng.randrange(200)) % 256 + 3
        commit.ids = packed(ids)

    return mutate


def _commit(frame: Frame) -> pb.Commit:
    return frame.verdict.commit if frame.WhichOneof("frame") == "verdict" else frame.commit


def _goes_on(count: int, kind: int, stop: bool = False) -> Mutation:
    """More ids behind the honest ones, behind a stop id if asked for."""

    def mutate(frame: Frame, scene: Scene) -> None:
        commit = _commit(frame)
        first = [scene.stop_id] if stop else []
        commit.ids += packed([*first, *(3 + scene.rng.randrange(200) for _ in range(count))])
        commit.kinds += bytes([kind]) * (count + len(first))

    return mutate


def _claims_accepted(frame: Frame, scene: Scene) -> None:
    verdict = frame.verdict
    verdict.accepted = len(verdict.commit.kinds)
    verdict.commit.kinds = bytes([pb.TOKEN_KIND_ACCEPTED]) * verdict.accepted


def _accepts(frame: Frame) -> bool:
    return frame.verdict.accepted > 0


def _refuses(frame: Frame) -> bool:
    return frame.verdict.commit.kinds[-1:] == bytes([pb.TOKEN_KIND_RECOVERED])


def _without_commit(outcome: int, retry_after_ms: int = 0) -> Mutation:
    def mutate(frame: Frame, scene: Scene) -> None:
        frame.verdict.ClearField("commit")
        frame.verdict.outcome = outcome  # type: ignore[assignment]
        frame.verdict.accepted, frame.verdict.retry_after_ms = 0, retry_after_ms

    return mutate


def _twice(frame: Frame, scene: Scene) -> list[Out]:
    return [frame, frame]


def _about_verdicts() -> None:
    lie("an accepted token that was not drafted", "verdict", _other_id(0), when=_accepts)
    lie("a refused draft called accepted", "verdict", _claims_accepted, when=_refuses)
    lie("a bonus token called accepted", "verdict", _claims_accepted, when=lambda f: not _refuses(f))
    lie(
        "an id outside the vocabulary",
        "verdict",
        sets("verdict.commit.ids", lambda b: b[:-4] + packed([2**31])),
    )
    lie("too many ids", "verdict", _goes_on(100, pb.TOKEN_KIND_BONUS))
    lie("text behind a stop id", "verdict", _goes_on(1, pb.TOKEN_KIND_RECOVERED, stop=True))
    lie("a verdict twice", "verdict", _twice)
    lie("a verdict for the wrong path", "verdict", sets("verdict.commit.start", lambda n: n - 1))
    values: dict[str, list[Any]] = {
        "verdict.accepted": [lambda n: n + 1, BIG],
        "verdict.trimmed": [BIG],
        "verdict.round": [0, lambda n: n + 1, BIG],
        "verdict.outcome": [0, 77, pb.ROUND_OUTCOME_BUSY, pb.ROUND_OUTCOME_ENDED],
        "verdict.queue_us": [BIG],
        "verdict.compute_us": [BIG],
        "verdict.commit.turn": [0, lambda n: n + 1, BIG],
        "verdict.commit.start": [lambda n: n + 1, 0, 1, BIG],
        "verdict.commit.ids": [b"", b"abc", lambda b: b + b"\0", b"\0" * 300_000],
        "verdict.commit.kinds": [
            b"", lambda b: b[:-1], lambda b: b"\0" * len(b), lambda b: b"\x63" * len(b), lambda b: b"\5" * len(b),
        ],
        "verdict.commit.near_ties": [BIG],
    }  # fmt: skip
    _table("verdict", values)
    lie("no commit with VERIFIED", "verdict", _without_commit(pb.ROUND_OUTCOME_VERIFIED))
    lie("ENDED out of the blue", "verdict", _without_commit(pb.ROUND_OUTCOME_ENDED))
    lie("SUPERSEDED, keeping the text back", "verdict", _without_commit(pb.ROUND_OUTCOME_SUPERSEDED))
    lie("BUSY, keeping the text back", "verdict", _without_commit(pb.ROUND_OUTCOME_BUSY))
    # Whether the text is complete by then depends on how many rounds were under way.
    lie("BUSY for ever and a day", "verdict", _without_commit(pb.ROUND_OUTCOME_BUSY, BIG), Ending.EITHER)


def _table(kind: str, values: dict[str, list[Any]], **more: Any) -> None:
    """One behaviour for each value of each field."""
    for path, choices in values.items():
        for number, value in enumerate(choices):
            lie(f"{path} #{number}", kind, sets(path, value), **more)


# -------------------------------------------------------------------------------------------------- about other frames


def _rewrites(frame: Frame, scene: Scene) -> None:
    """Tokens already committed, and another one among them."""
    commit = frame.commit
    commit.start -= 1
    commit.ids = packed([3 + scene.rng.randrange(3)]) + commit.ids
    commit.kinds = commit.kinds[:1] + commit.kinds


def _about_commits() -> None:
    values: dict[str, list[Any]] = {
        "commit.turn": [0, lambda n: n + 1],
        "commit.start": [lambda n: n + 1, 0, BIG],
        "commit.ids": [b"", b"abc", lambda b: packed([BIG]) + b[4:]],
        "commit.kinds": [b"", lambda b: b"\0" * len(b), lambda b: b"\5" * len(b)],
        "commit.near_ties": [BIG],
    }
    _table("commit", values, streaming=True)
    lie("a commit that goes on and on", "commit", _goes_on(100, pb.TOKEN_KIND_RUN_AHEAD), streaming=True)
    lie(
        "a commit behind a stop id", "commit", _goes_on(1, pb.TOKEN_KIND_RUN_AHEAD, stop=True), streaming=True
    )
    lie("a commit that changes its mind", "commit", _rewrites, streaming=True)
    lie("a commit kept back", "commit", sends(), streaming=True)


def _scale(value: float) -> Callable[[bytes], bytes]:
    return lambda data: struct.pack("<f", value) + data[4:]


def _noise(data: bytes) -> bytes:
    return struct.pack("<f", 1.0) + bytes(len(data) - 4)


def _about_rows() -> None:
    values: dict[str, list[Any]] = {
        "rows.plane": [7],
        "rows.count": [0, BIG, lambda n: n + 1],
        "rows.start": [lambda n: n + 500, BIG],
        "rows.turn": [0, 9],
        "rows.data": [
            b"",
            lambda b: b[:-1],
            b"\1" * 70_000,
            _scale(float("nan")),
            _scale(float("inf")),
            _noise,
        ],
    }
    _table("rows", values)
    lie("rows twice", "rows", _twice)
    lie("rows kept back", "rows", sends())


def _about_ends() -> None:
    values: dict[str, list[Any]] = {
        "turn_end.turn": [0, 9],
        "turn_end.reason": [0, 99, pb.FINISH_REASON_CONTEXT],
        "turn_end.end.hash": [0, lambda n: n ^ 1],
        "turn_end.end.length": [0, lambda n: n + 1, BIG],
        "turn_end.report.rule.name": ["", "x" * 65, "\x1b[2J"],
        "turn_end.report.rejection": [float("nan"), -1.0, 1e9],
        "turn_end.report.loss": [float("inf"), 1.0],
    }
    _table("turn_end", values)
    lie("an end kept back", "turn_end", sends())
    for reason in (pb.FINISH_REASON_STOP_ID, pb.FINISH_REASON_LENGTH, pb.FINISH_REASON_CONTEXT):
        early = Frame(turn_end=pb.TurnEnd(turn=1, reason=reason, end=pb.Anchor(length=3, hash=4)))
        lie(f"an end out of the blue, {reason}", "verdict", sends(early))


def _about_opened() -> None:
    limits = pb.Limits.DESCRIPTOR.fields_by_name
    zero = pb.Limits(max_context_tokens=1 << 20, max_chain_tokens=1, max_rounds_in_flight=1)
    values: dict[str, list[Any]] = {
        "opened.epoch": [0, lambda n: n + 1, BIG],
        "opened.attach": [0, 9],
        "opened.committed.length": [BIG],
        "opened.fingerprints.law": [b"x"],
        "opened.replica": [b"12345"],
        "opened.numerics.near_tie_gap": [float("nan"), -1.0, 5.0],
        "opened.protocol": [77],
        "opened.prefill_estimate_us": [BIG],
        "opened.context_from": [BIG],
    }
    _table("opened", values)
    lie("a law that is nobody's", "opened", sets("opened.fingerprints.law", b""))
    lie("another tokenizer", "opened", sets("opened.fingerprints.tokenizer", b"t" * 32), Ending.ERROR)
    for name, features in (
        ("a feature nobody asked for", [5]),
        ("features of the future", [99]),
        ("none", []),
    ):
        lie(f"features: {name}", "opened", _replaces("opened", "features", features))
    lie("context beyond what is held", "opened", _wants_context)
    lie("limits of nothing", "opened", _copies("limits", pb.Limits()))
    lie("limits of one", "opened", _copies("limits", zero))
    lie("limits of one while streaming", "opened", _copies("limits", zero), streaming=True)
    lie("limits without end", "opened", _copies("limits", pb.Limits(**dict.fromkeys(limits, BIG))))
    costs = {
        "free": ([1, 64], [0, 0]),
        "dear": ([1, 64], [BIG, BIG]),
        "uneven": ([1, 64], [5]),
        "wild": ([9, 1], [1, 1]),
    }
    for name, (widths, costs_us) in costs.items():
        lie(f"a {name} cost curve", "opened", _copies("cost", pb.CostCurve(widths=widths, costs_us=costs_us)))
    good = {"plane": 0, "width": 8, "encoding": 3, "content": "toy.prefix", "parts": 2}
    planes: dict[str, list[dict[str, Any]]] = {
        "none": [], "the same twice": [good, good], "no width": [good | {"width": 0}],
        "a wide one": [good | {"width": 1 << 30}], "odd parts": [good | {"parts": 3}],
        "no encoding": [good | {"encoding": 0}], "another size": [good | {"width": 12}],
        "many": [good | {"plane": number} for number in range(40)], "another number": [good | {"plane": 5}],
    }  # fmt: skip
    for name, given in planes.items():
        lie(f"planes: {name}", "opened", _replaces("opened", "planes", [pb.RowPlane(**one) for one in given]))
    lie("Opened twice", "opened", _twice)
    before = {
        "a verdict": Frame(verdict=pb.Verdict(round=1, outcome=pb.ROUND_OUTCOME_SUPERSEDED)),
        "progress": Frame(progress=pb.Progress(turn=1)),
        "an end": Frame(turn_end=pb.TurnEnd(turn=1, reason=pb.FINISH_REASON_LENGTH)),
        "rows": Frame(rows=pb.Rows(turn=1, count=1, data=b"\0" * 16)),
    }
    for name, frame in before.items():
        lie(f"{name} before Opened", "opened", sends(frame))
    lie("progress and no Opened", "opened", sends(Endless(Frame(progress=pb.Progress(turn=1)))))
    lie("silence from the start", "opened", sends(Silence()))


def _replaces(frame: str, name: str, values: list[Any]) -> Mutation:
    def mutate(message: Frame, scene: Scene) -> None:
        part = getattr(message, frame)
        part.ClearField(name)
        getattr(part, name).extend(values)

    return mutate


def _copies(name: str, value: Any) -> Mutation:
    def mutate(message: Frame, scene: Scene) -> None:
        getattr(message.opened, name).CopyFrom(value)

    return mutate


def _wants_context(frame: Frame, scene: Scene) -> None:
    frame.opened.attach = pb.ATTACH_NEED_CONTEXT
    frame.opened.context_from = 100_000


# -------------------------------------------------------------------------------------------------- about the stream


def _about_streams() -> None:
    lie("garbage", "any", lambda frame, scene: [scene.rng.randbytes(60)])
    lie("half a frame", "verdict", lambda frame, scene: [frame.SerializeToString()[:-3]])
    lie("an empty message", "any", sends(b""))
    lie("a frame of the future", "any", sends(b"\x72\x02hi"))
    lie("a message of 2 MiB", "any", sends(Frame(padding=b"p" * (2 << 20))))
    lie("padding of 200 kB", "any", sends(Frame(pong=pb.Pong(), padding=b"p" * 200_000)))
    lie("silence after Opened", "opened", lambda frame, scene: [frame, Silence()])
    lie("silence after a verdict", "verdict", lambda frame, scene: [frame, Silence()])
    lie("a verdict kept back", "verdict", sends())
    endless = {
        "Progress": Frame(progress=pb.Progress(turn=1, prefilled=3)),
        "Pong": Frame(pong=pb.Pong()),
        "Drain": Frame(drain=pb.Drain(deadline_ms=BIG, reconnect_after_ms=BIG)),
        "old rows": Frame(rows=pb.Rows(turn=0, count=1, data=b"\0" * 16)),
    }
    for name, frame in endless.items():
        lie(f"{name} without end", "verdict", sends(Endless(frame)))
        lie(f"{name} without end while streaming", "commit", sends(Endless(frame)), streaming=True)
    lie("a pong for another ping", "verdict", lambda f, s: [Frame(pong=pb.Pong(nonce=77, hold_us=BIG)), f])
    lie("a drain at once", "verdict", lambda f, s: [Frame(drain=pb.Drain()), f])
    lie("the end at once", "opened", sends(Over()))
    for status in grpc.StatusCode:
        fatal = status.name in (
            "INVALID_ARGUMENT",
            "UNAUTHENTICATED",
            "PERMISSION_DENIED",
            "UNIMPLEMENTED",
            "OUT_OF_RANGE",
        )
        lie(f"status {status.name}", "any", sends(Over(status)), Ending.ERROR if fatal else Ending.SAME)
    _about_failures()


def _about_failures() -> None:
    fatal = ("FINGERPRINT", "PROTOCOL", "INVALID", "OUT_OF_RANGE")
    for name in pb.FailureReason.keys():
        short = name.removeprefix("FAILURE_REASON_")
        frame = Frame(failure=pb.Failure(reason=name, detail="so there"))
        lie(f"failure {short}", "any", sends(frame, Over()), Ending.ERROR if short in fatal else Ending.SAME)
    lie("failure of the future", "any", sends(b"\x4a\x02\x08\x63"))
    odd = pb.Failure(reason=pb.FAILURE_REASON_ENGINE, detail="\x1b[2J" * 9_000, remedy="\0\r" * 9_000)
    lie("failure in control characters", "any", sends(Frame(failure=odd)))
    for epoch in (0, BIG):
        fenced = pb.Failure(reason=pb.FAILURE_REASON_FENCED, last_epoch=epoch)
        lie(f"fenced at {epoch}", "any", sends(Frame(failure=fenced)))
    later = pb.Failure(reason=pb.FAILURE_REASON_OVERLOADED, retry_after_ms=BIG)
    lie("overloaded for ever", "any", sends(Frame(failure=later)), Ending.WAITS)


_about_verdicts()
_about_commits()
_about_rows()
_about_ends()
_about_opened()
_about_streams()
