"""Records the answers of a session as lines of an event log (`eventlog.py`); a `Listener` of the session.

What it writes holds counts, times, labels and shapes. Ids and prompts never reach it; the text of answers is written
only where that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.client.answers import Finished, LinkNote, Relabelled, SessionEvent, Shown, TakenBack
from outrider.client.eventlog import EndLine, Line, LinkLine, RoundLine, TokensLine, TurnLine
from outrider.client.events import LinkState
from outrider.client.stats import TurnStats
from outrider.client.text import LABELS
from outrider.client.transcript import Transcript
from outrider.shared.draft import Draft
from outrider.shared.frames import UNLIMITED, DraftFrame, Open, UpFrame, Verdict


class Recorder:
    """Hands every line to ``put``. ``began_at`` is the run's start, monotonic seconds; ``text`` records answers too."""

    def __init__(self, put: Callable[[Line], None], began_at: float, *, text: bool = False) -> None:
        self._put = put
        self._began_at = began_at
        self._text = text
        self._turn = 0
        self._category = self._prompt = ""
        self._link = LinkState.CONNECTING
        self._sent: dict[tuple[int, int], tuple[float, DraftFrame]] = {}
        self._counted = (0, 0)
        self._texts: list[str] = []

    def describe(self, category: str, prompt: str = "") -> None:
        """Category and name (not the text) of the prompts of the turns that follow."""
        self._category, self._prompt = category, prompt

    def at(self, now: float) -> float:
        """Seconds since the run's start."""
        return now - self._began_at

    # ------------------------------------------------------------------------------------------------------ listening

    def began(self, start: int, now: float) -> None:
        """A turn begins. Drafts under way belong to the turn before, which has ended: their verdicts are not told."""
        self._turn += 1
        self._sent.clear()
        self._texts.clear()
        self._counted = (0, 0)
        self._put(
            TurnLine(
                at_s=self.at(now),
                turn=self._turn,
                start=start,
                category=self._category,
                prompt=self._prompt,
            )
        )

    def sent(self, conn: int, frame: UpFrame, now: float) -> None:
        """Remember when a draft left, by itself or with the opening of a stream."""
        draft = frame.draft if isinstance(frame, Open) else frame
        if isinstance(draft, DraftFrame):
            self._sent[conn, draft.round] = (now, draft)

    def judged(self, conn: int, frame: Verdict, stats: TurnStats, now: float) -> None:
        """A round is complete."""
        sent_at, asked = self._sent.pop((conn, frame.round), (0.0, None))
        if asked is None:
            return
        up, down = self._counted
        self._counted = (stats.bytes_up, stats.bytes_down)
        commit = frame.commit
        draft = asked.draft
        until, seen = asked.window.run_ahead_until, asked.window.seen.length
        self._put(
            RoundLine(
                turn=self._turn,
                round=frame.round,
                sent_s=self.at(sent_at),
                got_s=self.at(now),
                server_queue_s=frame.queue_us / 1e6,
                server_compute_s=frame.compute_us / 1e6,
                bytes_up=stats.bytes_up - up,
                bytes_down=stats.bytes_down - down,
                start=None if commit is None else commit.start,
                nodes=len(draft),
                depth=max(draft.depths, default=0),
                parents=draft.parents,
                path=()
                if commit is None
                else judged_path(draft, frame.trimmed, commit.ids[: frame.accepted]),
                kinds=() if commit is None else tuple(LABELS[kind] for kind in commit.kinds),
                outcome=frame.outcome.name.lower(),
                replayed=frame.replayed,
                run_ahead=None if until == UNLIMITED else max(until - seen, 0),
                link=self._link,
            )
        )

    def told(self, event: SessionEvent, transcript: Transcript, now: float) -> None:
        """The display, the link, or the end."""
        at = self.at(now)
        match event:
            case Shown(pieces):
                fresh = tuple(piece.text for piece in pieces)
                self._texts.extend(fresh)
                labels = tuple(piece.label for piece in pieces)
                told = fresh if self._text else None
                self._put(TokensLine(at_s=at, start=pieces[0].position, labels=labels, pieces=told))
            case Relabelled(start, count):
                first = max(start - transcript.start, 0)  # what a turn adopts was an earlier one's
                again = transcript.pieces[first : max(start - transcript.start + count, 0)]
                if again:
                    labels = tuple(piece.label for piece in again)
                    self._put(TokensLine(at_s=at, start=again[0].position, labels=labels))
            case TakenBack(pieces):
                if pieces:
                    del self._texts[len(self._texts) - len(pieces) :]
                    self._put(TokensLine(at_s=at, start=pieces[0].position, taken_back=len(pieces)))
            case LinkNote(state, note):
                self._link = state
                self._put(LinkLine(at_s=at, state=state, note=note))
            case Finished():
                self._finish(event, transcript, at)

    def _finish(self, event: Finished, transcript: Transcript, at: float) -> None:
        changed = next((i for i, p in enumerate(transcript.pieces) if p.text != self._texts[i]), None)
        if self._text and changed is not None:  # an unfinished character, or text from a stop string on
            rest = transcript.pieces[changed:]
            self._put(
                TokensLine(
                    at_s=at,
                    start=rest[0].position,
                    labels=tuple(piece.label for piece in rest),
                    pieces=tuple(piece.text for piece in rest),
                )
            )
        self._put(
            EndLine(
                at_s=at,
                turn=self._turn,
                reason=event.reason,
                verified=event.verified,
                stats=event.stats.as_dict(),
            )
        )


def judged_path(draft: Draft, trimmed: int, ids: Sequence[int]) -> tuple[int, ...]:
    """The nodes of a path of ``draft`` that say ``ids`` after ``trimmed`` tokens; empty where there is none."""
    if not ids:
        return ()
    for node, depth in enumerate(draft.depths):
        if depth == trimmed + len(ids):
            path = draft.path_to(node)[trimmed:]
            if tuple(draft.ids[i] for i in path) == tuple(ids):
                return path
    return ()
