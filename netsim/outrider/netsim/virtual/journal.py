"""The event log of a simulated run: the lines that a real one would have written (`netsim.events.schema`)."""

from __future__ import annotations

from outrider.client.events import Label, LinkState
from outrider.netsim.events.schema import EndLine, Line, LinkLine, RoundLine, TokensLine, TurnLine
from outrider.netsim.virtual.acceptance import Shape


class Journal:
    """Collects the lines of one answer."""

    def __init__(self, *, turn: int = 1, start: int = 0, session: str = "") -> None:
        self.lines: list[Line] = []
        self._turn, self._start, self._session = turn, start, session
        self._round = 0
        self._bytes = (0, 0)
        self._kinds: tuple[Label, ...] = ()
        self._offline = False

    def began(self, at: float) -> None:
        """The question was asked."""
        self.lines.append(TurnLine(at_s=at, turn=self._turn, start=self._start, session=self._session))

    def round(
        self,
        times: tuple[float, float, float, float],
        shape: Shape,
        accepted: tuple[int, ...],
        committed: tuple[int, int],
        nbytes: tuple[int, int],
        late: bool,
    ) -> None:
        """A verdict: (sent, got, queue, compute), the draft, its rows taken, (position, tokens), bytes so far."""
        self._round += 1
        start, tokens = committed
        own = Label.BONUS if len(accepted) == shape.depth else Label.RECOVERED
        self._kinds = (Label.ACCEPTED,) * len(accepted) + (own,) * (tokens - len(accepted))
        up, down = (after - before for after, before in zip(nbytes, self._bytes, strict=True))
        self._bytes = nbytes
        self.lines.append(
            RoundLine(
                turn=self._turn,
                round=self._round,
                sent_s=times[0],
                got_s=times[1],
                server_queue_s=times[2],
                server_compute_s=times[3],
                bytes_up=up,
                bytes_down=down,
                start=self._start + start,
                nodes=len(shape.parents),
                depth=shape.depth,
                parents=shape.parents,
                path=tuple(row - 1 for row in accepted),
                kinds=self._kinds,
                link=LinkState.LATE if late else LinkState.ONLINE,
                session=self._session,
            )
        )

    def committed(self, at: float, start: int, tokens: int, kept: int, taken_back: int) -> None:
        """Tokens were decided: ``kept`` of them were on display already, ``taken_back`` others leave it."""
        kinds = self._kinds if len(self._kinds) == tokens else (Label.RUN_AHEAD,) * tokens
        self._kinds = ()
        if self._offline:
            self.link(at, LinkState.ONLINE)
        place = self._start + start
        if kept:
            self._tokens(at, place, kinds[:kept], 0)
        if tokens > kept or taken_back:
            self._tokens(at, place + kept, kinds[kept:], taken_back)

    def alone(self, at: float, start: int, tokens: int) -> None:
        """Provisional tokens came on display."""
        if not self._offline:
            self.link(at, LinkState.LATE)
        self._tokens(at, self._start + start, (Label.PROVISIONAL,) * tokens, 0)

    def link(self, at: float, state: LinkState, note: str = "") -> None:
        """The link's state as the device knows it."""
        self._offline = state is not LinkState.ONLINE
        self.lines.append(LinkLine(at_s=at, state=state, note=note, session=self._session))

    def ended(self, at: float, verified: bool, stats: dict[str, object]) -> None:
        """The answer is complete, or as complete as it gets."""
        reason = "length" if verified else "offline"
        self.lines.append(
            EndLine(
                at_s=at, turn=self._turn, reason=reason, verified=verified, stats=stats, session=self._session
            )
        )

    def _tokens(self, at: float, start: int, labels: tuple[Label, ...], taken_back: int) -> None:
        self.lines.append(
            TokensLine(at_s=at, start=start, labels=labels, taken_back=taken_back, session=self._session)
        )
