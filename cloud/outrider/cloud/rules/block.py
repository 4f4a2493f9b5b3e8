"""`block`: one chain judged as a whole (Sun et al., "Block verification accelerates speculative decoding", ICLR 2025).

With d the draft's laws and t the target's, let p(0) = 1 and p(i) = min(1, p(i-1)·t(x_i)/d(x_i)): the probability with
which at least i tokens may be kept, given them. A coin per token is thrown against h(i) = S(i) / (S(i) + 1 - p(i)),
where S(i) = sum over x of [p(i)·t(x) - d(x)]+ at the position after x_i, and h = p at the last token. The *last*
token whose coin falls below its h is kept with all before it, also those whose own coin failed; the next token is
drawn from [p·t - d]+ normalised, or from t behind the last token.

The law is the target's, and the number kept is never smaller in expectation than token by token (equal for one token):
sum of E[p(i)] against sum of E[product of min(1, t/d)].
"""

from __future__ import annotations

from collections.abc import Mapping

from outrider.cloud.rules.contract import NOTHING, Exact, check_chain
from outrider.cloud.rules.nodes import Decision, Nodes
from outrider.cloud.rules.residual import Law, ending, left_mass, left_over
from outrider.shared.coins import Purpose
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.frames import TokenKind


def keeping(mass: float, kept: float) -> float:
    """Probability of ending at a token that everything behind it has given up; ``kept`` is p there.

    The mass left for the next token over that plus the probability of giving this token up too.
    """
    return 1.0 if kept >= 1.0 else mass / (mass + 1.0 - kept)


class Block(Exact):
    """The target's law, from a chain that was drawn from the laws that came with it; keeps more than `residual`."""

    name = "block"
    needs_laws = True
    drafts = frozenset((DraftKind.SAMPLED,))

    def takes(self, draft: Draft) -> None:
        """A drawn chain with its laws."""
        check_chain(self, draft)

    def __call__(self, nodes: Nodes, given: Mapping[str, float] = NOTHING) -> Decision:
        """Throw every token's coin and keep up to the last that succeeds."""
        self.takes(nodes.draft)
        count, kept = len(nodes.draft), 1.0
        end, kept_there = 0, 1.0
        for row, token in enumerate(nodes.draft.ids):
            target = nodes.law(row)
            if row and nodes.coin(row - 1, Purpose.ACCEPT, row - 1) < self._ends(nodes, row, target, kept):
                end, kept_there = row, kept
            kept = min(1.0, kept * float(target[token]) / nodes.drafted(row))
            if kept == 0.0:
                break
        if not count or (kept > 0.0 and nodes.coin(count - 1, Purpose.ACCEPT, count - 1) < kept):
            bonus = nodes.draw(nodes.law(count), count, Purpose.BONUS)
            return ending(list(range(count)), bonus, TokenKind.BONUS)
        ids, draft = nodes.draft_entries(end)
        law = left_over(nodes.law(end), draft, ids, kept_there)
        return ending(list(range(end)), nodes.draw(law, end, Purpose.REPLACE), TokenKind.RECOVERED)

    @staticmethod
    def _ends(nodes: Nodes, row: int, target: Law, kept: float) -> float:
        """h of the token before ``row``."""
        ids, draft = nodes.draft_entries(row)
        return keeping(left_mass(target, draft, ids, kept), kept)
