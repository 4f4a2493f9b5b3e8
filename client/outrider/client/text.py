"""The text of a session: what is committed, what is drafted beyond it, what is on display, and what the drafter holds.

Labels only strengthen: provisional becomes verified, or is revised; what was verified never changes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from outrider.client.cost import StepCost, StepTimes
from outrider.client.drafter import Budget
from outrider.client.events import (
    Accept,
    Begin,
    Drafted,
    Emit,
    Finish,
    Label,
    LinkState,
    MachineAction,
    Persist,
    Prime,
    Propose,
    Relabel,
    Report,
    Revise,
    Rollback,
    StopAt,
)
from outrider.client.journal import (
    Record,
    Restored,
    commit_record,
    end_record,
    provisional_record,
    session_record,
    turn_record,
)
from outrider.client.machine_settings import MachineSettings
from outrider.client.rules import Manner, manner_of
from outrider.client.tail import Tail
from outrider.shared.anchor import TokenSequence
from outrider.shared.errors import OutriderError
from outrider.shared.frames import TokenKind, Turn
from outrider.shared.rule_names import RUNS_AHEAD
from outrider.shared.sampling import LogProbs

LABELS = {
    TokenKind.ACCEPTED: Label.ACCEPTED,
    TokenKind.RECOVERED: Label.RECOVERED,
    TokenKind.BONUS: Label.BONUS,
    TokenKind.RUN_AHEAD: Label.RUN_AHEAD,
    TokenKind.JUDGED: Label.JUDGED,
}
"""What a token of each kind is to the caller."""


class TextMachine:
    """The part of the session machine that owns text and drafter."""

    def __init__(
        self, settings: MachineSettings, rng: random.Random, restored: Restored | None = None
    ) -> None:
        state = restored or Restored()
        self.settings = settings
        self.rng = rng
        self.now = 0.0
        self.sequence: TokenSequence = state.sequence
        self.tail: Tail = state.tail
        self.turn: Turn | None = state.turn
        self.stops = state.stops
        self.finished = state.turn is None or state.end is not None
        self.stop_at: StopAt | None = None
        self.link = LinkState.CONNECTING
        self.displayed = len(self.sequence) + self.tail.shown
        """Length of what is on display, given text included."""
        self.cuts = 0
        """Counts what invalidates drafts that are under way."""
        self.drafter_ready = False
        self.step_times = StepTimes()
        self._timed = True
        """Whether the answer owed is of today's drafter."""
        self._proposed: int | None = None
        self._proposal_stale = False
        self._dry_at = -1
        self._seq = 0
        self._introduced = restored is not None
        self.held = (0, 0)
        """State rows on the device: positions from … until-1."""
        self._out: list[MachineAction] = []

    # --------------------------------------------------------------------------------------------------- readings

    @property
    def end(self) -> int:
        """Length of committed text and tail together: the drafter's length."""
        return self.tail.end

    @property
    def draft_step(self) -> StepCost | None:
        """What a run of the drafter costs on this device; None before the first draft."""
        return self.step_times.cost()

    @property
    def turn_number(self) -> int:
        """The current turn; 0 before the first."""
        return self.turn.turn if self.turn else 0

    @property
    def turn_start(self) -> int:
        """Length of the sequence before anything of the turn was decided by the target."""
        return self.turn.keep.length + len(self.turn.append_ids) if self.turn else 0

    @property
    def max_length(self) -> int:
        """Length at which the turn ends."""
        return self.turn.max_length if self.turn else 0

    def ends_at(self, token_id: int, position: int) -> bool:
        """Whether a token ends the turn, as far as the device knows the stop ids."""
        return (
            self.turn is not None and position >= self.turn.generated_from and token_id in self.turn.stop_ids
        )

    def act(self, action: MachineAction) -> None:
        """Collect an action."""
        self._out.append(action)

    def persist(self, record: Record, barrier: bool = False) -> int:
        """Append to the journal; the number that Persisted will carry (0 without a journal)."""
        if not self.settings.journal:
            return 0
        if not self._introduced:
            self._introduced = True
            self.persist(session_record(self.settings.session_id, self.settings.fingerprints))
        self._seq += 1
        self.act(Persist(self._seq, record, barrier))
        return self._seq

    def report(self, state: LinkState, note: str = "") -> None:
        """Tell the caller about the link, when there is something new to tell."""
        if state is not self.link or note:
            self.link = state
            self.act(Report(state, note))

    # ------------------------------------------------------------------------------------------------------- turns

    def begin(self, event: Begin) -> None:
        """Rewrite the sequence's end and start generating.

        ``keep`` may reach into provisional text on display: that part is adopted, as given and unverified.
        """
        if not self.finished:
            self.finish("cancelled", verified=not self.tail.shown)
        keep = min(event.keep, len(self.sequence) + self.tail.shown)
        adopted = tuple(self.tail.ids[: max(keep - len(self.sequence), 0)])
        start = keep + len(event.append_ids)
        turn = Turn(
            turn=self.turn_number + 1,
            keep=self.sequence.anchor_at(min(keep, len(self.sequence))),
            append_ids=adopted + event.append_ids,
            generated_from=start,
            max_length=start + event.max_new,
            stop_ids=event.stop_ids,
            sampling=event.sampling,
            rule=event.rule,
            log_probs=event.log_probs,
        )
        self.stops = event.stops
        self._start_turn(turn, len(adopted))

    def adopt(self) -> None:
        """Keep the provisional text on display as it is: a new turn that continues after it."""
        if self.turn is None or self.finished or not self.tail.shown:
            return
        old, shown = self.turn, self.tail.shown
        turn = Turn(
            turn=old.turn + 1,
            keep=self.sequence.anchor,
            append_ids=tuple(self.tail.ids[:shown]),
            generated_from=old.generated_from,
            max_length=old.max_length,
            stop_ids=old.stop_ids,
            sampling=old.sampling,
            rule=old.rule,
            log_probs=old.log_probs,
        )
        self._start_turn(turn, shown)
        self.check_end()

    def _start_turn(self, turn: Turn, adopted: int) -> None:
        keep = turn.keep.length
        self._revise(max(keep + adopted, self.tail.start), self.tail.cut(keep + adopted))
        if adopted:
            self.act(Relabel(keep, (Label.KEPT,) * adopted))
        self.sequence.cut(keep)
        self.sequence.append(turn.append_ids)
        self.turn, self.finished, self.stop_at = turn, False, None
        self.tail = Tail(len(self.sequence))
        self.displayed = len(self.sequence)
        self.cuts += 1
        self.held = (min(self.held[0], keep), min(self.held[1], keep))
        self.persist(turn_record(turn, self.stops))
        self.prime()

    @property
    def runs_ahead(self) -> bool:
        """Whether the turn's rule lets the target go on alone."""
        return self.turn is None or self.turn.rule.name in RUNS_AHEAD

    @property
    def manner(self) -> Manner | None:
        """How drafts for the turn's rule are drawn; None where they are chosen."""
        return None if self.turn is None else manner_of(self.turn.rule)

    def finish(self, reason: str, *, verified: bool, error: OutriderError | None = None) -> None:
        """End the turn; tokens drafted beyond it are gone."""
        if self.finished:
            return
        self.finished = True
        if verified:
            self._cut_tail(len(self.sequence))
        self.persist(end_record(self.turn_number, reason, verified, len(self.sequence) + self.tail.shown))
        self.act(Finish(reason, verified, error))

    def check_end(self) -> None:
        """End the turn if its committed text says so."""
        length = len(self.sequence)
        if self.finished or self.turn is None:
            return
        if self.stop_at is not None and length >= self.stop_at.length:
            self._cut_at(self.stop_at)
        elif length > self.turn.generated_from and self.ends_at(self.sequence.ids[-1], length - 1):
            self.finish("stop", verified=length > self.turn_start)
        elif length >= self.turn.max_length:
            self.finish("length", verified=length > self.turn_start)

    def on_stop(self, event: StopAt) -> None:
        """The caller found the end of the text.

        On committed text the turn is over. On provisional text a stop string only pauses drafting until the target has
        decided; any other reason ends the turn with what is on display.
        """
        if self.finished and not event.amends:
            return
        self.finished = False
        if event.length <= len(self.sequence):
            self._cut_at(event)
        elif event.reason == "stop":
            self._cut_tail(event.length)
            self.stop_at = event
        else:
            self._cut_tail(event.length)
            self.tail_on_display()
            self.finish(event.reason, verified=False)

    def _cut_at(self, event: StopAt) -> None:
        length = max(event.length, self.turn_start)
        surplus = len(self.sequence) - length
        self._cut_tail(len(self.sequence))
        if surplus > 0:
            self._revise(length, self.displayed - length)
            self.sequence.cut(length)
            self.tail = Tail(length)
            self._drafter_back(length)
        self.finish(event.reason, verified=True)

    # ----------------------------------------------------------------------------------------------------- commits

    def commit(self, ids: Sequence[int], kinds: Sequence[TokenKind], told: tuple[LogProbs, ...] = ()) -> None:
        """The target has decided the tokens that follow the committed text."""
        start = len(self.sequence)
        labels = tuple(LABELS[kind] for kind in kinds)
        self.sequence.append(ids)
        result = self.tail.commit(start, ids)
        if result.kept < len(ids):
            if result.cut:
                self._drafter_back(start + result.kept)
            self._drafter_on(ids[result.kept :])
        self.persist(commit_record(self.turn_number, start, ids, kinds, told))
        if result.shown:
            self.act(Relabel(start, labels[: result.shown], told[: result.shown]))
        self._revise(start + result.kept, result.revised)
        if result.cut:
            self.stop_at = None  # the stop string was never said
        # Nothing beyond a stop string found earlier is shown, not even for a moment.
        visible = len(ids) if self.stop_at is None else max(self.stop_at.length - start, 0)
        fresh = slice(result.shown, visible)
        self._emit(start + result.shown, ids[fresh], labels[fresh], told[fresh])
        self.check_end()

    def tail_on_display(self) -> None:
        """Show what is drafted as provisional."""
        start, ids = self.tail.show()
        if ids:
            self._emit(start, ids, (Label.PROVISIONAL,) * len(ids))
            self.persist(provisional_record(self.turn_number, start, ids))

    def _cut_tail(self, length: int) -> None:
        if self.tail.end > length:
            self._revise(max(length, self.tail.start), self.tail.cut(length))
            self._drafter_back(length)

    def _emit(
        self, start: int, ids: Sequence[int], labels: Sequence[Label], told: tuple[LogProbs, ...] = ()
    ) -> None:
        if ids:
            self.act(Emit(start, tuple(ids), tuple(labels), told))
            self.displayed = start + len(ids)

    def _revise(self, start: int, removed: int) -> None:
        if removed > 0:
            self.act(Revise(start, removed))
            self.displayed = start

    # ----------------------------------------------------------------------------------------------------- drafter

    def prime(self) -> None:
        """Give the drafter the whole sequence anew."""
        if self._proposed is not None:
            self._proposal_stale = True
        self._dry_at = -1
        if self.drafter_ready:
            self.act(Prime((*self.sequence.ids, *self.tail.ids)))

    def forget_steps(self) -> None:
        """Measure anew what a run of the drafter costs: another one has come."""
        self.step_times = StepTimes()
        self._timed = self._proposed is None

    def can_draft(self) -> bool:
        """Whether there is anything to draft after the tail."""
        last = self.end - 1
        return (
            self.drafter_ready
            and not self.finished
            and self._proposed is None
            and self._dry_at != self.end
            and self.stop_at is None
            and self.end < self.max_length
            and len(self.tail.ids) < self.settings.max_tail_tokens
            and not (self.tail.ids and self.ends_at(self.tail.ids[-1], last))
        )

    @property
    def proposing(self) -> bool:
        """Whether the drafter owes an answer."""
        return self._proposed is not None

    def propose(self, budget: Budget) -> None:
        """Ask the drafter for what follows the tail."""
        self._proposed, self._proposal_stale, self._timed = self.end, False, True
        self.act(Propose(self.end, budget))

    def take_proposal(self, event: Drafted) -> tuple[int, ...] | None:
        """Append what a proposal foresees to the tail; the ids appended, None if it was made for what is gone.

        Tokens committed while the drafter thought are skipped when it foresaw them.
        """
        base, self._proposed = self._proposed, None
        if self._timed:
            self._take_time(event)
        if self.finished or self._proposal_stale or event.base != base:
            return None
        path = event.proposal.best_ids
        since = (*self.sequence.ids[base:], *self.tail.ids[max(base - self.tail.start, 0) :])
        if path[: len(since)] != since:
            return None
        ids = self._until_end(path[len(since) :])
        if not path:
            self._dry_at = self.end
        self.tail.extend(ids)
        self._drafter_on(ids)
        return ids

    def _take_time(self, event: Drafted) -> None:
        draft = event.proposal.draft
        if draft.ids and event.passes:
            self.step_times.add(event.passes, event.fed, event.elapsed_s)
        elif draft.ids:  # uncounted: a pass for every level, through which the base and every inner node went
            self.step_times.add(max(draft.depths), len(set(draft.parents)), event.elapsed_s)

    def _until_end(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        ids = ids[: max(self.max_length - self.end, 0)]
        stop = next((i for i, token_id in enumerate(ids) if self.ends_at(token_id, self.end + i)), None)
        return ids if stop is None else ids[: stop + 1]

    def _drafter_on(self, ids: Sequence[int]) -> None:
        if self.drafter_ready and ids:
            self.act(Accept(tuple(ids)))

    def _drafter_back(self, length: int) -> None:
        self._dry_at = -1
        self.cuts += 1
        if self._proposed is not None and length < self._proposed:
            self._proposal_stale = True
        if self.drafter_ready:
            self.act(Rollback(length))
