"""One attempt to attach: a connection, its stream, its epoch, and the rounds under way on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.shared.anchor import EMPTY, TokenSequence
from outrider.shared.draft import Draft
from outrider.shared.frames import Anchor, Commit, Feature, Limits, Opened, RowPlane, TokenKind, Turn, Verdict
from outrider.shared.rule_names import LOSSLESS


@dataclass(frozen=True, slots=True)
class Round:
    """A draft that waits for its verdict."""

    number: int
    turn: int
    base: int
    """Length of the sequence that the draft continues."""
    draft: Draft
    path: int
    """Tokens of the draft, from its base, that are in the tail."""
    cuts: int
    """The tail's count of cuts when it was sent: it covers the tail only while that stands."""
    sent_at: float
    deadline: float
    """When its verdict is late."""
    held: int = 0
    """Committed tokens when it was sent."""


@dataclass(slots=True)
class Conn:
    """What the device knows of one stream."""

    number: int
    epoch: int
    dialled_at: float
    fresh: bool = False
    assumed: Limits = field(default_factory=Limits)
    """The limits taken for granted until Opened tells them."""
    opened: Opened | None = None
    asked: tuple[Feature, ...] = ()
    """The features that Open asked for."""
    bundle: bytes = b""
    """The bundle that Open named: whose rows come on this stream, if any."""
    have: Anchor = EMPTY
    """What Open said the device holds."""
    turn: int = 0
    """The latest turn told on this stream."""
    known: int = 0
    """Length of the verifier's log, as far as this stream has told."""
    rounds: dict[int, Round] = field(default_factory=dict)
    last_round: int = 0
    opened_sent_at: float | None = None
    heard_at: float = 0.0
    progress_at: float = 0.0
    """When the text last grew by this stream, or was asked to."""
    bulk_received: int = 0
    bulk_acked: int = 0
    run_until: int = 0
    window_at: float = 0.0
    window_length: int = 0
    busy_until: float = 0.0
    late: bool = False
    """A soft deadline has passed since the last answer."""
    leave_at: float | None = None
    """When to look for another verifier, after Drain."""
    draining: bool = False
    planes: dict[int, RowPlane] = field(default_factory=dict)

    @property
    def granted(self) -> frozenset[Feature]:
        """Features that may be used on this stream."""
        return frozenset(self.opened.features) if self.opened else frozenset()

    @property
    def limits(self) -> Limits:
        """The verifier's limits, or those assumed before they are known."""
        return self.opened.limits if self.opened else self.assumed

    def in_flight_most(self, wanted: int) -> int:
        """Rounds that may be under way."""
        if Feature.PIPELINE not in self.granted:
            return 1
        return max(1, min(wanted, self.limits.max_rounds_in_flight))


def why_not(round_: Round, verdict: Verdict, sequence: TokenSequence) -> str | None:
    """Why a verdict cannot be an answer to its round; None if it can.

    ``sequence`` is the committed text before the verdict. The accepted tokens must lie on a path of the draft.
    """
    commit = verdict.commit
    if commit is None:
        return None
    if commit.start < round_.base:
        return "the commit starts before the draft's base"
    if verdict.trimmed > len(round_.draft.ids) or verdict.accepted > len(round_.draft.ids):
        return "more tokens were trimmed or accepted than drafted"
    drafted = [kind in (TokenKind.ACCEPTED, TokenKind.JUDGED) for kind in commit.kinds]
    accepted = sum(drafted)
    if accepted != verdict.accepted or not all(drafted[:accepted]):
        return "the accepted tokens are not the first ones, or miscounted"
    before = sequence.slice(round_.base, commit.start)
    if not on_path(round_.draft, (*before, *commit.ids[:accepted]) if accepted else ()):
        return "the accepted tokens are not a path of the draft"
    return None


def first_guesses(round_: Round, verdict: Verdict) -> int:
    """Tokens of the draft's best path, from its base, that the verdict accepts."""
    draft = round_.draft
    if draft.is_chain or verdict.commit is None or verdict.commit.start != round_.base:
        return min(verdict.accepted, round_.path)
    node, right = 0, 0
    for token_id in verdict.commit.ids[: verdict.accepted]:
        child = next((i for i, parent in enumerate(draft.parents) if parent == node), None)
        if child is None or draft.ids[child] != token_id:
            break
        node, right = child + 1, right + 1
    return right


def on_path(draft: Draft, ids: Sequence[int]) -> bool:
    """Whether ``ids`` are a path of the draft from its base."""
    if draft.is_chain:
        return draft.ids[: len(ids)] == tuple(ids)
    rows = {0}  # where siblings are equal, each of them may be meant
    for token_id in ids:
        rows = {
            n + 1 for n, parent in enumerate(draft.parents) if parent in rows and draft.ids[n] == token_id
        }
    return bool(rows)


def commit_conflict(commit: Commit, sequence: TokenSequence, turn_start: int, longest: int) -> str | None:
    """Why a commit cannot follow the committed text; None if it can (or is covered by it)."""
    if commit.start > len(sequence):
        return f"a commit at {commit.start} leaves a gap after {len(sequence)}"
    if commit.start < turn_start:
        return "a commit rewrites what the device gave"
    covered = len(sequence) - commit.start
    if sequence.slice(commit.start, commit.start + len(commit.ids)) != commit.ids[:covered]:
        return "a commit contradicts an earlier one"
    if commit.start + len(commit.ids) > longest:
        return f"a commit goes beyond the turn's limit of {longest} tokens"
    return None


def turn_conflict(commit: Commit, turn: Turn) -> str | None:
    """Why a commit is not what the turn asked for; None if it can be."""
    if len(commit.log_probs) != (len(commit.ids) if turn.log_probs else 0):
        return "log-probabilities are missing, or nobody asked for them"
    if TokenKind.JUDGED in commit.kinds and turn.rule.name in LOSSLESS:
        return "a judged token under an exact rule"
    earliest = turn.generated_from + turn.sampling.min_tokens
    for position, token_id in enumerate(commit.ids[: max(earliest - commit.start, 0)], commit.start):
        if position >= turn.generated_from and token_id in turn.stop_ids:
            return f"a stop id at {position}, before the turn's least length"
    return None
