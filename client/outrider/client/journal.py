"""The records of a session's journal, and the session that they add up to.

Records are JSON-able dictionaries; how they are framed, checked and flushed is the adapter's business. Only the epoch
record needs to be durable before something happens (dialling); whatever else is lost with a torn end comes back from
the verifier by position.

=============  ================================================================================================
``session``    session (hex), fingerprints (law, tokenizer: hex)
``epoch``      epoch: stored before it is used
``turn``       turn (number), keep, append, generated_from, max_length, stop_ids, sampling (temperature, top_k, top_p,
               seed), warps (of the others, those that are on), rule, parameters; with log_probs, stops if there are any
``commit``     turn, start, ids, kinds; in turns that ask for them raw and warped log-probabilities (null: none at all)
``provisional``  turn, start, ids: shown without being verified; a later commit decides
``end``        turn, reason, verified, length; where nobody waited any longer for the verifier (`UNREACHABLE`) the turn
               is over for its caller only, and can be resumed
=============  ================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from outrider.client.tail import Tail
from outrider.shared.anchor import TokenSequence
from outrider.shared.errors import InvalidField
from outrider.shared.frames import Fingerprints, Rule, TokenKind, Turn
from outrider.shared.sampling import LogProbs, Sampling

Record = dict[str, object]

UNREACHABLE = "unreachable"
"""Reason of a turn that ended because its verifier did not come back: nothing was decided, so it may go on."""


@dataclass(slots=True)
class Restored:
    """A session as its journal tells it."""

    session_id: bytes = b""
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    epoch: int = 0
    turn: Turn | None = None
    sequence: TokenSequence = field(default_factory=TokenSequence)
    kinds: dict[int, TokenKind] = field(default_factory=dict)
    """Kind by position, of committed tokens."""
    log_probs: dict[int, LogProbs] = field(default_factory=dict)
    """By position, of those that came with any."""
    stops: tuple[str, ...] = ()
    """Stop strings of the turn."""
    tail: Tail = field(default_factory=Tail)
    end: str | None = None
    """The reason, when the turn is over."""


def session_record(session_id: bytes, fingerprints: Fingerprints) -> Record:
    """Who this is."""
    return {
        "kind": "session",
        "session": session_id.hex(),
        "law": fingerprints.law.hex(),
        "tokenizer": fingerprints.tokenizer.hex(),
    }


def epoch_record(epoch: int) -> Record:
    """An attachment is about to be tried."""
    return {"kind": "epoch", "epoch": epoch}


def turn_record(turn: Turn, stops: Sequence[str] = ()) -> Record:
    """A turn has begun."""
    record: Record = {
        "kind": "turn",
        "turn": turn.turn,
        "keep": turn.keep.length,
        "append": list(turn.append_ids),
        "generated_from": turn.generated_from,
        "max_length": turn.max_length,
        "stop_ids": list(turn.stop_ids),
        "sampling": [turn.sampling.temperature, turn.sampling.top_k, turn.sampling.top_p, turn.sampling.seed],
        "warps": _warps(turn.sampling),
        "rule": turn.rule.name,
        "parameters": [[name, value] for name, value in turn.rule.parameters],
    }
    if turn.log_probs:
        record["log_probs"] = True
    if stops:
        record["stops"] = list(stops)
    return record


def _warps(sampling: Sampling) -> Record:
    """What the four numbers under "sampling" do not say."""
    names = [field.name for field in fields(Sampling)[4:]]
    values = {name: getattr(sampling, name) for name in names}
    on: Record = {name: value for name, value in values.items() if value != getattr(Sampling(), name)}
    if sampling.logit_bias:
        on["logit_bias"] = [[token_id, shift] for token_id, shift in sampling.logit_bias]
    return on


def commit_record(
    turn: int,
    start: int,
    ids: Sequence[int],
    kinds: Sequence[TokenKind],
    log_probs: Sequence[LogProbs] = (),
) -> Record:
    """The target has decided these tokens."""
    record: Record = {
        "kind": "commit",
        "turn": turn,
        "start": start,
        "ids": list(ids),
        "kinds": [int(k) for k in kinds],
    }
    if log_probs:
        record["raw"] = [_finite(each.raw) for each in log_probs]
        record["warped"] = [_finite(each.warped) for each in log_probs]
    return record


def _finite(value: float) -> float | None:
    """JSON has no infinity: None stands for the logarithm of 0."""
    return value if math.isfinite(value) else None


def provisional_record(turn: int, start: int, ids: Sequence[int]) -> Record:
    """These tokens are on display and not verified."""
    return {"kind": "provisional", "turn": turn, "start": start, "ids": list(ids)}


def end_record(turn: int, reason: str, verified: bool, length: int) -> Record:
    """The turn is over; the sequence has this length."""
    return {"kind": "end", "turn": turn, "reason": reason, "verified": verified, "length": length}


def restore(records: Iterable[Record]) -> Restored:
    """The session that these records add up to. Raises InvalidField("journal.…") where they contradict each other."""
    state = Restored()
    for record in records:
        match record.get("kind"):
            case "session":
                state.session_id = bytes.fromhex(str(record["session"]))
                law, tokenizer = str(record["law"]), str(record["tokenizer"])
                state.fingerprints = Fingerprints(bytes.fromhex(law), bytes.fromhex(tokenizer))
            case "epoch":
                state.epoch = max(state.epoch, _int(record, "epoch"))
            case "turn":
                _restore_turn(state, record)
            case "commit":
                _restore_commit(state, record)
            case "provisional":
                if _current(state, record) and _int(record, "start") == state.tail.end:
                    state.tail.extend(_ids(record, "ids"))
                    state.tail.show()
            case "end":
                _restore_end(state, record)
            case kind:
                raise InvalidField("journal.kind", f"unknown record {kind!r}")
    return state


def _restore_turn(state: Restored, record: Record) -> None:
    keep = _int(record, "keep")
    if keep > len(state.sequence):
        raise InvalidField("journal.turn", f"keeps {keep} tokens of {len(state.sequence)}")
    anchor = state.sequence.anchor_at(keep)
    state.sequence.cut(keep)
    state.sequence.append(_ids(record, "append"))
    state.kinds = {position: kind for position, kind in state.kinds.items() if position < keep}
    state.log_probs = {position: told for position, told in state.log_probs.items() if position < keep}
    temperature, top_k, top_p, seed = _list(record, "sampling")
    state.turn = Turn(
        turn=_int(record, "turn"),
        keep=anchor,
        append_ids=_ids(record, "append"),
        generated_from=_int(record, "generated_from"),
        max_length=_int(record, "max_length"),
        stop_ids=_ids(record, "stop_ids"),
        sampling=_sampling(Sampling(float(temperature), int(top_k), float(top_p), int(seed)), record),
        rule=Rule(str(record["rule"]), tuple((str(n), float(v)) for n, v in _list(record, "parameters"))),
        log_probs=bool(record.get("log_probs", False)),
    )
    state.stops = tuple(str(stop) for stop in _list(record, "stops")) if "stops" in record else ()
    state.tail = Tail(len(state.sequence))
    state.end = None


def _sampling(begun: Sampling, record: Record) -> Sampling:
    """The sampling with its other warps; a journal written before there were any names none."""
    warps = record.get("warps", {})
    if not isinstance(warps, dict) or set(warps) - {field.name for field in fields(Sampling)}:
        raise InvalidField("journal.warps", f"{warps!r} are not warps that this version knows")
    warps = dict(warps)
    if "logit_bias" in warps:
        warps["logit_bias"] = tuple((token_id, shift) for token_id, shift in _list(warps, "logit_bias"))
    return replace(begun, **warps)


def _restore_commit(state: Restored, record: Record) -> None:
    if not _current(state, record):
        return
    start, ids = _int(record, "start"), _ids(record, "ids")
    if start != len(state.sequence):
        raise InvalidField("journal.commit", f"starts at {start}, expected {len(state.sequence)}")
    state.sequence.append(ids)
    state.tail.commit(start, ids)
    kinds = (TokenKind(int(kind)) for kind in _list(record, "kinds"))
    state.kinds.update(zip(range(start, start + len(ids)), kinds, strict=True))
    if "raw" in record:
        pairs = zip(_list(record, "raw"), _list(record, "warped"), strict=True)
        told = (LogProbs(*(-math.inf if value is None else float(value) for value in pair)) for pair in pairs)
        state.log_probs.update(zip(range(start, start + len(ids)), told, strict=True))


def _restore_end(state: Restored, record: Record) -> None:
    if _current(state, record) and record["reason"] != UNREACHABLE:
        state.end = str(record["reason"])
        length = _int(record, "length")
        state.sequence.cut(length)
        state.tail.cut(length)
        state.tail.start = len(state.sequence)


def _current(state: Restored, record: Record) -> bool:
    return state.turn is not None and record.get("turn") == state.turn.turn


def _int(record: Record, name: str) -> int:
    value = record.get(name)
    if not isinstance(value, int):
        raise InvalidField(f"journal.{name}", f"{value!r} is not a whole number")
    return value


def _list(record: Record, name: str) -> list[Any]:
    value = record.get(name)
    if not isinstance(value, list):
        raise InvalidField(f"journal.{name}", f"{value!r} is not a list")
    return value


def _ids(record: Record, name: str) -> tuple[int, ...]:
    return tuple(int(token_id) for token_id in _list(record, name))
