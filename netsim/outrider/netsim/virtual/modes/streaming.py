"""Plain remote streaming: the target decodes, every token is sent as it comes. The baseline; it has no drafter."""

from __future__ import annotations

from outrider.netsim.virtual.opening import NEVER, begin, first_token
from outrider.netsim.virtual.server import Passes
from outrider.netsim.virtual.session import Session
from outrider.netsim.virtual.stream import stream

NAME = "stream"
DRAFTS = None


def run(session: Session) -> Passes:
    """Open with run-ahead, then take what comes. During an outage nothing comes."""
    ready = yield from begin(session)
    ended = NEVER if ready == NEVER else (yield from first_token(session, ready))
    if ended < NEVER and session.left:
        yield from stream(session, ended, session.left)
