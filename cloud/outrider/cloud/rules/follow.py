"""Follow the target's own tokens down the draft: what every lossless rule with ids only comes to."""

from __future__ import annotations

from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.shared.frames import TokenKind


def follow(nodes: Nodes) -> Decision:
    """At each row the target chooses; a child with that id is accepted, and without one the choice ends the round.

    A near tie at an inexact row (a tree path off the line of columns, see `outrider.cloud.engine`) is not trusted: the
    round ends one token earlier and the next pass decides there with exact bits. So the text is the target's own for
    trees too, as long as rounding stays below the near-tie bound. Where log-probabilities are told, whose last bits
    would show, no inexact row is trusted at all.
    """
    path: list[int] = []
    near_ties = 0
    row = 0
    while True:
        near = nodes.near_tie(row)
        if not nodes.is_exact(row) and (near or nodes.wants_log_probs):
            last = path.pop()
            kinds = (TokenKind.ACCEPTED,) * (len(path) + 1)
            return Decision(tuple(path), nodes.draft.ids[last], kinds, near_ties)
        near_ties += near
        token = nodes.choice(row).token
        child = nodes.child(row, token)
        if child is None:
            break
        path.append(child)
        row = child + 1
    end = TokenKind.RECOVERED if nodes.draft.children(row) else TokenKind.BONUS
    return Decision(tuple(path), token, (*((TokenKind.ACCEPTED,) * len(path)), end), near_ties)
