"""How an Open finds its session: the first decision table of the protocol, as pure functions.

``Open.have`` names what the device holds of the current turn: the turn's kept prefix while nothing was generated, and
afterwards the whole sequence (kept + appended + generated).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from outrider.cloud.rules import Rule, Rulebook, runs_ahead
from outrider.cloud.session_log import Session, common_prefix
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.errors import ContextTooLong, FingerprintMismatch, InvalidField, ProtocolMismatch
from outrider.shared.frames import PROTOCOL, Attach, Feature, Fingerprints, Open, Turn, Window

OLDEST_PROTOCOL = 1
"""The first minor version spoken here; `PROTOCOL` is the last."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the verifier can do with an Open."""

    attach: Attach
    ids: tuple[int, ...] | None = None
    """The whole sequence at the start of this stream; None with LIVE (the log stands) and NEED_CONTEXT."""
    known: tuple[int, ...] = ()
    """With NEED_CONTEXT: the ids before ``len(known)``, where the context must begin."""
    diverged: bool = False


def check_open(
    frame: Open, ours: Fingerprints, rules: Rulebook, longest: int, offered: Collection[Feature]
) -> None:
    """Refuse what no session could serve.

    Raises ProtocolMismatch, FingerprintMismatch, InvalidField or ContextTooLong.
    """
    if not (frame.protocol_min <= PROTOCOL and OLDEST_PROTOCOL <= frame.protocol_max):
        theirs = f"{frame.protocol_min} … {frame.protocol_max}"
        raise ProtocolMismatch(
            f"this verifier speaks minor versions {OLDEST_PROTOCOL} … {PROTOCOL}, the device {theirs}",
            remedy="use the same release on both sides",
        )
    prints = frame.fingerprints
    for which, mine, other in (
        ("law", ours.law, prints.law),
        ("tokenizer", ours.tokenizer, prints.tokenizer),
    ):
        if other and other != mine:
            raise FingerprintMismatch(which, ours=mine, theirs=other)
    granted = grant(frame, offered)
    check_turn(frame.turn, "open.turn", rules, longest, granted)
    rule = rules.named(frame.turn.rule.name)
    check_window(frame.window, "open.window", rule)
    if frame.draft is not None:
        try:
            rule.takes(frame.draft.draft)
        except InvalidField as error:
            raise below("open", error) from None
    if frame.have.length > longest:
        raise ContextTooLong(f"the session has {frame.have.length} tokens, at most {longest} fit")
    start = turn_start(frame.turn)
    if frame.have != frame.turn.keep and frame.have.length < start:
        raise InvalidField("open.have", f"neither the kept prefix nor at least {start} tokens")


def check_turn(turn: Turn, path: str, rules: Rulebook, longest: int, granted: Collection[Feature]) -> None:
    """Refuse a rule that cannot be had and a sequence that cannot fit. Raises InvalidField or ContextTooLong."""
    try:
        rule = rules.find(turn.rule, turn.sampling)
    except InvalidField as error:
        raise below(path, error) from None
    if rule.needs_laws and Feature.DRAFT_LAWS not in granted:
        raise InvalidField(
            f"{path}.rule.name",
            f"{rule.name} compares laws, and DRAFT_LAWS was not agreed on",
            remedy="ask for the feature, or use a rule on ids alone, such as coupled or delta",
        )
    if turn_start(turn) > longest:
        raise ContextTooLong(f"the prompt makes {turn_start(turn)} tokens, at most {longest} fit")


def below(path: str, error: InvalidField) -> InvalidField:
    """The same refusal of a field of the message at ``path``."""
    return InvalidField(f"{path}.{error.field}", error.why, remedy=error.remedy)


def check_window(window: Window, path: str, rule: Rule) -> None:
    """Refuse run-ahead under a rule that excludes it. Raises InvalidField."""
    if window.run_ahead_until and not runs_ahead(rule):
        why = "is lossy" if rule.lossy else "compares draft laws"
        raise InvalidField(
            f"{path}.run_ahead_until",
            f"{rule.name} {why}: the target does not go on alone under it",
            remedy="say 0",
        )


def turn_start(turn: Turn) -> int:
    """Length of the sequence before anything of this turn is generated."""
    return turn.keep.length + len(turn.append_ids)


def find(session: Session | None, frame: Open) -> Found:
    """Match an Open against what is known. Raises InvalidField where its own parts contradict each other."""
    if session is not None and session.turn == frame.turn and _holds(session, frame):
        return Found(Attach.LIVE if session.kv else Attach.REBUILD)
    diverged = session is not None and session.turn_number == frame.turn.turn
    base = _kept(session, frame)
    ids = _from_context(frame, base)
    if ids is None:
        known = (
            () if base is None else base + (frame.turn.append_ids if frame.have != frame.turn.keep else ())
        )
        return Found(Attach.NEED_CONTEXT, known=known[: frame.have.length], diverged=diverged)
    if session is None:
        attach = Attach.REBUILD if frame.have.length else Attach.NEW
    else:
        attach = Attach.LIVE if common_prefix(session.kv, ids) else Attach.REBUILD
    return Found(attach, ids=ids, diverged=diverged)


def complete(frame: Open, known: Sequence[int], pieces: Sequence[int]) -> tuple[int, ...]:
    """The sequence once the context asked for has arrived. Raises InvalidField when it is not what ``have`` says."""
    held = (*known, *pieces)
    if extend(EMPTY, held) != frame.have:
        raise InvalidField("context.ids", "do not hash to open.have")
    return _with_turn(frame, held)


def grant(frame: Open, offered: Collection[Feature]) -> frozenset[Feature]:
    """The features both sides want; those that DRAFT_LAWS excludes give way to it."""
    both = frozenset(frame.features) & frozenset(offered)
    excluded = {Feature.RUN_AHEAD, Feature.PIPELINE} if Feature.DRAFT_LAWS in both else set()
    return both - excluded


def _holds(session: Session, frame: Open) -> bool:
    """Whether the log of this very turn contains what the device has."""
    if frame.have == frame.turn.keep:
        return session.log.contains(frame.have) and session.length >= turn_start(frame.turn)
    return session.log.contains(frame.have)


def _kept(session: Session | None, frame: Open) -> tuple[int, ...] | None:
    """The ids of the turn's kept prefix, where known."""
    keep = frame.turn.keep
    if keep == EMPTY:
        return ()
    if session is not None and session.log.contains(keep):
        return session.log.slice(0, keep.length)
    return None


def _from_context(frame: Open, base: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The whole sequence from the Open alone and the kept prefix, or None when ids are missing."""
    if frame.context is not None:
        return complete(frame, (), frame.context.ids)
    if frame.have == frame.turn.keep:
        return None if base is None else base + frame.turn.append_ids
    if base is not None and frame.have.length == turn_start(frame.turn):
        return complete(frame, base, frame.turn.append_ids)
    return None


def _with_turn(frame: Open, held: tuple[int, ...]) -> tuple[int, ...]:
    """``held`` are the ids of ``have``; the result has the turn applied."""
    turn = frame.turn
    if extend(EMPTY, held[: turn.keep.length]) != turn.keep:
        raise InvalidField("open.turn.keep", "is not a prefix of open.have")
    if frame.have == turn.keep:
        return held + turn.append_ids
    if held[turn.keep.length : turn_start(turn)] != turn.append_ids:
        raise InvalidField("open.turn.append_ids", "are not in open.have")
    return held
