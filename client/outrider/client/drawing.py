"""Turns whose rule compares laws: every draft is drawn anew below the committed text, and sent whole with its laws.

What such a rule does is exact only for tokens that came from the laws they are sent with and whose verdict nobody has
seen any of. So nothing that is left of a draft is ever sent again, no draft is made ahead of a verdict, one is under
way at a time, and the target never goes on alone.

Text that was drafted while nothing came from the verifier is shown like any other provisional text, and is *not* part
of a draft: it was not sent with laws, and it was drafted with coins of another kind. Once a verdict comes, what it has
in common with the target's text stays on display and the rest is taken back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.client.conn import Conn
from outrider.client.drafter import Budget, Drawing
from outrider.client.events import Drafted
from outrider.client.opening import OpenMachine
from outrider.client.plan import Plan
from outrider.client.rules import Manner
from outrider.shared.coins import turn_key
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import ConfigError
from outrider.shared.frames import DraftFrame, Feature, Opened, TokenKind, Turn
from outrider.shared.sampling import LogProbs

NOTHING = Draft.chain(())


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A draft that no verifier has seen, and the text it continues."""

    draft: Draft
    length: int
    cuts: int


class DrawMachine(OpenMachine):
    """The part of the session machine that drafts for rules that compare laws."""

    _drawn: _Drawn | None = None
    _draws = 0
    _asked_to_draw = False

    # -------------------------------------------------------------------------------------------------------- rounds

    def draw_or_send(self, conn: Conn, plan: Plan, manner: Manner) -> None:
        """Send the draft that was drawn for the committed text, or ask for one."""
        if conn.rounds or self.now < conn.busy_until:
            return
        if conn.known < len(self.sequence):  # it may know less than another stream has brought: tell it all
            if self.candidate is None:
                self.dial(fresh=False)
            return
        draft = self._take_drawn()
        if draft is None and plan.max_depth and self.drafter_ready:
            self.drop_tail()
            if self.proposing:
                return
            if self.can_draft():
                self._ask_to_draw(conn, plan, manner)
                return
            self.rounds_dry += 1
        self._send(conn, plan, draft or NOTHING)

    def was_asked_to_draw(self) -> bool:
        """Whether the drafter's answer, which has come, is to a call for a drawn draft."""
        asked, self._asked_to_draw = self._asked_to_draw, False
        return asked

    def note_drawn(self, event: Drafted) -> None:
        """A drawn draft has come, and the tail has its best path."""
        draft = event.proposal.draft
        if draft.kind is DraftKind.CHOSEN and draft.ids and self.turn is not None:
            self.hang_up_all()
            self.finish("error", verified=False, error=_chosen(self.turn))
        elif event.base == len(self.sequence):
            self._drawn = _Drawn(draft, event.base, self.cuts)

    def drop_tail(self) -> None:
        """Nothing drafted is of use any more."""
        if self.stop_at is not None and self.stop_at.length > len(self.sequence):
            self.stop_at = None
        self._cut_tail(len(self.sequence))

    def commit(self, ids: Sequence[int], kinds: Sequence[TokenKind], told: tuple[LogProbs, ...] = ()) -> None:
        """As always; under a rule that compares laws the rest of the tail goes, whatever it says."""
        super().commit(ids, kinds, told)
        if self.manner is not None and not self.finished:
            self.drop_tail()

    def on_opened(self, conn: Conn, frame: Opened) -> None:
        """As always; say what becomes of text that was drafted alone."""
        super().on_opened(conn, frame)
        if self.active is conn and self.manner is not None and self.tail.shown and self.turn is not None:
            why = f"{self.turn.rule.name} judges drawn drafts only: what was drafted alone is not one of them"
            self.report(self.link, why)

    # ------------------------------------------------------------------------------------------------------- the parts

    def _take_drawn(self) -> Draft | None:
        drawn, self._drawn = self._drawn, None
        if drawn is None or (drawn.length, drawn.cuts) != (len(self.sequence), self.cuts):
            return None
        return drawn.draft if drawn.draft.ids else None

    def _ask_to_draw(self, conn: Conn, plan: Plan, manner: Manner) -> None:
        turn = self.turn
        if turn is None:
            return
        tree = plan.tree and manner.first > 1 and Feature.TREES in conn.granted
        limits = conn.limits
        depth = min(plan.max_depth, limits.max_tree_depth if tree else limits.max_chain_tokens)
        nodes = min(max(plan.max_nodes, 1), limits.max_tree_nodes) if tree else depth
        drawing = Drawing(
            manner.kind,
            self._next_key(turn),
            first=manner.first if tree else 1,
            below=manner.below if tree else 1,
        )
        self._asked_to_draw = True
        self.propose(
            Budget(
                nodes,
                depth,
                tree,
                sampling=turn.sampling,
                prices=plan.prices,
                drawing=drawing,
                generated_from=turn.generated_from,
                stop_ids=turn.stop_ids,
            )
        )

    def _next_key(self, turn: Turn) -> bytes:
        """A key of its own for every draft: its coins say nothing of any other's."""
        self._draws += 1
        key = turn_key(self.settings.draft_secret, self.settings.session_id, turn.turn)
        return hashlib.blake2b(self._draws.to_bytes(8, "little"), digest_size=32, key=key).digest()

    def _send(self, conn: Conn, plan: Plan, draft: Draft) -> None:
        number = self.note_round(conn, draft, len(self.sequence), len(self.tail.ids))
        window = self.window(conn, plan, self.sequence.anchor)
        self.send(conn, DraftFrame(number, self.turn_number, window, draft))


def _chosen(turn: Turn) -> ConfigError:
    return ConfigError(
        "--drafter",
        f"this drafter chooses its tokens, and {turn.rule.name} would favour them: it judges drawn ones only",
        remedy="use another drafter, or delta or coupled, which are exact for any draft",
    )
