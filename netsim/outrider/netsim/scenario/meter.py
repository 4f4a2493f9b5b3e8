"""What answers over a link cost and felt like: counted while they come, a listener of the sessions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.client.answers import Finished, Listener, SessionEvent, Shown
from outrider.client.cost import pass_s
from outrider.client.events import Label
from outrider.client.stats import TurnStats
from outrider.client.transcript import Transcript
from outrider.netsim.scenario.model import Question
from outrider.shared.frames import CostCurve, DraftFrame, Open, UpFrame, Verdict

ENDS = ("stop", "length", "context")
"""Reasons of an answer that ended by itself."""


@dataclass(slots=True)
class Measured:
    """One answer. Times are monotonic seconds."""

    question: Question
    began_at: float = 0.0
    moments: list[float] = field(default_factory=list)
    """When at least one new token came on display."""
    openings: int = 0
    """Streams opened; one is needed."""
    calls: int = 0
    """Requests: openings, and drafts or single steps beside them. A stream of tokens is one."""
    compute_s: float = 0.0
    """What the verifier spent on verdicts, by its own clock."""
    cost: CostCurve | None = None
    """What its passes cost, as it says: for tokens that it decoded by itself, which tell no time."""
    finished: Finished | None = None
    ids: tuple[int, ...] = ()
    verified: int = 0
    """How many leading ids the target has decided."""
    prompt: tuple[int, ...] = ()
    identical: bool | None = None
    """Whether the text is the target's own; None: not compared."""

    @property
    def stats(self) -> TurnStats:
        """The session's own figures of the answer."""
        return self.finished.stats if self.finished is not None else TurnStats(self.began_at)

    @property
    def complete(self) -> bool:
        """Whether the target has decided all of it, its end included."""
        return self.finished is not None and self.finished.verified and self.finished.reason in ENDS

    @property
    def first_s(self) -> float | None:
        """From the question to the first token on display."""
        return self.moments[0] - self.began_at if self.moments else None

    @property
    def seconds(self) -> float:
        """From the question to the end of the answer.

        One that did not end by itself counts to its last token: how long the device then waited is a setting.
        """
        if not self.complete and self.moments:
            return self.moments[-1] - self.began_at
        return self.stats.seconds

    @property
    def gaps_s(self) -> list[float]:
        """Between successive moments."""
        return [later - earlier for earlier, later in zip(self.moments, self.moments[1:], strict=False)]

    @property
    def forward_s(self) -> float:
        """Seconds of the target for this answer: verdicts as it timed them, and by its own word on what passes cost
        the prompt, read once, and the tokens that it decoded by itself.
        """
        if self.cost is None:
            return self.compute_s
        alone = self.stats.labels.get(Label.RUN_AHEAD, 0)
        prefill_s = max(len(self.prompt) - 1, 0) * self.cost.prefill_us_per_token / 1e6
        return self.compute_s + prefill_s + (alone * pass_s(self.cost, 1) if alone else 0.0)


class Meter:
    """A listener that counts every answer; `on_token` is told how many tokens the ride has shown, as they come."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self.answers: list[Measured] = []
        self.cost: Callable[[], CostCurve | None] = lambda: None
        """Asked for the verifier's word on what its passes cost, until it is known."""
        self._asked = Measured(Question("", ""))
        self._on_token = on_token
        self._before = 0
        """Tokens shown by the answers before this one."""
        self._most = 0
        """Of this answer: what is taken back and shown again counts once."""

    def ask(self, question: Question, prompt: tuple[int, ...]) -> None:
        """The next answer is to this question, which is `prompt` in tokens."""
        self._asked = Measured(question, prompt=prompt)

    def began(self, start: int, now: float) -> None:
        """A question is asked."""
        del start
        self._before += self._most
        self._most = 0
        self._asked.began_at = now
        self.answers.append(self._asked)

    def sent(self, conn: int, frame: UpFrame, now: float) -> None:
        """Count requests."""
        del conn, now
        answer = self.answers[-1]
        answer.openings += isinstance(frame, Open)
        answer.calls += isinstance(frame, Open | DraftFrame)

    def judged(self, conn: int, frame: Verdict, stats: TurnStats, now: float) -> None:
        """Count the verifier's time."""
        del conn, stats, now
        if not frame.replayed:
            self.answers[-1].compute_s += frame.compute_us / 1e6

    def told(self, event: SessionEvent, transcript: Transcript, now: float) -> None:
        """Note moments, report tokens, keep the end."""
        answer = self.answers[-1]
        if answer.cost is None:
            answer.cost = self.cost()
        if isinstance(event, Shown):
            answer.moments.append(now)
            if len(transcript.pieces) > self._most:
                self._most = len(transcript.pieces)
                self._on_token(self._before + self._most)
        elif isinstance(event, Finished):
            answer.finished = event
            answer.ids, answer.verified = transcript.ids, transcript.verified


class Several:
    """One listener made of several, told in their order."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def began(self, start: int, now: float) -> None:
        """Tell all."""
        for each in self._listeners:
            each.began(start, now)

    def sent(self, conn: int, frame: UpFrame, now: float) -> None:
        """Tell all."""
        for each in self._listeners:
            each.sent(conn, frame, now)

    def judged(self, conn: int, frame: Verdict, stats: TurnStats, now: float) -> None:
        """Tell all."""
        for each in self._listeners:
            each.judged(conn, frame, stats, now)

    def told(self, event: SessionEvent, transcript: Transcript, now: float) -> None:
        """Tell all."""
        for each in self._listeners:
            each.told(event, transcript, now)


def quantile(values: Sequence[float], share: float) -> float | None:
    """A quantile by nearest rank; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
