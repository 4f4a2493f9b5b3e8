"""What must hold between the lines of a log: time goes on, turns begin before they end, the display has no gaps."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.netsim.events.schema import EndLine, Line, LinkLine, RoundLine, Run, TokensLine, TurnLine
from outrider.netsim.events.values import Unfit

OUTCOMES = ("verified", "superseded", "busy", "ended")


def when(line: Line) -> float:
    """Seconds since the run's start at which a line was written; a round's is when its verdict came."""
    if isinstance(line, Run):
        return 0.0
    return line.got_s if isinstance(line, RoundLine) else line.at_s


@dataclass(slots=True)
class _Session:
    """What one device has on display."""

    turn: int = 0
    open: bool = False
    start: int = 0
    end: int = 0


class Order:
    """Takes the lines after the first, in order. `check` raises `Unfit` naming the field that cannot be."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sessions: dict[str, _Session] = {}

    def check(self, line: Line) -> None:
        """Whether ``line`` can follow those before it."""
        at = when(line)
        if at < self._now:
            name = "got_s" if isinstance(line, RoundLine) else "at_s"
            raise Unfit(
                f"expected at least {self._now:g}, when the line before was written, got {at:g}", name
            )
        self._now = at
        match line:
            case TurnLine():
                self._turn(line)
            case RoundLine():
                self._open(line.session, line.turn)
                _check_round(line)
            case TokensLine():
                self._tokens(line)
            case EndLine():
                self._open(line.session, line.turn).open = False
            case LinkLine() | _:
                pass

    def _turn(self, line: TurnLine) -> None:
        state = self._sessions.setdefault(line.session, _Session())
        if line.turn != state.turn + 1:
            raise Unfit(f"expected {state.turn + 1}, the turn that comes next, got {line.turn}", "turn")
        state.turn, state.open, state.start, state.end = line.turn, True, line.start, line.start

    def _open(self, session: str, turn: int | None = None) -> _Session:
        state = self._sessions.get(session, _Session())
        if not state.open:
            raise Unfit('expected a line of kind "turn" before it', "session" if session else "kind")
        if turn is not None and turn != state.turn:
            raise Unfit(f"expected {state.turn}, the turn under way, got {turn}", "turn")
        return state

    def _tokens(self, line: TokensLine) -> None:
        state = self._open(line.session)
        if line.pieces is not None and len(line.pieces) != len(line.labels):
            raise Unfit(f"expected {len(line.labels)} texts, one a label, got {len(line.pieces)}", "pieces")
        if line.taken_back > state.end - state.start:
            raise Unfit(
                f"expected at most the {state.end - state.start} tokens on display, got {line.taken_back}",
                "taken_back",
            )
        state.end -= line.taken_back
        if not state.start <= line.start <= state.end or (line.taken_back and line.start != state.end):
            low = state.end if line.taken_back else state.start
            raise Unfit(f"expected {low} to {state.end}, what is on display, got {line.start}", "start")
        state.end = max(state.end, line.start + len(line.labels))


def _check_round(line: RoundLine) -> None:
    if line.sent_s > line.got_s:
        raise Unfit(f"expected at most got_s, {line.got_s:g}, got {line.sent_s:g}", "sent_s")
    if line.outcome not in OUTCOMES:
        raise Unfit(f"expected one of {', '.join(OUTCOMES)}, got {line.outcome!r}", "outcome")
    if len(line.parents) != line.nodes:
        raise Unfit(f"expected {line.nodes} parents, one a node, got {len(line.parents)}", "parents")
    depths = [0]
    for node, parent in enumerate(line.parents):
        if parent > node:
            raise Unfit(f"expected at most {node} at node {node}, got {parent}", "parents")
        depths.append(depths[parent] + 1)
    if max(depths) != line.depth:
        raise Unfit(f"expected {max(depths)}, the levels of the draft, got {line.depth}", "depth")
    for index, node in enumerate(line.path):
        if node >= line.nodes or (index and line.parents[node] != line.path[index - 1] + 1):
            raise Unfit("expected nodes of which each is the child of the one before", "path")
    if len(line.path) > len(line.kinds):
        raise Unfit(f"expected at most {len(line.kinds)} nodes, the committed tokens", "path")
    if line.kinds and line.start is None:
        raise Unfit("expected the position of the first committed token", "start")
