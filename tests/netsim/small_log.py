"""A small event log whose figures can be counted by hand."""

from __future__ import annotations

from outrider.client.events import Label, LinkState
from outrider.netsim.events.schema import (
    CapacityLine,
    EndLine,
    Line,
    LinkLine,
    RoundLine,
    Run,
    TokensLine,
    TurnLine,
)

A, R, B, P = Label.ACCEPTED, Label.RECOVERED, Label.BONUS, Label.PROVISIONAL

RUN = Run(mode="chain", link="4g-bad", rtt_ms=120.0, drafter="moa", seed=7, virtual=True)
LINES: tuple[Line, ...] = (
    CapacityLine(at_s=0.0, up_mbit=2.0, down_mbit=8.0),
    TurnLine(at_s=0.0, turn=1, start=10, category="code", prompt="code-1"),
    LinkLine(at_s=0.1, state=LinkState.ONLINE),
    RoundLine(
        turn=1, round=1, sent_s=0.2, got_s=0.4, server_queue_s=0.01, server_compute_s=0.05, bytes_up=60,
        bytes_down=300, start=10, nodes=3, depth=3, parents=(0, 1, 2), path=(0, 1), kinds=(A, A, R),
    ),
    TokensLine(at_s=0.4, start=10, labels=(A, A, R), pieces=("ab", "", "é\n")),
    LinkLine(at_s=1.0, state=LinkState.LATE),
    CapacityLine(at_s=1.0, up_mbit=0.0, down_mbit=0.0),
    TokensLine(at_s=1.2, start=13, labels=(P, P, P, P), pieces=("c", "d", "e", "f")),
    LinkLine(at_s=3.0, state=LinkState.ONLINE, note="back"),
    CapacityLine(at_s=3.0, up_mbit=2.0, down_mbit=8.0),
    RoundLine(
        turn=1, round=2, sent_s=2.0, got_s=3.1, server_compute_s=0.06, bytes_up=90, bytes_down=450, start=13,
        nodes=4, depth=2, parents=(0, 1, 0, 3), path=(2, 3), kinds=(A, A, B), link=LinkState.ONLINE,
    ),
    TokensLine(at_s=3.1, start=13, labels=(A, A)),
    TokensLine(at_s=3.1, start=15, taken_back=2),
    TokensLine(at_s=3.1, start=15, labels=(B,), pieces=("x",)),
    RoundLine(turn=1, round=3, sent_s=3.2, got_s=3.3, bytes_up=20, bytes_down=10, outcome="busy"),
    EndLine(at_s=3.4, turn=1, reason="length", verified=True, stats={"tokens": 6, "bytes_up": 200, "bytes_down": 900}),
    TurnLine(at_s=4.0, turn=2, start=20, category="math", prompt="math-1"),
    RoundLine(
        turn=2, round=4, sent_s=4.1, got_s=4.3, server_compute_s=0.04, bytes_up=30, bytes_down=100, start=20,
        nodes=1, depth=1, parents=(0,), kinds=(R,),
    ),
    TokensLine(at_s=4.3, start=20, labels=(R,), pieces=("7",)),
    EndLine(at_s=4.4, turn=2, reason="stop", verified=True, stats={"tokens": 1, "bytes_up": 30, "bytes_down": 100}),
)  # fmt: skip
"""Six tokens of code over an outage of 2 s, then one of mathematics."""
