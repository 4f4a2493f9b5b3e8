"""Counts of a log, turn by turn, and what they come to together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from outrider.client.events import Label, LinkState
from outrider.client.transcript import UNVERIFIED
from outrider.netsim.events.reader import EventLog
from outrider.netsim.events.schema import EndLine, LinkLine, RoundLine, Run, TokensLine, TurnLine
from outrider.netsim.virtual.outcome import quantile

DOWN = (LinkState.LATE, LinkState.OFFLINE)
"""States in which the device drafts alone."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """One answer of one device. Seconds since its question where not said otherwise."""

    session: str
    turn: int
    category: str
    prompt: str
    began_s: float
    """Since the run's start."""
    seconds: float = 0.0
    """From the question to the end of the answer; to the last line of the log where that is missing."""
    ended: bool = False
    verified: bool = False
    first_token_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    """Between successive moments at which new text appeared; tokens that came together are one moment."""
    labels: list[Label] = field(default_factory=list)
    """Of the tokens on display at the end."""
    provisional: int = 0
    """Tokens shown before they were verified."""
    taken_back: int = 0
    offline_s: float = 0.0
    calls: int = 0
    """Drafts (empty ones too) that got an answer of any kind."""
    rounds: int = 0
    """Of these, those that the target judged."""
    round_tokens: int = 0
    nodes: int = 0
    accepted: int = 0
    compute_s: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    rtt_s: list[float] = field(default_factory=list)
    """Per judged round: its time without the verifier's own."""

    @property
    def tokens(self) -> int:
        """Tokens of the answer as it stands at the end."""
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Tally:
    """Turns that belong together: of a log, a mode, a category."""

    turns: tuple[Turn, ...]

    def total(self, name: str) -> float:
        """Sum of a count over the turns."""
        return sum(getattr(turn, name) for turn in self.turns)

    def ratio(self, above: str, below: str) -> float | None:
        """Quotient of two sums; None where the second is 0."""
        under = self.total(below)
        return self.total(above) / under if under else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of the answers per second from question to end, prefill included."""
        return self.ratio("tokens", "seconds")

    @property
    def tau(self) -> float | None:
        """Acceptance length: tokens committed per judged draft, the recovered or bonus token included."""
        return self.ratio("round_tokens", "rounds")

    @property
    def gaps_s(self) -> list[float]:
        """Of all turns."""
        return [gap for turn in self.turns for gap in turn.gaps_s]

    def gap(self, share: float) -> float | None:
        """Quantile of the gaps by nearest rank, seconds."""
        return quantile(self.gaps_s, share)

    @property
    def first_token_s(self) -> float | None:
        """Median time to the first token."""
        firsts = [turn.first_token_s for turn in self.turns if turn.first_token_s is not None]
        return median(firsts) if firsts else None

    @property
    def rtt_s(self) -> float | None:
        """Median round trip of judged rounds without the verifier's own time."""
        trips = [trip for turn in self.turns for trip in turn.rtt_s]
        return median(trips) if trips else None

    def labels(self) -> Counter[Label]:
        """Tokens by label at the end."""
        return Counter(label for turn in self.turns for label in turn.labels)


@dataclass(frozen=True, slots=True)
class Counted:
    """A log with its counts."""

    name: str
    log: EventLog
    tally: Tally

    @property
    def run(self) -> Run:
        """How it was made."""
        return self.log.run

    @property
    def rtt_ms(self) -> float | None:
        """The link's round trip: as the log says, else as its rounds show."""
        if self.run.rtt_ms is not None:
            return self.run.rtt_ms
        return None if self.tally.rtt_s is None else self.tally.rtt_s * 1e3


class _Counting:
    """The turn under way of one device."""

    def __init__(self, line: TurnLine, link: LinkState) -> None:
        self.turn = Turn(
            session=line.session,
            turn=line.turn,
            category=line.category,
            prompt=line.prompt,
            began_s=line.at_s,
        )
        self.start = line.start
        self.shown_at: float | None = None
        self.down_since = line.at_s if link in DOWN else None

    def tokens(self, line: TokensLine) -> None:
        turn, first = self.turn, line.start - self.start
        if line.taken_back:
            turn.taken_back += line.taken_back
            del turn.labels[first:]
        fresh = line.labels[len(turn.labels) - first :]
        turn.labels[first : first + len(line.labels)] = line.labels
        if not fresh:
            return
        turn.provisional += fresh.count(Label.PROVISIONAL)
        if self.shown_at is None:
            turn.first_token_s = line.at_s - turn.began_s
        else:
            turn.gaps_s.append(line.at_s - self.shown_at)
        self.shown_at = line.at_s

    def round(self, line: RoundLine) -> None:
        turn = self.turn
        turn.calls += 1
        turn.bytes_up += line.bytes_up
        turn.bytes_down += line.bytes_down
        if line.outcome != "verified" or not line.kinds or line.replayed:
            return
        turn.rounds += 1
        turn.round_tokens += len(line.kinds)
        turn.nodes += line.nodes
        turn.accepted += len(line.path)
        turn.compute_s += line.server_compute_s
        spent = line.server_queue_s + line.server_compute_s
        turn.rtt_s.append(max(line.got_s - line.sent_s - spent, 0.0))

    def link(self, state: LinkState, at: float) -> None:
        if state in DOWN and self.down_since is None:
            self.down_since = at
        elif state not in DOWN and self.down_since is not None:
            self.turn.offline_s += at - self.down_since
            self.down_since = None

    def end(self, at: float, line: EndLine | None = None) -> None:
        self.link(LinkState.ONLINE, at)
        self.turn.seconds = at - self.turn.began_s
        if line is None:
            return
        self.turn.ended, self.turn.verified = True, line.verified
        for name in ("bytes_up", "bytes_down"):  # rounds leave out what came after the last of them
            told = line.stats.get(name)
            if isinstance(told, int) and not isinstance(told, bool):
                setattr(self.turn, name, max(told, getattr(self.turn, name)))


def count(log: EventLog) -> Tally:
    """The turns of a log. One that was not finished counts as far as it got."""
    open_: dict[str, _Counting] = {}
    links: dict[str, LinkState] = {}
    turns: list[Turn] = []
    at = 0.0
    for line in log.lines:
        at = line.got_s if isinstance(line, RoundLine) else at if isinstance(line, Run) else line.at_s
        match line:
            case TurnLine():
                if line.session in open_:
                    open_.pop(line.session).end(at)
                open_[line.session] = _Counting(line, links.get(line.session, LinkState.CONNECTING))
                turns.append(open_[line.session].turn)
            case TokensLine():
                open_[line.session].tokens(line)
            case RoundLine():
                open_[line.session].round(line)
            case LinkLine():
                links[line.session] = line.state
                if line.session in open_:
                    open_[line.session].link(line.state, at)
            case EndLine():
                open_.pop(line.session).end(at, line)
            case _:
                pass
    for rest in open_.values():
        rest.end(at)
    return Tally(tuple(turns))


def grouped(logs: Iterable[Counted]) -> dict[str, Tally]:
    """The turns of all logs by mode; where a mode was run with several drafters, by mode and drafter."""
    logs = tuple(logs)
    drafters: dict[str, set[str]] = {}
    for each in logs:
        drafters.setdefault(each.run.mode, set()).add(each.run.drafter)
    groups: dict[str, list[Turn]] = {}
    for each in logs:
        groups.setdefault(_group(each.run, len(drafters[each.run.mode]) > 1), []).extend(each.tally.turns)
    return {name: Tally(tuple(groups[name])) for name in sorted(groups)}


def _group(run: Run, with_drafter: bool) -> str:
    name = run.mode or "unnamed"
    return f"{name}, {run.drafter}" if with_drafter and run.drafter else name


def by_category(turns: Sequence[Turn]) -> dict[str, Tally]:
    """The turns by category of their prompt, sorted."""
    groups: dict[str, list[Turn]] = {}
    for turn in turns:
        groups.setdefault(turn.category or "none", []).append(turn)
    return {name: Tally(tuple(groups[name])) for name in sorted(groups)}


def decided(labels: Sequence[Label]) -> int:
    """Leading tokens that the target has decided."""
    return next((i for i, label in enumerate(labels) if label in UNVERIFIED), len(labels))
