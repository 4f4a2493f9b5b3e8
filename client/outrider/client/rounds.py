"""One round as the device makes it: propose or send, draft on while waiting, show the draft when nothing comes."""

from __future__ import annotations

from dataclasses import replace

from outrider.client.conn import Conn, on_path
from outrider.client.drafter import Budget
from outrider.client.drawing import DrawMachine
from outrider.client.events import Drafted, LinkState
from outrider.client.plan import Plan
from outrider.shared.anchor import extend
from outrider.shared.draft import Draft
from outrider.shared.frames import DraftFrame, Feature, Steer
from outrider.shared.rule_names import BLIND


class RoundMachine(DrawMachine):
    """The part of the session machine that drafts and sends."""

    _fresh_tree: Draft | None = None
    _just_drafted = False
    _told_end = -1

    # -------------------------------------------------------------------------------------------------------- rounds

    def on_drafted(self, event: Drafted) -> None:
        """The drafter has answered."""
        before = self.end
        ids, drawn = self.take_proposal(event), self.was_asked_to_draw()
        if ids is None:
            return
        whole = event.base == before and ids == event.proposal.best_ids
        self._fresh_tree = event.proposal.draft if whole else None
        self._just_drafted = True
        if drawn:
            self.note_drawn(event)

    def advance(self) -> None:
        """Send the next round if one may go, otherwise draft on; show what is drafted when nothing timely comes."""
        tree, drafted = self._fresh_tree, self._just_drafted
        self._fresh_tree, self._just_drafted = None, False
        if self.finished or self.turn is None:
            return
        conn = self.active if self.active is not None and self.active.turn == self.turn_number else None
        plan = self.plan()
        manner = self.manner
        if conn is not None and manner is not None:
            self.draw_or_send(conn, plan, manner)
        elif conn is not None:
            self._send_or_propose(conn, plan, tree, drafted)
        if self.alone and self.writes_alone:
            self._write_alone()
        elif conn is None:
            self._draft_on(_ahead(plan), 0)  # the draft of the Open to come
        else:
            self._draft_on(_ahead(plan), len(conn.rounds))
        if conn is not None and self.active is conn:
            self._steer(conn, plan)

    def _send_or_propose(self, conn: Conn, plan: Plan, tree: Draft | None, drafted: bool) -> None:
        if self.now < conn.busy_until or len(conn.rounds) >= conn.in_flight_most(plan.rounds):
            return
        unsent = self.tail.ids[self.sent_to(conn) - self.tail.start :]
        depth = plan.max_depth if self.drafter_ready else 0
        if conn.rounds and not unsent:
            self._draft_on(min(depth, _ahead(plan)), 0)  # a pipelined round needs something to say
        elif _wants_more(plan, depth, len(unsent)) and not drafted and (self.proposing or self.can_draft()):
            if not self.proposing:
                nodes = max(plan.max_nodes - len(unsent), 1)
                branching = plan.tree and not conn.rounds
                prices = plan.prices.behind(len(unsent)) if plan.prices is not None else None
                self._ask(Budget(nodes, depth - len(unsent), branching, plan.floor, prices=prices))
        elif unsent or depth or not self._runs_ahead(conn, plan):
            self._send_round(conn, plan, tree)

    def _runs_ahead(self, conn: Conn, plan: Plan) -> bool:
        able = Feature.RUN_AHEAD in conn.granted and conn.limits.max_run_ahead_tokens > 0
        return able and plan.run_ahead > 0 and self.stop_at is None and self.runs_ahead

    def sent_to(self, conn: Conn) -> int:
        """Position up to which the tail is under way in rounds of this stream."""
        covered = (r.base + r.path for r in conn.rounds.values() if r.cuts == self.cuts)
        return min(max(len(self.sequence), *covered, 0), self.end)

    def _send_round(self, conn: Conn, plan: Plan, tree: Draft | None) -> None:
        sent_to = self.sent_to(conn)
        # Without rounds under way the draft hangs where the verifier's log is known to be; what another stream brought
        # beyond that is drafted text to it.
        base = sent_to if conn.rounds else min(len(self.sequence), conn.known)
        path = (*self.sequence.ids[base:], *self.tail.ids[max(sent_to - self.tail.start, 0) :])
        path = path[: conn.limits.max_chain_tokens]
        if not path and plan.max_depth and self.drafter_ready:
            self.rounds_dry += 1
        draft = self._with_tree(conn, path, tree) or Draft.chain(path)
        seen = self.sequence.anchor_at(min(len(self.sequence), conn.known))
        if base <= len(self.sequence):
            anchor = self.sequence.anchor_at(base)
        else:
            anchor = extend(self.sequence.anchor, self.tail.ids[: base - self.tail.start])
        number = self.note_round(conn, draft, base, len(path))
        window = self.window(conn, plan, seen)
        frame = DraftFrame(number, self.turn_number, window, draft, None if anchor == seen else anchor)
        self.send(conn, frame)

    def _with_tree(self, conn: Conn, path: tuple[int, ...], tree: Draft | None) -> Draft | None:
        """``tree`` hung below the part of ``path`` that comes before its own best path; None if it may not be."""
        if tree is None or tree.is_chain or Feature.TREES not in conn.granted:
            return None
        before = next((n for n in range(len(path) + 1) if on_path(tree, path[n:])), None)
        if before is None or before + len(tree.ids) > conn.limits.max_tree_nodes:
            return None
        parents = (*range(before), *(parent + before for parent in tree.parents))
        draft = Draft((*path[:before], *tree.ids), parents)
        return draft if max(draft.depths) <= conn.limits.max_tree_depth else None

    def _steer(self, conn: Conn, plan: Plan) -> None:
        """Send a window without a draft when the verifier needs one to go on."""
        grown = len(self.sequence) - conn.window_length
        aged = grown > 0 and self.now >= conn.window_at + self.settings.steer_s
        ahead = self._runs_ahead(conn, plan)
        expired = ahead and not conn.rounds and conn.run_until <= len(self.sequence) < self.max_length
        unacked = conn.bulk_received - conn.bulk_acked
        due = expired or (conn.run_until > 0 and (grown >= self.settings.steer_tokens or aged))
        if due or unacked * 2 >= self.settings.bulk_window_bytes:
            seen = self.sequence.anchor_at(min(len(self.sequence), conn.known))
            self.send(conn, Steer(self.turn_number, self.window(conn, plan, seen)))

    # --------------------------------------------------------------------------------------------------- drafting on

    def _ask(self, budget: Budget) -> None:
        turn = self.turn
        if turn is not None:
            blind = turn.rule.name in BLIND and budget.alone_from is None
            told = {
                "sampling": replace(turn.sampling, temperature=0.0) if blind else turn.sampling,
                "generated_from": turn.generated_from,
                "stop_ids": turn.stop_ids,
            }
            self.propose(replace(budget, **told))  # type: ignore[arg-type]

    def _draft_on(self, depth: int, under_way: int) -> None:
        """Draft ahead of the verdicts, quietly, at most ``depth`` tokens beyond what has gone out."""
        conn = self.active
        start = self.sent_to(conn) if conn is not None else len(self.sequence)
        ahead = self.end - start
        if self.alone and not self.writes_alone:
            return
        if depth > ahead and self.can_draft() and (under_way or conn is None or conn.rounds):
            self._ask(Budget(depth - ahead, depth - ahead))

    def _write_alone(self) -> None:
        """Nothing timely comes: what is drafted is shown as provisional, and more is drafted."""
        self.tail_on_display()
        if self.can_draft():
            depth = self.settings.offline_depth
            self._ask(Budget(depth, depth, alone_from=len(self.sequence)))
        elif not self.proposing and self.drafter_ready:
            if self.given_up:
                self.finish("offline", verified=False)
            elif self.stop_at is None and self._told_end != self.end and self.tail.ids:
                self._told_end = self.end
                self.report(
                    LinkState.OFFLINE if self.active is None else LinkState.LATE, "ended, unconfirmed"
                )


def _ahead(plan: Plan) -> int:
    """Tokens to draft beyond what has gone out while a verdict is awaited."""
    return plan.max_depth if plan.ahead is None else min(plan.ahead, plan.max_depth)


def _wants_more(plan: Plan, depth: int, unsent: int) -> bool:
    """Whether to draft on before a round goes out that has ``unsent`` tokens already."""
    if unsent >= depth:
        return False
    return not unsent or plan.prices is None or plan.prices.behind(unsent).pays
