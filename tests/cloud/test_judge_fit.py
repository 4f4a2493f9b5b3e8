"""Laws of fitting a judge: what is planted is found, what is not there is said to be missing, thresholds hold."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from outrider.cloud.judge.families import Split
from outrider.cloud.judge.features import CandidateStates, States
from outrider.cloud.judge.fit import FitSetting, delta_for_recall, fit, verdict
from outrider.cloud.judge.head import Feature, JudgeHead, Polarity, Position
from outrider.cloud.judge.logistic import fit_logistic, platt
from outrider.cloud.judge.measures import Measures
from outrider.cloud.judge.mine import Label, Source
from outrider.cloud.judge.records import Row
from outrider.cloud.judge.stats import Interval
from outrider.cloud.judge.table import folds, parts, table
from outrider.shared.errors import ConfigError

HIDDEN = 12
DIRECTION = np.random.default_rng(99).normal(size=HIDDEN)
DIRECTION /= np.linalg.norm(DIRECTION)
QUICK = FitSetting(class_weights=(1.0, 4.0), cs=(1e-3, 1e-2, 1e-1))


def make_rows(
    strength: float, seed: int = 1, prompts: int = 60, where: str = "candidate.prenorm"
) -> list[Row]:
    """Labels of two families; in the state ``where`` good and bad ones lie ``strength`` sd apart along `DIRECTION`."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(prompts):
        family = ("sums", "words")[index % 2]
        split = (Split.TRAIN, Split.TRAIN, Split.VALIDATION)[index // 2 % 3]
        template = f"{family}/{split}{index // 6 % 3}"
        labels = tuple(_labels(rng, strength, where))
        rows.append(Row(index, family, template, split, f"{seed}-{index}", labels))
    return rows


def _labels(rng: np.random.Generator, strength: float, where: str) -> Iterator[Label]:
    for place in range(6):
        good = bool(rng.random() < 0.6)
        shift = strength * (0.5 if good else -0.5) * DIRECTION
        four = {
            name: (3.0 + 2.0 * (rng.normal(size=HIDDEN) + (shift if name == where else 0.0))).astype(
                np.float32
            )
            for name in ("candidate.prenorm", "candidate.postnorm", "previous.prenorm", "previous.postnorm")
        }
        states = CandidateStates(
            States(four["candidate.prenorm"], four["candidate.postnorm"]),
            States(four["previous.prenorm"], four["previous.postnorm"]),
        )
        chance = rng.random(4)
        found = Measures(chance[0], int(9 * chance[1]), chance[2], chance[3], chance[0])
        source = Source.CORRUPTED if place == 5 else Source.MINED
        yield Label(place, 7, 8, good, source, states, found)


def fitted(rows: list[Row], setting: FitSetting = QUICK) -> JudgeHead:
    """A head of these rows."""
    return fit(rows, setting, target="ab" * 32, data_hash="cd" * 32)


def test_a_planted_direction_is_found() -> None:
    """The head scores good above bad on unseen templates, along the planted direction, and says that it learned."""
    head = fitted(make_rows(4.0))
    auc, low, _ = head.record["auc"]
    assert auc > 0.95 and low > 0.9 and head.validation_auc == auc
    cosine = float(head.weight @ DIRECTION / np.linalg.norm(head.weight))
    assert cosine > 0.8 and head.polarity is Polarity.GOOD
    assert head.record["learned"] and head.record["verdict"].startswith("learned something that none")
    fresh = table(make_rows(4.0, seed=2), Feature.PRENORM, Position.CANDIDATE)
    scores = head.score(fresh.x)
    assert scores[fresh.good].mean() > 0.8 > 0.2 > scores[~fresh.good].mean()


def test_where_nothing_is_planted_the_head_says_that_it_learned_nothing() -> None:
    """The interval of the AUC holds one half (at this seed; by design it fails to at one seed in twenty)."""
    head = fitted(make_rows(0.0))
    _, low, high = head.record["auc"]
    assert low <= 0.5 <= high
    assert not head.record["learned"] and head.record["verdict"].startswith("learned nothing")


@pytest.mark.parametrize("feature", list(Feature))
@pytest.mark.parametrize("position", list(Position))
def test_each_feature_and_position_reads_its_own_state(feature: Feature, position: Position) -> None:
    """A direction planted in one of the four states is found there and nowhere else."""
    rows = make_rows(4.0, where=f"{position}.{feature}")
    setting = FitSetting(feature=feature, position=position, class_weights=(1.0,), cs=(1e-2,))
    head = fitted(rows, setting)
    assert head.validation_auc > 0.95 and (head.feature, head.position) == (feature, position)
    other = Feature.POSTNORM if feature is Feature.PRENORM else Feature.PRENORM
    assert not fitted(
        rows, FitSetting(feature=other, position=position, class_weights=(1.0,), cs=(1e-2,))
    ).record["learned"]


def test_the_threshold_refuses_the_wanted_share_of_bad_validation_tokens() -> None:
    """At delta the saved head refuses at least 95 % of the bad ones it was calibrated on, and no more than it must."""
    rows = make_rows(2.0, prompts=120)
    head = fitted(rows)
    unseen = table(
        [row for row in rows if row.split is Split.VALIDATION], Feature.PRENORM, Position.CANDIDATE
    )
    unseen = unseen.only(unseen.mined)
    kept = head.keeps(unseen.x)
    bad = ~unseen.good
    refused = float((~kept & bad).sum() / bad.sum())
    assert 0.95 <= refused < 0.95 + 1.5 / bad.sum() + 0.05
    assert head.record["recall_of_bad"][0] == pytest.approx(refused, abs=1e-4)
    assert head.record["good_kept"][0] == pytest.approx(float(kept[unseen.good].mean()), abs=1e-4)


@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]), st.booleans()), min_size=1, max_size=40),
    st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0]),
)
def test_no_smaller_threshold_has_the_recall(labels: list[tuple[float, bool]], recall: float) -> None:
    """delta_for_recall reaches the recall, and the next score below it would not; ties fall together."""
    scores = np.array([score for score, _ in labels])
    good = np.array([one for _, one in labels])
    if good.all():
        with pytest.raises(ValueError, match="no bad"):
            delta_for_recall(scores, good, recall)
        return
    bad = scores[~good]
    delta = delta_for_recall(scores, good, recall)
    assert (bad < delta).mean() >= recall - 1e-9
    lower = [one for one in np.unique(bad) if one < delta]
    if lower:
        assert (bad < lower[-1]).mean() < recall


def test_newton_finds_the_minimum_scipy_finds() -> None:
    """Weights and bias of the penalised, weighted loss agree with L-BFGS to 1e-5."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(80, 5))
    good = rng.random(80) < 1 / (1 + np.exp(-x[:, 0]))
    weight = np.where(good, 1.0, 4.0)

    def loss(theta: np.ndarray) -> float:
        logits = x @ theta[:5] + theta[5]
        return float(0.5 * theta[:5] @ theta[:5] + 0.3 * weight @ (np.logaddexp(0, logits) - good * logits))

    found = fit_logistic(x, good, c=0.3, row_weight=weight)
    best = minimize(loss, np.zeros(6), method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-9})
    np.testing.assert_allclose(np.append(found.weight, found.bias), best.x, atol=1e-5)


def test_a_separable_set_has_a_minimum_too() -> None:
    """The penalty keeps the weights finite, whatever the start."""
    x = np.array([[-1.0], [-2.0], [1.0], [3.0]])
    good = np.array([False, False, True, True])
    found = fit_logistic(x, good, c=100.0, row_weight=np.ones(4))
    assert 1.0 < found.weight[0] < 10.0
    assert (found.logits(x) > 0).tolist() == good.tolist()
    with pytest.raises(ValueError, match="one class"):
        fit_logistic(x, np.ones(4, bool), c=1.0, row_weight=np.ones(4))


def test_platt_scaling_undoes_a_wrong_scale() -> None:
    """Of 20,000 labels drawn from sigmoid(x), logits of 3x + 1 are scaled back: a = 1/3, b = -1/3 within 0.03."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=20_000) * 2
    good = rng.random(20_000) < 1 / (1 + np.exp(-x))
    a, b = platt(3 * x + 1, good)
    assert a == pytest.approx(1 / 3, abs=0.03) and b == pytest.approx(-1 / 3, abs=0.05)
    a, b = platt(np.array([-1.0, 1.0]), np.array([False, True]))
    assert math.isfinite(a) and a > 0 and math.isfinite(b)
    # Far apart and many: Platt's targets, 1/52 and 51/52, are met, and nothing saturates.
    apart, sides = np.repeat([-40.0, 60.0], 50), np.repeat([False, True], 50)
    a, b = platt(apart, sides)
    chances = 1 / (1 + np.exp(-(a * apart + b)))
    np.testing.assert_allclose(chances, np.where(sides, 51 / 52, 1 / 52), atol=1e-4)


def test_parts_share_no_template_and_no_prompt() -> None:
    """Training and validation never meet, doubles leave validation, and a template of two splits is refused."""
    rows = make_rows(1.0)
    doubled = [*rows, Row(900, "sums", "sums/validation0", Split.VALIDATION, rows[0].prompt, rows[0].labels)]
    found = parts(doubled, (), 0)
    assert found.doubles == 1
    for pick in ("template", "prompt"):
        assert not {getattr(row, pick) for row in found.train} & {
            getattr(row, pick) for row in found.validation
        }
    crossed = [*rows, Row(901, "sums", rows[0].template, Split.VALIDATION, "new", ())]
    with pytest.raises(ConfigError, match="is in two splits"):
        parts(crossed, (), 0)


def test_folds_leave_out_whole_templates() -> None:
    """Folds are disjoint, cover all labels, and no template, or else no prompt, is in two of them."""
    data = table(make_rows(1.0), Feature.PRENORM, Position.CANDIDATE)
    for count, names in ((4, data.templates), (20, data.prompts)):
        masks = folds(data, count, 1)
        assert (np.sum(masks, axis=0) == 1).all()
        groups = [{name for name, inside in zip(names, mask, strict=True) if inside} for mask in masks]
        assert sum(map(len, groups)) == len(set(names))


def test_a_family_held_out_is_measured_apart_and_adapted_to_by_a_few_prompts() -> None:
    """Nothing of it is fitted on with adapt 0, the given number of prompts with more; its validation part stays."""
    rows = make_rows(3.0)
    without, few = parts(rows, ("words",), 0), parts(rows, ("words",), 5)
    assert not [row for row in without.train if row.family == "words"]
    assert sum(row.family == "words" for row in few.train) == 5
    assert without.held_out == few.held_out and {row.family for row in few.held_out} == {"words"}
    head = fitted(rows, FitSetting(hold_out=("words",), adapt=5, class_weights=(1.0,), cs=(1e-2,)))
    assert head.record["held_out"]["adapted_on"] == 5 and head.record["held_out"]["auc"][0] > 0.9
    with pytest.raises(ConfigError, match="--hold-out: verbs"):
        parts(rows, ("verbs",), 0)


def test_labels_of_one_class_are_refused() -> None:
    """There is nothing to learn from good tokens alone, and nothing to calibrate on."""
    rows = make_rows(1.0)
    only_good = [
        Row(r.index, r.family, r.template, r.split, r.prompt, tuple(x for x in r.labels if x.good))
        for r in rows
    ]
    with pytest.raises(ConfigError, match="no good or no bad tokens among the training labels"):
        fitted(only_good)
    with pytest.raises(ConfigError, match="no good or no bad tokens among the validation labels"):
        fitted([row for row in make_rows(1.0) if row.split is Split.TRAIN])
    with pytest.raises(ConfigError, match="no good or no bad tokens among the training labels"):
        fitted([])


def test_a_verdict_says_what_the_interval_and_the_baselines_say() -> None:
    """Above one half and above every baseline, above one half only, around one half, below it."""
    known = {"probability": 0.8, "kl": None}
    assert verdict(Interval(0.9, 0.8, 0.95), known) == "learned something that none of the baselines knows"
    assert "no more than probability knows" in verdict(Interval(0.7, 0.6, 0.8), known)
    assert "holds one half" in verdict(Interval(0.6, 0.4, 0.8), known)
    assert "below one half" in verdict(Interval(0.3, 0.2, 0.4), known)
