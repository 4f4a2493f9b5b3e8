"""Which drafts a rule takes, what it says of those it refuses, and what it reports of a round."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.cloud.rules import RULES, Audit, Nodes, Parameter, check_draft, read_parameters
from outrider.shared.coins import Coins, Purpose
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import InvalidField
from outrider.shared.frames import TokenKind
from outrider.shared.laws import SparseLaw
from outrider.shared.sampling import Sampling
from tests.cloud.enumeration import outcomes, random_model

SAMPLED, DISTINCT, CHOSEN = DraftKind.SAMPLED, DraftKind.DISTINCT, DraftKind.CHOSEN
LAW = SparseLaw(4, (0, 1, 2), (8, 5, 3))
LOSSLESS = ("residual", "block", "multidraft", "batch", "traversal", "delta", "look")


def nodes_of(draft: Draft, seed: int = 0, vocabulary: int = 4, coins: Coins | None = None) -> Nodes:
    """A round over random logits."""
    logits = np.random.default_rng(seed).normal(0, 1, (len(draft) + 1, vocabulary)).astype(np.float32)
    return Nodes(draft, logits, Sampling(1.0), 10, coins=coins or Coins(b"key"))


def drawn(kind: DraftKind, ids: tuple[int, ...], parents: tuple[int, ...]) -> Draft:
    """A draft whose rows all had the same law."""
    return Draft(ids, parents, kind, (LAW,) * len(set(parents)))


CHAIN, PAIR, TWINS = ((0, 1), (0, 1)), ((0, 1), (0, 0)), ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("rule", "draft", "field", "says"),
    [
        ("residual", Draft((0, 1), (0, 1)), "draft.kind", "chosen, not drawn"),
        ("block", Draft((0, 1), (0, 1)), "draft.kind", "chosen, not drawn"),
        ("multidraft", Draft((0, 1), (0, 0)), "draft.kind", "chosen, not drawn"),
        ("batch", Draft((0, 1), (0, 0)), "draft.kind", "chosen, not drawn"),
        ("traversal", Draft((0, 1), (0, 0)), "draft.kind", "chosen, not drawn"),
        ("traversal", drawn(SAMPLED, *TWINS), "draft.kind", "with replacement"),
        ("batch", drawn(DISTINCT, *PAIR), "draft.kind", "without replacement"),
        ("residual", drawn(SAMPLED, *PAIR), "draft.parents", "chains"),
        ("block", drawn(SAMPLED, *TWINS), "draft.parents", "chains"),
        ("batch", drawn(SAMPLED, (0, 1, 2), (0, 1, 1)), "draft.parents", "part at the base"),
        ("residual", Draft((0, 1), (0, 1), SAMPLED), "draft.laws", "came without"),
        ("multidraft", Draft((0, 1), (0, 0), DISTINCT), "draft.laws", "came without"),
    ],
)
def test_a_draft_that_would_be_judged_with_bias_is_refused(
    rule: str, draft: Draft, field: str, says: str
) -> None:
    """The wrong kind, the wrong shape, or no laws: InvalidField names the field and why the text would be biased."""
    with pytest.raises(InvalidField, match=says) as refused:
        RULES[rule](nodes_of(draft))
    assert refused.value.field == field


def test_without_siblings_both_ways_of_drawing_are_one() -> None:
    """A chain drawn either way suits every rule that judges drawn drafts; an empty draft suits every rule."""
    for name in LOSSLESS:
        for kind in (SAMPLED, DISTINCT):
            check_draft(RULES[name], drawn(kind, *CHAIN))
        decision = RULES[name](nodes_of(Draft((), ())))
        assert decision.path == () and decision.kinds in ((TokenKind.BONUS,), (TokenKind.RECOVERED,))


def test_rules_by_ids_alone_take_any_draft() -> None:
    """Chosen, drawn, with equal siblings, without laws: all the same to delta, look, greedy and coupled."""
    for name in ("delta", "look", "coupled"):
        for draft in (
            Draft((0, 1), (0, 0)),
            drawn(SAMPLED, *TWINS),
            drawn(DISTINCT, *PAIR),
            Draft((0,), (0,), SAMPLED),
        ):
            RULES[name](nodes_of(draft))


def test_traversal_throws_blocks_coins_on_a_chain() -> None:
    """Over 300 keys the verdicts on a chain are the same, token for token."""
    kept = set()
    for seed in range(300):
        ids = tuple(np.random.default_rng(seed).choice(3, 3, p=(0.5, 0.3125, 0.1875)).tolist())
        nodes = nodes_of(drawn(SAMPLED, ids, (0, 1, 2)), seed, coins=Coins(bytes([1, *divmod(seed, 256)])))
        assert RULES["traversal"](nodes) == RULES["block"](nodes)
        kept.add(len(RULES["block"](nodes).path))
    assert kept == {0, 1, 2, 3}


def test_batch_judges_its_shape_as_multidraft_does() -> None:
    """Sequences that part at the base: the same verdict under the same coins."""
    for seed in range(200):
        ids = tuple(np.random.default_rng(seed).choice(3, 4, p=(0.5, 0.3125, 0.1875)).tolist())
        nodes = nodes_of(drawn(SAMPLED, ids, (0, 0, 1, 2)), seed, coins=Coins(bytes([2, *divmod(seed, 256)])))
        assert RULES["batch"](nodes) == RULES["multidraft"](nodes)


def test_a_verdict_is_a_function_of_its_round_and_key() -> None:
    """Asked again, every rule says the same; under other keys, not always."""
    draft = drawn(DISTINCT, (0, 1, 2), (0, 0, 1))
    for name in ("multidraft", "traversal", "delta", "look"):
        said = {
            RULES[name](nodes_of(draft, coins=Coins(bytes([key])))) for key in range(30) for _ in range(2)
        }
        assert 1 < len(said) <= 30


def test_kinds_say_where_each_token_comes_from() -> None:
    """Drafted tokens are ACCEPTED, the last is BONUS behind a leaf and RECOVERED where children were refused."""
    draft = drawn(DISTINCT, (0, 1, 2), (0, 0, 1))
    for name in ("multidraft", "traversal", "delta", "look"):
        for key in range(40):
            decision = RULES[name](nodes_of(draft, coins=Coins(bytes([key]))))
            row = decision.path[-1] + 1 if decision.path else 0
            end = TokenKind.RECOVERED if draft.children(row) else TokenKind.BONUS
            assert decision.kinds == (*(TokenKind.ACCEPTED,) * len(decision.path), end)
            assert decision.path == (draft.path_to(row - 1) if row else ())


def test_the_audit_of_residual_has_rejection_equal_to_tv() -> None:
    """Tested positions, their TV as the probability of rejecting, no loss, no gap; other rules report none."""
    draft = drawn(SAMPLED, (0, 1, 0), (0, 1, 2))
    for key in range(20):
        nodes = nodes_of(draft, coins=Coins(bytes([key])))
        decision = RULES["residual"](nodes)
        tested = min(len(decision.path) + 1, 3)
        tv = sum(float(np.abs(nodes.law(row) - nodes.draft_law(row)).sum()) / 2 for row in range(tested))
        assert decision.audit is not None and decision.audit.positions == tested
        assert decision.audit.rejection == decision.audit.tv == pytest.approx(tv, abs=1e-12)
        assert (decision.audit.loss, decision.audit.gap) == (0.0, 0.0)
        assert RULES["block"](nodes).audit is None
    assert Audit(1, 0.5, 0.1, 0.4) + Audit(2, 0.25, 0.0, 0.25) == Audit(3, 0.75, 0.1, 0.65)
    assert Audit(1, 0.5, 0.1, 0.4).gap == pytest.approx(0.2)


def test_the_view_reads_draft_laws_and_throws_coins() -> None:
    """Draft laws dense and sparse, the probability of a node; without laws or coins a ValueError."""
    draft = Draft((1, 3, 2), (0, 0, 1), SAMPLED, (SparseLaw(4, (3, 1), (12, 4)), LAW))
    nodes = nodes_of(draft)
    assert nodes.draft_law(0).tolist() == [0.0, 0.25, 0.0, 0.75]
    assert nodes.draft_law(1).tolist() == [0.5, 0.3125, 0.1875, 0.0]
    ids, probabilities = nodes.draft_entries(0)
    assert ids.tolist() == [3, 1] and probabilities.tolist() == [0.75, 0.25]
    assert [nodes.drafted(node) for node in range(3)] == [0.25, 0.75, 0.1875]
    assert nodes.coin(1, Purpose.ACCEPT, 2) == Coins(b"key")(10, 11, Purpose.ACCEPT, 2)
    for row in (2, 3):
        with pytest.raises(ValueError, match="no draft law"):
            nodes.draft_law(row)
    bare = Nodes(Draft((1,), (0,)), nodes.logits[:2], Sampling(1.0), 10)
    with pytest.raises(ValueError, match="no draft law"):
        bare.draft_law(0)
    with pytest.raises(ValueError, match="no coins"):
        bare.coin(0, Purpose.ACCEPT)


def test_a_draw_has_its_law_and_never_an_impossible_id() -> None:
    """Every threshold of the inverse CDF, by enumeration; and the ends of the coin's range by value."""
    from tests.cloud.enumeration import BranchingCoins

    law = random_model(3, 5, 0, 0.4)(())
    law[0] = law[4] = 0.0
    law /= law.sum()
    nodes = nodes_of(Draft((), ()), vocabulary=5)
    nodes.coins = lambda *address: 0.0
    assert nodes.draw(law, 0, Purpose.BONUS) == int(np.flatnonzero(law)[0])
    nodes.coins = lambda *address: 1.0 - 2.0**-53
    assert nodes.draw(law * 3.7, 0, Purpose.BONUS) == int(np.flatnonzero(law)[-1])

    def program(branches: object) -> int:
        nodes.coins = BranchingCoins(branches)  # type: ignore[arg-type]
        return nodes.draw(law, 0, Purpose.BONUS)

    found = outcomes(program)
    assert {token: pytest.approx(weight, abs=1e-12) for token, weight in found.items()} == {
        int(token): law[token] for token in np.flatnonzero(law)
    }


@pytest.mark.parametrize("name", LOSSLESS)
def test_the_smallest_coin_does_not_accept_the_impossible(name: str) -> None:
    """Coins of 0 throughout: a drafted token that the warped target gives no mass is refused all the same."""
    draft = drawn(SAMPLED, (1, 0), (0, 1))
    nodes = nodes_of(draft)
    nodes.sampling, nodes.logits = Sampling(), np.asarray([[9.0, 0, 0, 0]] * 3, np.float32)
    nodes.coins = lambda *address: 0.0
    decision = RULES[name](nodes)
    assert (decision.path, decision.next_id, decision.kinds) == ((), 0, (TokenKind.RECOVERED,))


def test_parameters_are_read_by_name_and_range() -> None:
    """Defaults fill in; an unknown name and a value out of range are refused as rule.parameters."""

    class Ruled(type(RULES["delta"])):  # type: ignore[misc]
        parameters = {"eps": Parameter(0.1, 0.0, 1.0, "how much too much")}

    assert read_parameters(Ruled(), {}) == {"eps": 0.1}
    assert read_parameters(Ruled(), {"eps": 1.0}) == {"eps": 1.0}
    for asked in ({"eps": 1.5}, {"eps": float("nan")}, {"beta": 0.5}):
        with pytest.raises(InvalidField) as refused:
            read_parameters(Ruled(), asked)
        assert refused.value.field == "rule.parameters"
