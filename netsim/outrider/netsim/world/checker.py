"""Reads the history of a run, replays every device's text, and says which laws were broken.

Laws (the protocol's I1 to I7): what is shown as verified is what the target alone says, in order and once; labels only
strengthen; nothing of an older stream or another turn touches the text; epochs only rise; rows belong to the text they
are given for; a verifier sends only what is in its log; bounds hold; and every turn ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.client.events import Label
from outrider.netsim.world.history import Entry, History
from outrider.netsim.world.schedule import Schedule
from outrider.netsim.world.toy import STOP_ID, ToyTarget
from outrider.shared.frames import Failure, FailureReason, TokenKind
from outrider.shared.sampling import Sampling

VERIFIED = frozenset({Label.ACCEPTED, Label.RECOVERED, Label.BONUS, Label.RUN_AHEAD})
OURS_TO_BLAME = frozenset(
    {
        FailureReason.INVALID,
        FailureReason.ROUND_CONFLICT,
        FailureReason.ROUND_GAP,
        FailureReason.DIVERGED,
        FailureReason.PROTOCOL,
        FailureReason.FINGERPRINT,
        FailureReason.OUT_OF_RANGE,
    }
)
"""An honest device never hears these from an honest verifier."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken law."""

    at: float
    who: str
    law: str
    detail: str


@dataclass(slots=True)
class Text:
    """A device's text as its user saw it."""

    ids: list[int] = field(default_factory=list)
    labels: list[Label | None] = field(default_factory=list)
    """None = given by the user."""
    turn: int = 0
    turn_start: int = 0
    generated_from: int = 0
    max_length: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    finished: bool = True
    stops: dict[int, str] = field(default_factory=dict)
    """Ends asked for by the user in this turn: length to reason."""
    interrupted: bool = False
    adopting: int = 0
    """Provisional tokens that the turn about to begin keeps."""
    epoch: int = 0
    past: dict[int, list[int]] = field(default_factory=dict)
    """Whole text at the end of earlier turns."""

    @property
    def committed(self) -> int:
        """Length without what is provisional."""
        while_provisional = len(self.labels)
        while while_provisional and self.labels[while_provisional - 1] is Label.PROVISIONAL:
            while_provisional -= 1
        return while_provisional


class Checker:
    """Replays one history."""

    def __init__(self, schedule: Schedule, target: ToyTarget) -> None:
        self.schedule = schedule
        self.target = target
        self.violations: list[Violation] = []
        self.texts: dict[str, Text] = {}
        self._entry = Entry(0.0, "", "", {})

    def check(self, history: History) -> list[Violation]:
        """All violations, in order."""
        for entry in history.entries:
            self._entry = entry
            handler = getattr(self, f"_on_{entry.what}", None)
            if handler is not None:
                text = self.texts.setdefault(entry.who, Text())
                handler(text, entry.data)
        return self.violations

    def blame(self, law: str, detail: str) -> None:
        """Note a violation at the present entry."""
        self.violations.append(Violation(self._entry.at, self._entry.who, law, detail))

    # ------------------------------------------------------------------------------------------------------ text

    def _on_turn(self, text: Text, data: dict[str, Any]) -> None:
        record = data["record"]
        keep, append = record["keep"], record["append"]
        if keep > text.committed:
            self.blame("I4", f"turn keeps {keep} tokens, only {text.committed} are verified or given")
        adopted, text.adopting = text.adopting, 0
        if adopted and text.ids[keep : keep + adopted] != append[:adopted]:
            self.blame("I4", "text kept by the user was changed")
        text.ids = text.ids[:keep] + append
        kept = [label if label is Label.KEPT else None for label in text.labels[keep : keep + adopted]]
        text.labels = text.labels[:keep] + kept + [None] * (len(append) - adopted)
        text.turn, text.finished = record["turn"], False
        text.turn_start, text.generated_from = keep + len(append), record["generated_from"]
        text.max_length = record["max_length"]
        temperature, top_k, top_p, seed = record["sampling"]
        text.sampling = Sampling(temperature, top_k, top_p, seed)
        text.stops, text.interrupted = {}, False

    def _on_emit(self, text: Text, data: dict[str, Any]) -> None:
        start, ids, labels = data["start"], data["ids"], data["labels"]
        if start != len(text.ids):
            self.blame("I1", f"shown at {start}, the text has {len(text.ids)} tokens")
            return
        if text.finished:
            self.blame("I1", "text after the end of the turn")
        if data["stale"]:
            self.blame("I1", "a stream older than the newest attachment changed the text")
        for token_id, label in zip(ids, labels, strict=True):
            if label in VERIFIED:
                self._verified(text, len(text.ids), token_id)
            text.ids.append(token_id)
            text.labels.append(label)

    def _on_relabel(self, text: Text, data: dict[str, Any]) -> None:
        text.adopting = len(data["labels"]) if Label.KEPT in data["labels"] else 0
        for position, label in enumerate(data["labels"], data["start"]):
            if position >= len(text.labels) or text.labels[position] is not Label.PROVISIONAL:
                self.blame("I4", f"position {position} was not provisional")
                continue
            if label in VERIFIED:
                self._verified(text, position, text.ids[position])
            text.labels[position] = label

    def _on_revise(self, text: Text, data: dict[str, Any]) -> None:
        start, removed = data["start"], data["removed"]
        if start + removed != len(text.ids):
            self.blame("I4", f"{removed} tokens from {start} revised of a text of {len(text.ids)}")
        allowed = min(text.stops, default=len(text.ids))
        for position in range(start, len(text.ids)):
            if text.labels[position] is not Label.PROVISIONAL and position < allowed:
                self.blame("I4", f"verified position {position} was taken back")
                break
        del text.ids[start:]
        del text.labels[start:]

    def _verified(self, text: Text, position: int, token_id: int) -> None:
        """I3: a token labelled verified is the target's own after what stands before it."""
        before = text.ids[:position]
        if any(label is Label.PROVISIONAL for label in text.labels[:position]):
            self.blame("I3", f"position {position} was verified before an earlier one")
        expected = self.target.next_id(before, text.sampling)
        if token_id != expected:
            self.blame("I3", f"position {position}: {token_id} is not the target's {expected}")
        last = position - 1
        if last >= max(text.generated_from, text.turn_start) and before[last] == STOP_ID:
            self.blame("I3", "text goes on after a stop id")
        if position >= text.max_length:
            self.blame("I3", "text goes on after the turn's limit")

    def _on_finish(self, text: Text, data: dict[str, Any]) -> None:
        if text.finished:
            self.blame("I7", "a turn ended twice")
        text.finished = True
        reason, verified, length = data["reason"], data["verified"], len(text.ids)
        if reason in ("error", "offline"):
            self.blame("I7", f"the turn ended with {reason}: {data['error']}")
        elif reason == "cancelled":
            # A stop may be known to the verifier alone, if a crash took it from the device.
            if not text.interrupted and not text.stops:
                self.blame("I7", "the turn was cancelled and nobody asked for it")
        elif verified:
            self._verified_end(text, reason, length)
        elif Label.KEPT not in text.labels:
            self.blame("I4", f"the turn ended with {reason}, unverified, and nothing was kept")

    def _verified_end(self, text: Text, reason: str, length: int) -> None:
        if Label.PROVISIONAL in text.labels:
            self.blame("I4", "the turn ended verified with provisional text on display")
        stop_id = length > text.generated_from and text.ids[-1] == STOP_ID
        fits = {
            "stop": stop_id or text.stops.get(length) == "stop",
            "length": length == text.max_length,
            "context": length == self.schedule.context,
        }
        if not fits.get(reason, False):
            self.blame("I3", f"the turn ended with {reason} at {length}")

    def _on_stop_at(self, text: Text, data: dict[str, Any]) -> None:
        text.stops[data["length"]] = data["reason"]

    def _on_interrupt(self, text: Text, data: dict[str, Any]) -> None:
        text.interrupted = True

    def _on_report(self, text: Text, data: dict[str, Any]) -> None:
        if "breaks the protocol" in data["note"]:
            self.blame("I7", f"an honest verifier was given up: {data['note']}")

    def _on_accused(self, text: Text, data: dict[str, Any]) -> None:
        self.blame("I2", f"an honest verifier was accused: {data['why']}")

    # ------------------------------------------------------------------------------------------- crashes and epochs

    def _on_restored(self, text: Text, data: dict[str, Any]) -> None:
        ids, kinds = list(data["ids"]), data["kinds"]
        labels: list[Label | None] = [None] * len(ids)
        for position, kind in kinds.items():
            if position < len(ids):
                labels[position] = _LABEL_OF[kind]
        text.ids, text.labels = ids + list(data["shown"]), labels + [Label.PROVISIONAL] * len(data["shown"])
        turn = data["turn"]
        text.finished = turn is None or data["end"] is not None
        if turn is not None:
            text.turn, text.turn_start = turn.turn, turn.keep.length + len(turn.append_ids)
            text.generated_from, text.max_length, text.sampling = (
                turn.generated_from,
                turn.max_length,
                turn.sampling,
            )
        for position, label in enumerate(labels):
            if label is not None and turn is not None and position >= text.turn_start:
                self._verified(
                    Text(**{**_as_dict(text), "labels": labels[:position]}), position, ids[position]
                )

    def _on_dial(self, text: Text, data: dict[str, Any]) -> None:
        if data["epoch"] <= text.epoch:
            self.blame("I1", f"epoch {data['epoch']} was used after {text.epoch}")
        text.epoch = max(text.epoch, data["epoch"])

    # ---------------------------------------------------------------------------------------------- rows and frames

    def _on_rows(self, text: Text, data: dict[str, Any]) -> None:
        for position, row in enumerate(data["rows"], data["start"]):
            if position >= len(text.ids):
                self.blame("I5", f"a row for position {position} of a text of {len(text.ids)}")
            elif tuple(row) != self.target.row(text.ids[: position + 1], text.turn):
                self.blame("I5", f"the row of position {position} was made from another text or turn")

    def _on_committed(self, text: Text, data: dict[str, Any]) -> None:
        if tuple(data["ids"]) != tuple(data["log"]):
            self.blame("I2", f"sent {data['ids']} at {data['start']}, the log has {data['log']}")

    def _on_down(self, text: Text, data: dict[str, Any]) -> None:
        frame = data["frame"]
        if isinstance(frame, Failure) and frame.reason in OURS_TO_BLAME:
            self.blame(
                "I2", f"an honest device was refused: {frame.reason.name} {frame.field} {frame.detail}"
            )

    def _on_broken(self, text: Text, data: dict[str, Any]) -> None:
        self.blame("I6", data["why"])

    def _on_raised(self, text: Text, data: dict[str, Any]) -> None:
        self.blame("I7", f"exception: {data['error']}")

    def _on_hang(self, text: Text, data: dict[str, Any]) -> None:
        self.blame("I7", data["why"])


_LABEL_OF = {
    TokenKind.ACCEPTED: Label.ACCEPTED,
    TokenKind.RECOVERED: Label.RECOVERED,
    TokenKind.BONUS: Label.BONUS,
    TokenKind.RUN_AHEAD: Label.RUN_AHEAD,
}


def _as_dict(text: Text) -> dict[str, Any]:
    return {name: getattr(text, name) for name in Text.__dataclass_fields__}


def summary(violations: Sequence[Violation]) -> list[str]:
    """For people: one line each."""
    return [f"{v.at:9.4f}  {v.who:10}  {v.law}: {v.detail}" for v in violations]
