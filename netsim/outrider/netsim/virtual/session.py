"""A device's answer in virtual time: what it knows, what is under way, what was shown. The modes move it on.

Sizes of drafts, deadlines and back-off are decided by the device's own code (`client.pacing`, `client.timers`), from
what this session has measured so far.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from outrider.client.pacing import DraftPacing
from outrider.client.timers import Backoff, Deadlines
from outrider.netsim.virtual.acceptance import luck
from outrider.netsim.virtual.display import Display
from outrider.netsim.virtual.journal import Journal
from outrider.netsim.virtual.planner import Device, Sized, planner
from outrider.netsim.virtual.server import VerifierCost
from outrider.netsim.virtual.wire import VirtualLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is asked for."""

    prompt: int = 64
    """Tokens of the prompt."""
    tokens: int = 128
    """Tokens of the answer."""
    seed: int = 0
    """Of the text's luck and of the device's back-off; the link has its own."""


@dataclass(slots=True)
class Counts:
    """What an answer cost."""

    calls: int = 0
    """Requests to the verifier: drafts, single steps, openings, windows; what a stream then brings is none."""
    rounds: int = 0
    """Drafts judged."""
    round_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    superseded: int = 0
    forward_s: float = 0.0
    """Passes that this answer needed, as if each were made for it alone."""
    bytes_up: int = 0
    bytes_down: int = 0
    reconnects: int = 0
    rounds_s: list[float] = field(default_factory=list)
    """Per round (of unary calls: per call) from sending to verdict."""


class Session:
    """One answer on one device. Times in seconds; positions count from the answer's first token."""

    def __init__(
        self,
        device: Device,
        answer: Answer,
        link: VirtualLink,
        cost: VerifierCost,
        pacing: DraftPacing | None,
        journal: Journal | None = None,
        asked_s: float = 0.0,
    ) -> None:
        self.device, self.answer, self.link, self.cost = device, answer, link, cost
        self.planner = None if pacing is None else planner(device, cost, pacing)
        self.row_bytes = 0 if pacing is None else device.row_bytes
        self.fortune = luck(answer.seed, answer.tokens)
        self.first, self.cumulated = device.acceptance.first, device.acceptance.cumulated
        self.deadlines = Deadlines()
        self._backoff: Backoff | None = None
        self.display, self.counts = Display(), Counts()
        self.journal = journal
        self.solo = False
        """It has its verifier for itself."""
        self.asked_s = asked_s
        """When the question is asked: the link's time goes on from answer to answer."""
        self.now = asked_s
        self.committed = 0
        """Tokens of the answer that the device holds as decided."""
        self.left = answer.tokens
        """Tokens still to be decided."""
        self.tail = self.shown = self.offset = 0
        """Drafted tokens beyond them, how many of these are on display, and the depth where the tail begins."""
        self.drafter_free = asked_s
        self.progress_at = asked_s
        self.excess_s = 0.0
        self.judged = self.right = 0
        """First guesses that came to be judged, and those that were right."""
        self.cut_off = False
        """The link is gone for good: what is left was written alone, or not at all."""

    @property
    def backoff(self) -> Backoff:
        """The waits between attempts to find the link again."""
        if self._backoff is None:
            self._backoff = Backoff(random.Random(self.answer.seed))
        return self._backoff

    @property
    def drafts(self) -> bool:
        """Whether there is a drafter."""
        return self.planner is not None

    def sized(self) -> Sized:
        """What the next round may be. Raises `RuntimeError` where there is no drafter."""
        if self.planner is None:
            raise RuntimeError("a mode that drafts needs a pacing")
        known, length = self.deadlines, self.answer.prompt + self.committed
        late_s = known.queue_s + self.excess_s
        return self.planner.sized(self.judged, self.right, known.srtt_s, late_s, length, self.left)

    def commit(self, at: float, tokens: int) -> None:
        """The target has decided the next ``tokens``, and the device has read so at ``at``."""
        tail, shown, display = self.tail, self.shown, self.display
        right = self.foreseen(tail if tail < tokens else tokens) if tail else 0
        kept = right if right < shown else shown
        taken_back = 0
        if right < tokens and right < tail:
            taken_back = shown - kept
            self.tail = self.shown = self.offset = 0
        elif tail:
            self.tail = tail - right
            self.shown = shown - kept
            self.offset = self.offset + right if self.tail else 0
        self.committed += tokens
        self.left -= tokens
        self.now = self.progress_at = at
        if shown:
            display.kept += kept
            display.revised += taken_back
        if tokens > kept:
            display.show(at)
        if self.journal is not None:
            self.journal.committed(at, self.committed - tokens, tokens, kept, taken_back)
        token = self.link.next_token
        if token is not None and self.committed + self.shown >= token:
            self.link.on_token(self.committed + self.shown, at)

    def foreseen(self, most: int) -> int:
        """Leading tokens of the tail, at most so many, that the target says too."""
        fortune, first, at, depth = self.fortune, self.first, self.committed, self.offset
        count = 0
        while count < most and fortune[at + count] < first[depth + count]:
            count += 1
        return count
