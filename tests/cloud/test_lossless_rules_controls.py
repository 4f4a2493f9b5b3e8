"""What goes wrong in practice, each as a double, and each caught by the check that every lossless rule passes.

The numbers are the exact total variation of the first emitted token's law on the golden pair, unless a test says
otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from outrider.cloud.rules import RULES, Decision, Nodes
from outrider.cloud.rules.residual import ending, left_over
from outrider.shared.coins import Purpose
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import InvalidField
from outrider.shared.frames import TokenKind
from outrider.shared.laws import SparseLaw
from outrider.shared.sampling import Sampling
from outrider.shared.sampling import law as warp
from tests.cloud.enumeration import G2, Branches, Law, Model, Play, always, children, random_model

SAMPLED, DISTINCT, CHOSEN = DraftKind.SAMPLED, DraftKind.DISTINCT, DraftKind.CHOSEN
Given = Mapping[str, float]


# --------------------------------------------------------------------------------------------- drafters that misreport


def likeliest(branches: Branches, law: Law, width: int, kind: DraftKind) -> Sequence[int]:
    """Takes the likeliest ids and says it drew them."""
    return children(branches, law, width, CHOSEN)


def confident(branches: Branches, law: Law, width: int, kind: DraftKind) -> Sequence[int]:
    """Draws, then drops what its law gives less than 0.2."""
    return [token for token in children(branches, law, width, kind) if law[token] >= 0.2]


def backwards(branches: Branches, law: Law, width: int, kind: DraftKind) -> Sequence[int]:
    """Draws, then sends the last draw first."""
    return children(branches, law, width, kind)[::-1]


def shuffled(branches: Branches, law: Law, width: int, kind: DraftKind) -> Sequence[int]:
    """Draws two, then sends them in any order."""
    drawn = children(branches, law, width, kind)
    return drawn if branches.choose((0.5, 0.5)) else drawn[::-1]


# --------------------------------------------------------------------------------------------------- rules with a slip


def skips_equal(nodes: Nodes, given: Given) -> Decision:
    """`multidraft` over siblings that were drawn with replacement, each id tested once only."""
    first = [node for node, token in enumerate(nodes.draft.ids) if token not in nodes.draft.ids[:node]]
    draft = Draft(
        tuple(nodes.draft.ids[node] for node in first), (0,) * len(first), SAMPLED, nodes.draft.laws
    )
    rows = [0, *(node + 1 for node in first)]
    decision = RULES["multidraft"](
        Nodes(draft, nodes.logits[rows], nodes.sampling, nodes.length, coins=nodes.coins), given
    )
    return replace(decision, path=tuple(first[node] for node in decision.path))


def trusting(nodes: Nodes, given: Given) -> Decision:
    """`residual` for one token that takes a law without the token as it comes."""
    target, draft, token = nodes.law(0), nodes.draft_law(0), nodes.draft.ids[0]
    if draft[token] and nodes.coin(0, Purpose.ACCEPT, 0) < target[token] / draft[token]:
        return ending([0], nodes.draw(nodes.law(1), 1, Purpose.BONUS), TokenKind.BONUS)
    return ending([], nodes.draw(left_over(target, draft), 0, Purpose.REPLACE), TokenKind.RECOVERED)


def plain_bonus(nodes: Nodes, given: Given) -> Decision:
    """`residual` that draws the bonus from the law before warping."""
    decision = RULES["residual"](nodes, given)
    if decision.kinds[-1] is not TokenKind.BONUS:
        return decision
    row = len(decision.path)
    bonus = nodes.draw(warp(nodes.logits[row], Sampling(1.0)), row, Purpose.BONUS)
    return ending(list(decision.path), bonus, TokenKind.BONUS)


# -------------------------------------------------------------------------------------------------------------- caught


@pytest.mark.parametrize(("width", "bias"), [(1, 0.2875), (2, 0.484375), (3, 0.55)])
def test_the_likeliest_ids_under_a_ratio_rule_are_caught(width: int, bias: float) -> None:
    """Chosen children judged as if drawn; said to be CHOSEN, as they are, the rule refuses them."""
    lying = Play(*G2, RULES["multidraft"], (width,), DISTINCT, pick=likeliest)
    assert lying.bias(tokens=1) == pytest.approx(bias, abs=1e-9)
    with pytest.raises(InvalidField, match="chosen, not drawn") as refused:
        lying.but(kind=CHOSEN).bias(tokens=1)
    assert refused.value.field == "draft.kind"


@pytest.mark.parametrize(
    ("pair", "width", "bias"),
    [
        (G2, 2, 0.01996875),
        (G2, 3, 0.04613203125),
        ((always((0.0, 0.5, 0.5)), always((0.7, 0.3, 0.0))), 2, 0.14),
        ((always((0.0, 0.5, 0.5)), always((0.7, 0.3, 0.0))), 3, 0.238),
    ],
)
def test_skipping_equal_siblings_is_caught(pair: tuple[Model, Model], width: int, bias: float) -> None:
    """A token drawn twice and tested once is taken for a draw less than there were; tested twice, it is unbiased."""
    skipping = Play(*pair, skips_equal, (width,))
    assert skipping.bias(tokens=1) == pytest.approx(bias, abs=1e-9)
    assert skipping.but(rule=RULES["multidraft"]).bias(tokens=1) < 1e-12


def test_cutting_a_law_after_sampling_is_caught() -> None:
    """Drawn from the whole law, told without its last 5 %: 0.0169. Drawn from what is told: 0."""
    cut = np.asarray((0.40, 0.25, 0.15, 0.15, 0.0)) / 0.95
    late = Play(*G2, trusting, told=lambda path: cut)
    assert late.bias(tokens=1) == pytest.approx(0.0168932, abs=5e-7)
    assert late.but(drafted=lambda path: cut).bias(tokens=1) < 1e-12
    assert late.but(drafted=lambda path: cut).accepted() == pytest.approx(0.4579, abs=5e-5)
    law = SparseLaw(4, (0, 1), (8, 8))
    with pytest.raises(InvalidField, match="no mass") as refused:
        Draft((4,), (0,), SAMPLED, (law,)).validate(vocabulary=5, max_nodes=8, max_depth=8, max_chain=8)
    assert refused.value.field == "draft.laws.ids"


def test_dropping_unlikely_tokens_after_sampling_is_caught() -> None:
    """Tokens the drafter is unsure of are thrown away: 0.1425. Drawn from the law without them: 0."""
    unsure = Play(*G2, RULES["residual"], pick=confident)
    assert unsure.bias(tokens=1) == pytest.approx(0.1425, abs=1e-9)
    sure = np.asarray((0.40, 0.25, 0.0, 0.0, 0.0)) / 0.65
    assert unsure.but(drafted=lambda path: sure).bias(tokens=1) < 1e-12


@pytest.mark.parametrize("rule", ["residual", "block"])
def test_stopping_after_an_unlikely_token_is_fine(rule: str) -> None:
    """An unsure token that is sent, and ends the draft, biases nothing: the length looks at the past only."""

    class Stopping(Play):
        def draft(self, branches: Branches, base: tuple[int, ...]) -> Draft:
            whole = super().draft(branches, base)
            for node, token in enumerate(whole.ids):
                if self.drafted((*base, *whole.ids[:node]))[token] < 0.3:
                    return whole.only(range(node + 1))
            return whole

    models = random_model(31, 3, 6), random_model(32, 3, 6)
    assert Stopping(*models, RULES[rule], (1, 1, 1)).bias() < 1e-12


def test_a_bonus_from_the_unwarped_law_is_caught() -> None:
    """Temperature 0.5, the drafter equal to the warped target, so that the bonus always comes: 0.1772 on it."""
    target = G2[0]
    warped = target(()) ** 2 / np.sum(target(()) ** 2)
    slip = Play(target, always(warped.tolist()), plain_bonus, sampling=Sampling(0.5))
    assert slip.accepted() == pytest.approx(1.0)
    assert slip.bias() == pytest.approx(0.177193, abs=5e-7)
    assert slip.but(rule=RULES["residual"]).bias() < 1e-12


def test_siblings_out_of_draw_order_are_caught() -> None:
    """Two draws without replacement: last first 0.0448, in any order 0.0224."""
    drawn = Play(*G2, RULES["multidraft"], (2,), DISTINCT)
    assert drawn.but(pick=backwards).bias(tokens=1) == pytest.approx(0.0448182, abs=5e-7)
    assert drawn.but(pick=shuffled).bias(tokens=1) == pytest.approx(0.0224091, abs=5e-7)


def test_a_coin_thrown_again_in_the_next_round_is_caught() -> None:
    """Block verification with coins that forget where the round began, and one coin for all tokens: both biased."""

    def without_base(address: tuple[int, ...]) -> Hashable:
        return address[1:3]

    def without_position(address: tuple[int, ...]) -> Hashable:
        return (address[0], *address[2:3])

    fresh = Play(random_model(45, 2, 8), random_model(46, 2, 8), RULES["block"], (1, 1))
    assert fresh.bias(rounds=2) < 1e-12
    assert fresh.but(address=without_base).bias(rounds=2) > 0.02
    assert fresh.but(address=without_position).bias() > 0.02
