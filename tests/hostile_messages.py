"""Messages that carry text where a name or number is expected."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.shared.anchor import EMPTY
from outrider.shared.frames import Open, Turn, Window
from outrider.shared.wire import up_to_wire
from outrider.v1 import verifier_pb2 as pb

HOSTILE_TEXT = "what-the-user-wrote"


def hostile_messages() -> Iterator[pb.DecodeRequest]:
    """Opens with text as rule, as parameter, and as padding, each refused for one reason or another."""
    turn = Turn(1, EMPTY, (1, 2), 2, 9)
    good = up_to_wire(Open(HOSTILE_TEXT.encode()[:16], 1, EMPTY, turn, Window(EMPTY)))
    for field in ("rule", "parameter", "padding"):
        message = pb.DecodeRequest()
        message.CopyFrom(good)
        if field == "rule":
            message.open.turn.rule.name = HOSTILE_TEXT
        elif field == "parameter":
            message.open.turn.rule.parameters[HOSTILE_TEXT] = 1.0
        else:
            message.padding = HOSTILE_TEXT.encode()
            message.open.epoch = 0
        yield message
