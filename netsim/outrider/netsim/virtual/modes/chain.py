"""Edge chain: the device drafts chains, each is verified before the next goes out, whatever the round trip."""

from __future__ import annotations

from outrider.client.pacing import DraftPacing
from outrider.netsim.virtual.opening import NEVER, begin, first_token
from outrider.netsim.virtual.rounds import rounds
from outrider.netsim.virtual.server import Passes
from outrider.netsim.virtual.session import Session

NAME = "chain"
DRAFTS = DraftPacing(tree=False, may_stream=False)


def run(session: Session) -> Passes:
    """Propose, send, receive, commit."""
    ready = yield from begin(session)
    ended = NEVER if ready == NEVER else (yield from first_token(session, ready))
    if ended < NEVER:
        yield from rounds(session)
