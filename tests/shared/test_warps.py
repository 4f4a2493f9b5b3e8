"""Laws of the warps: each against a slow reference, their order, and the text they read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.shared import warps
from outrider.shared.errors import InvalidField
from outrider.shared.penalties import among
from outrider.shared.sampling import (
    LEAST_TEMPERATURE,
    MAX_BIASES,
    SAMPLER_ORDER,
    History,
    Sampling,
    adjusted,
    choose,
    law,
    log_probs,
    pick,
    scores,
)

VOCABULARY = 8
Law = NDArray[np.float64]

EACH: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": ((1, 2.5), (6, -3.0))},
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.8},
    "least_length": {"min_tokens": 9},
    "temperature": {},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
}
"""Settings that switch one warp on, at temperature 0.7."""
ALL = {name: value for dials in EACH.values() for name, value in dials.items()}
TEXT = History((3, 1, 4, 1, 5, 1, 5), 4, (0, 7))


def logits_of(seed: int, vocabulary: int = VOCABULARY, scale: float = 2.0) -> NDArray[np.float32]:
    """Random float32 logits of both signs."""
    return np.random.default_rng(seed).normal(0, scale, vocabulary).astype(np.float32)


def slow_law(logits: Sequence[float], sampling: Sampling, history: History) -> list[float]:
    """The definition, id by id in plain Python: what every law must equal."""
    text, start = history.ids, history.generated_from
    value = {token: float(logit) for token, logit in enumerate(logits)}
    for token, shift in sampling.logit_bias:
        value[token] += shift
    for token in value:
        if token in text:
            by = sampling.repetition_penalty
            value[token] = value[token] / by if value[token] > 0 else value[token] * by
    for token in value:
        count = text[start:].count(token)
        value[token] -= sampling.presence_penalty * (count > 0) + sampling.frequency_penalty * count
    if len(text) - start < sampling.min_tokens:
        value = {token: v for token, v in value.items() if token not in history.stop_ids}
    ranked = sorted(value, key=lambda token: (-value[token], token))
    if sampling.temperature == 0:
        return [float(token == ranked[0]) for token in range(len(logits))]
    weight = {t: math.exp((value[t] - value[ranked[0]]) / sampling.temperature) for t in ranked}
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    if 0 < sampling.top_p < 1:
        whole, mass, kept = sum(weight[t] for t in ranked), 0.0, []
        for token in ranked:
            if mass >= sampling.top_p:
                break
            kept.append(token)
            mass += weight[token] / whole
        ranked = kept
    ranked = [t for t in ranked if weight[t] >= sampling.min_p * weight[ranked[0]]]
    total = sum(weight[t] for t in ranked)
    return [weight[t] / total if t in ranked else 0.0 for t in range(len(logits))]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.6])
@pytest.mark.parametrize("names", [*((name,) for name in EACH), tuple(EACH)])
def test_the_law_is_the_definitions(names: tuple[str, ...], temperature: float) -> None:
    """Each warp alone, and all together, leave the law of the slow reference, for every text and logits tried."""
    dials = {dial: value for name in names for dial, value in EACH[name].items()}
    sampling = Sampling(temperature, **dials)
    for trial in range(60):
        rng = np.random.default_rng((9, trial))
        ids = tuple(rng.integers(0, VOCABULARY, rng.integers(1, 14)).tolist())
        text = History(ids, int(rng.integers(0, len(ids) + 1)), (0, 7))
        logits = logits_of(trial)
        expected = slow_law(logits.tolist(), sampling, text)
        np.testing.assert_allclose(law(logits, sampling, text), expected, atol=1e-12)


@settings(max_examples=60)
@given(st.data())
def test_any_setting_leaves_the_definitions_law(data: st.DataObject) -> None:
    """Random combinations of all dials, penalties below 1 and below 0 included."""
    sampling = Sampling(
        data.draw(st.sampled_from([0.3, 1.0, 1.9])),
        data.draw(st.integers(0, 9)),
        data.draw(st.sampled_from([0.0, 0.31, 0.77, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.07, 0.43])),
        repetition_penalty=data.draw(st.sampled_from([0.6, 1.0, 1.3])),
        presence_penalty=data.draw(st.sampled_from([-1.3, 0.0, 1.9])),
        frequency_penalty=data.draw(st.sampled_from([-0.7, 0.0, 0.9])),
        min_tokens=data.draw(st.integers(0, 6)),
        logit_bias=data.draw(st.sampled_from([(), ((2, 4.0),), ((7, 50.0), (0, -100.0))])),
    )
    ids = tuple(data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)))
    text = History(ids, data.draw(st.integers(0, len(ids))), (7,))
    logits = logits_of(data.draw(st.integers(0, 999)))
    np.testing.assert_allclose(
        law(logits, sampling, text), slow_law(logits.tolist(), sampling, text), atol=1e-12
    )


# Some neighbours commute (both penalties subtract; a suppressed id stays so); these do not, whatever stands between.
ORDERED = (
    ("bias", "repetition"),
    ("repetition", "presence"),
    ("repetition", "frequency"),
    ("bias", "temperature"),
    ("presence", "temperature"),
    ("frequency", "temperature"),
    ("presence", "top_k"),
    ("least_length", "top_k"),
    ("least_length", "top_p"),
    ("temperature", "top_p"),
    ("temperature", "min_p"),
    ("top_k", "top_p"),
    ("top_p", "min_p"),
)


@pytest.mark.parametrize(("first", "second"), ORDERED)
def test_swapping_two_warps_changes_the_law(first: str, second: str) -> None:
    """The order is part of the law: with two warps on and exchanged, some logits have another distribution."""
    dials = {**EACH[first], **EACH[second]}
    sampling = Sampling(0.7, **dials)
    names = [warp.__name__ for warp in warps.WARPS]
    order = list(range(len(names)))
    i, j = names.index(first), names.index(second)
    assert i < j
    order[i], order[j] = order[j], order[i]
    swapped = tuple(warps.WARPS[index] for index in order)
    differences = []
    for trial in range(200):
        logits = logits_of(trial)
        other = warps.softmax(warps.apply(swapped, logits, sampling, TEXT))
        differences.append(0.5 * float(np.abs(law(logits, sampling, TEXT) - other).sum()))
    assert max(differences) > 0.01


def test_the_order_is_the_one_that_is_fingerprinted() -> None:
    """The list that is applied and the list that both sides compare are one."""
    assert SAMPLER_ORDER == (
        "bias,repetition,presence,frequency,least_length,temperature,top_k,top_p,min_p;gumbel-max;ties=lowest-id;2"
    )
    assert list(EACH) == [warp.__name__ for warp in warps.WARPS]


def test_a_text_grown_token_by_token_is_the_text() -> None:
    """Whatever was counted before, the history with a path behind it penalises like the whole text counted at once."""
    sampling = Sampling(1.0, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3)
    rng = np.random.default_rng(2)
    for trial in range(50):
        ids = tuple(rng.integers(0, VOCABULARY, 12).tolist())
        start = int(rng.integers(0, 13))
        whole = History(ids, start)
        for cut in (0, 3, 11):
            grown = History(ids[:cut], start).then(ids[cut : cut + 1]).then(ids[cut + 1 :])
            assert grown == whole and grown.position == 12
            logits = logits_of(trial)
            assert (scores(logits, sampling, grown) == scores(logits, sampling, whole)).all()


def test_the_prompt_counts_for_the_repetition_penalty_alone() -> None:
    """Presence and frequency penalties are of generated tokens; the repetition penalty is of all."""
    logits = np.asarray([1.0, 1.0, -1.0], np.float32)
    prompt, generated = History((0, 2), 2), History((0, 2), 0)
    for sampling in (Sampling(1.0, presence_penalty=1.0), Sampling(1.0, frequency_penalty=1.0)):
        assert scores(logits, sampling, prompt).tolist() == [1.0, 1.0, -1.0]
        assert scores(logits, sampling, generated).tolist() == [0.0, 1.0, -2.0]
    for text in (prompt, generated):
        assert scores(logits, Sampling(1.0, repetition_penalty=2.0), text).tolist() == [0.5, 1.0, -2.0]


def test_greedy_honours_all_that_comes_before_the_temperature() -> None:
    """At temperature 0 the choice is the argmax of the adjusted logits, lowest id on ties."""
    logits = np.asarray([3.0, 2.0, 1.0, 0.0], np.float32)
    text = History((1, 0, 0), 1, (0,))
    for sampling, expected in (
        (Sampling(), 0),
        (Sampling(logit_bias=((3, 4.0),)), 3),
        (Sampling(logit_bias=((3, 3.0),)), 0),
        (Sampling(repetition_penalty=4.0), 2),
        (Sampling(presence_penalty=1.5), 1),
        (Sampling(frequency_penalty=0.75), 1),
        (Sampling(min_tokens=3), 1),
        (Sampling(min_tokens=2), 0),
    ):
        assert pick(logits, sampling, 3, text) == expected == choose(logits, sampling, 3, text).token
        assert law(logits, sampling, text).tolist() == [float(token == expected) for token in range(4)]


def test_least_length_never_leaves_nothing() -> None:
    """Where every id is a stop id, none is suppressed."""
    logits = logits_of(1, 3)
    text = History((0,), 1, (0, 1, 2))
    assert law(logits, Sampling(1.0, min_tokens=5), text).tolist() == law(logits, Sampling(1.0)).tolist()


@pytest.mark.parametrize(
    ("dials", "field"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": 1e-308}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"min_p": 1.01}, "min_p"),
        ({"min_p": float("nan")}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 101.0}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 2.5}, "min_tokens"),
        ({"logit_bias": ((1, 100.5),)}, "logit_bias"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((1, 1.0), (1, 2.0))}, "logit_bias"),
        ({"logit_bias": ((1, float("nan")),)}, "logit_bias"),
        ({"logit_bias": tuple((n, 0.5) for n in range(MAX_BIASES + 1))}, "logit_bias"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(dials: dict[str, Any], field: str) -> None:
    """Out of range, not a number, or said twice: InvalidField with the field's path."""
    with pytest.raises(InvalidField) as refused:
        Sampling(**dials)
    assert refused.value.field == f"sampling.{field}"


@pytest.mark.parametrize("truncation", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.1}])
@pytest.mark.parametrize("temperature", [LEAST_TEMPERATURE, 1000.0])
def test_at_the_ends_of_the_temperatures_there_still_is_a_law(
    temperature: float, truncation: dict[str, Any]
) -> None:
    """Under the largest logits, biases and penalties there are, all numbers stay finite and the choice is possible."""
    logits = np.asarray([3e38, -3e38, 3e38, 0.0], np.float32)
    sampling = Sampling(temperature, logit_bias=((1, 100.0),), repetition_penalty=0.01, **truncation)
    text = History((0, 1), 0)
    with np.errstate(divide="raise", invalid="raise"):
        found = law(logits, sampling, text)
        chosen = choose(logits, sampling, 2, text)
    assert float(np.sum(found)) == pytest.approx(1.0) and found[chosen.token] > 0.0


def test_biases_are_a_set() -> None:
    """Their order makes no difference, not even to equality: a turn sent and a turn kept are the same turn."""
    assert Sampling(logit_bias=((5, 1), (2, -1.0))) == Sampling(logit_bias=((2, -1.0), (5, 1.0)))


@pytest.mark.parametrize("name", ["repetition", "presence", "frequency", "least_length"])
def test_a_law_without_its_text_is_refused(name: str) -> None:
    """What depends on the text before is never computed without it, nor at another position."""
    sampling = Sampling(0.7, **EACH[name])
    assert sampling.needs_history
    with pytest.raises(ValueError, match="text before"):
        law(logits_of(0), sampling)
    with pytest.raises(ValueError, match="after a text of 7"):
        choose(logits_of(0), sampling, 8, TEXT)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("names", [("bias",), ("repetition",), ("min_p",), ("top_k", "min_p"), tuple(EACH)])
def test_rounding_never_changes_a_choice_that_is_no_near_tie(
    names: tuple[str, ...], temperature: float
) -> None:
    """Logits moved by 1e-5 give the same token at every position that does not report a near tie, warps or not."""
    dials = {dial: value for name in names for dial, value in EACH[name].items()}
    clear = 0
    for trial in range(300):
        rng = np.random.default_rng((5, trial))
        text = History(tuple(rng.integers(0, 40, 20).tolist()), 8, (0, 7))
        sampling = Sampling(temperature, seed=trial, **dials)
        logits = logits_of(trial, 40).astype(np.float64)
        moved = logits + rng.uniform(-1e-5, 1e-5, 40)
        choice = choose(logits, sampling, 20, text)
        if not choice.near_tie():
            clear += 1
            assert pick(moved, sampling, 20, text) == choice.token
    assert clear > 260


def test_near_ties_are_seen_at_min_p_and_measured_against_the_logits() -> None:
    """An id at min_p's edge is a near tie if it could win; a large bias makes no near tie of a clear choice."""
    logits = np.log(np.asarray([0.6, 0.2, 0.2]))
    at_edge = [
        choose(logits, Sampling(1.0, seed=seed, min_p=1 / 3 + 1e-9), 0).near_tie() for seed in range(40)
    ]
    free = [pick(logits, Sampling(1.0, seed=seed), 0) for seed in range(40)]
    assert at_edge == [token != 0 for token in free] and any(at_edge)
    clear = choose(np.asarray([1.0, 1.05, 0.0]), Sampling(logit_bias=((0, 100.0), (1, 100.0))), 0)
    assert clear.token == 1 and not clear.near_tie()


def test_log_probs_are_those_of_both_laws() -> None:
    """Raw is of the logits alone, warped of the law that chose; never above 0, and -inf outside the support."""
    sampling = Sampling(0.7, **ALL)
    logits = logits_of(4)
    raw, warped = law(logits, Sampling(1.0)), law(logits, sampling, TEXT)
    for token in range(VOCABULARY):
        told = log_probs(logits, sampling, token, TEXT)
        assert told.raw == pytest.approx(math.log(raw[token]), rel=1e-6)
        assert told.warped == (
            pytest.approx(math.log(warped[token]), rel=1e-6) if warped[token] else -math.inf
        )
    sure = log_probs(np.asarray([0.0, 9.0]), Sampling(), 1)
    assert sure.warped == 0.0 and -1e-3 < sure.raw < 0.0


def test_a_few_entries_are_adjusted_as_in_the_whole_vocabulary() -> None:
    """Renumbered to the ids that are known, sampling and text change their logits just as among all ids."""
    sampling = Sampling(0.7, **{name: value for name, value in ALL.items() if name[:3] not in ("top", "min")})
    for trial in range(40):
        rng = np.random.default_rng((8, trial))
        logits = logits_of(trial).astype(np.float64)
        ids = np.sort(rng.choice(VOCABULARY, 5, replace=False))
        text = History(tuple(rng.integers(0, VOCABULARY, 9).tolist()), 3, (0, 7))
        few, short = among(ids, replace(sampling, min_tokens=7), text)
        whole = adjusted(logits, replace(sampling, min_tokens=7), text)
        assert (adjusted(logits[ids], few, short) == whole[ids]).all()
    assert among(ids, Sampling(0.7), None) == (Sampling(0.7), None)


def test_input_is_never_written_to() -> None:
    """Logits are shared between nodes: no warp changes them."""
    for names in itertools.combinations(EACH, 2):
        dials = {dial: value for name in names for dial, value in EACH[name].items()}
        logits = logits_of(3).astype(np.float64)
        logits.setflags(write=False)
        choose(logits, Sampling(0.9, **dials), TEXT.position, TEXT)
