"""Texts by the thousand through the whole stack (device, gRPC, verifier, rule), against the target's own law.

The target and the drafter are tables (`tests.law_world`); all else is what is shipped: drawing and rounding, the wire,
the table of sessions, the rules with their coins. What is counted are blocks of three tokens, of which there are at
most 64, in answers in which rounds begin anywhere. A round brings three to six tokens; of chains nearly all end with a
rejection, of trees (where all siblings have to be rejected for that) 15 to 60 %: once in at most twelve blocks.

Pass: chi-square with cells of less than 5 expected pooled, p >= 1e-4; and the total variation to the exact law below
what McDiarmid's inequality allows at 1e-6. Seeds are fixed; a first failure is drawn again ten times as often with
another seed, and has to have p >= 1e-6. A bias of total variation d, spread evenly, is seen with probability .999 from
4·N·d² of about 120 on: d = 0.04 in `DRAWS`, 0.12 in `PENALISED`, 0.01 in `MANY`. The drafter is off by about 0.13 at
every token, and rules that let it have its way are rejected here as they have to be, in an eighth of `DRAWS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from scipy.stats import chi2

from outrider.client.events import Label
from outrider.shared.frames import Rule
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer
from tests.law_world import POSSIBLE, Block, Draws, World, exact, law_world
from tests.tiny import write_tokenizer

DRAWS, MANY = 20_000, 300_000
"""Blocks of one rule."""
LOSSY_DRAWS, PENALISED = 2_500, 2_000
"""Blocks of a rule that has to be found out; blocks that are answers of their own, each of which is a turn."""
REJECTIONS = 0.05
"""Rounds that end with a rejection, for each block, at least: what a rule does then is what is looked at."""
FIRST, SECOND = 1e-4, 1e-6

LOSSLESS: Mapping[str, Sampling] = {
    "coupled": Sampling(1.0, POSSIBLE),
    "residual": Sampling(0.5, POSSIBLE),
    "block": Sampling(1.0, POSSIBLE, top_p=0.9),
    "multidraft": Sampling(1.5, POSSIBLE, min_p=0.1),
    "batch": Sampling(1.0, POSSIBLE),
    "traversal": Sampling(0.5, POSSIBLE, top_p=0.95),
    "delta": Sampling(1.5, POSSIBLE),
    "look": Sampling(1.0, POSSIBLE, min_p=0.05),
}
PENALTIES: Mapping[str, Sampling] = {
    "residual": Sampling(1.0, POSSIBLE, repetition_penalty=1.6),
    "traversal": Sampling(1.0, POSSIBLE, presence_penalty=0.8, frequency_penalty=0.6),
}
"""Looked at in answers of one block, since the law of a later one would depend on all before it."""
LOSSY = (Rule("overaccept", (("epsilon", 0.3),)), Rule("typical-or"), Rule("typical"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One verifier for all."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    with law_world(Tokenizer.from_folder(Path(folder))) as made:
        yield made


def p_value(draws: Draws, law: Mapping[Block, float]) -> float:
    """Of the chi-square statistic, cells with fewer than five expected pooled."""
    statistic, cells, pooled, seen = 0.0, 0, 0.0, 0
    for block, chance in law.items():
        expected, count = chance * draws.count, draws.blocks.get(block, 0)
        if expected < 5.0:
            pooled, seen = pooled + expected, seen + count
        else:
            statistic, cells = statistic + (count - expected) ** 2 / expected, cells + 1
    if pooled >= 5.0:
        statistic, cells = statistic + (seen - pooled) ** 2 / pooled, cells + 1
    return float(chi2.sf(statistic, cells - 1))


def within(draws: Draws, law: Mapping[Block, float], alpha: float = 1e-6) -> bool:
    """Whether the total variation to the law can be chance."""
    count = draws.count
    distance = sum(abs(draws.blocks.get(block, 0) / count - chance) for block, chance in law.items()) / 2
    return distance <= 0.5 * math.sqrt((len(law) - 1) / count) + math.sqrt(math.log(1 / alpha) / (2 * count))


def check(world: World, rule: Rule, sampling: Sampling, count: int, seed: int, per_turn: int = 125) -> Draws:
    """Draw and compare, in two stages; nothing impossible may ever come."""
    law = exact(sampling)
    draws = world.draws(rule, sampling, count, seed, per_turn=per_turn)
    good = p_value(draws, law) >= FIRST
    if not good:
        draws = world.draws(rule, sampling, 10 * count, seed + 1000, per_turn=per_turn)
        good = p_value(draws, law) >= SECOND
    assert set(draws.blocks) <= set(law)
    assert good and within(draws, law)
    assert Label.JUDGED not in draws.kinds and draws.kinds[Label.ACCEPTED] > 0.3 * draws.tokens
    assert draws.kinds[Label.RECOVERED] > REJECTIONS * draws.count
    return draws


@pytest.mark.timeout(1800)  # a first failure draws ten times as often
@pytest.mark.parametrize("name", LOSSLESS)
def test_texts_have_the_targets_law(world: World, name: str) -> None:
    """20,000 blocks of each rule, each under its own temperature and truncation."""
    check(world, Rule(name), LOSSLESS[name], DRAWS, seed=11)


@pytest.mark.parametrize("name", PENALTIES)
def test_penalised_texts_have_the_targets_law(world: World, name: str) -> None:
    """2,000 answers of one block, whose penalties differ at every node of a draft."""
    check(world, Rule(name), PENALTIES[name], PENALISED, seed=12, per_turn=1)


@pytest.mark.parametrize("rule", LOSSY, ids=lambda rule: rule.name)
def test_lossy_rules_are_found_out(world: World, rule: Rule) -> None:
    """The same test rejects them, at less than 1e-6, and they say themselves which tokens they let through."""
    sampling = Sampling(1.0, POSSIBLE)
    draws = world.draws(rule, sampling, LOSSY_DRAWS, seed=13)
    assert p_value(draws, exact(sampling)) < SECOND
    assert draws.kinds[Label.JUDGED] > 0


@pytest.mark.long
@pytest.mark.parametrize("name", LOSSLESS)
def test_many_texts_have_the_targets_law(world: World, name: str) -> None:
    """300,000 blocks of each rule."""
    check(world, Rule(name), LOSSLESS[name], MANY, seed=21)


@pytest.mark.long
@pytest.mark.parametrize("name", PENALTIES)
def test_many_penalised_texts_have_the_targets_law(world: World, name: str) -> None:
    """20,000 answers of one block."""
    check(world, Rule(name), PENALTIES[name], 20_000, seed=22, per_turn=1)
