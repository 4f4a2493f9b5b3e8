"""Edge tree: as the chain, with trees of the most probable continuations."""

from __future__ import annotations

from outrider.client.pacing import DraftPacing
from outrider.netsim.virtual.modes.chain import run as run

NAME = "tree"
DRAFTS = DraftPacing(tree=True, may_stream=False)
