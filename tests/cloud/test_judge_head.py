"""Laws of the judge's head: scores mean one thing under either polarity, and a file that does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.cloud.judge.head import Feature, JudgeHead, Polarity, Position, sigmoid
from outrider.shared.errors import ConfigError

TARGET = "ab" * 32


def make_head(**changes: Any) -> JudgeHead:
    """A head of three weights."""
    settings: dict[str, Any] = {
        "weight": np.array([1.0, -2.0, 0.5]),
        "bias": 0.25,
        "delta": 0.6,
        "target": TARGET,
        "validation_auc": 0.8,
        "data_hash": "cd" * 32,
        "class_weight": 4.0,
        "c": 1e-3,
        **changes,
    }
    return JudgeHead(**settings)


STATES = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)


def test_a_score_is_the_chance_of_being_good_under_either_polarity() -> None:
    """Weights fitted on "bad" labels, said to be so, give the scores of their negatives fitted on "good" ones."""
    good = make_head()
    bad = make_head(weight=-good.weight, bias=-good.bias, polarity=Polarity.BAD)
    expected = 1 / (1 + np.exp(-(STATES.astype(np.float64) @ good.weight + 0.25)))
    np.testing.assert_allclose(good.score(STATES), expected, atol=1e-12)
    np.testing.assert_allclose(bad.score(STATES), expected, atol=1e-12)
    assert (good.keeps(STATES) == bad.keeps(STATES)).all()
    # Mistaken for the other polarity, a head would keep what it should refuse.
    wrong = make_head(polarity=Polarity.BAD)
    np.testing.assert_allclose(wrong.score(STATES), 1 - expected, atol=1e-12)


def test_a_token_is_kept_from_the_threshold_on() -> None:
    """The threshold itself is kept; another threshold can be asked for."""
    head = make_head(weight=np.zeros(3), bias=0.0, delta=0.5)
    assert head.keeps(STATES).all()
    assert not head.keeps(STATES, 0.5000001).any()
    assert head.score(STATES[0]).shape == ()


def test_states_of_another_width_are_refused() -> None:
    """ValueError, not a broadcast."""
    with pytest.raises(ValueError, match="wide"):
        make_head().score(np.zeros((2, 4)))


def test_extreme_states_give_zero_and_one() -> None:
    """No overflow."""
    np.testing.assert_array_equal(sigmoid(np.array([-1e9, 0.0, 1e9])), [0.0, 0.5, 1.0])


def test_a_saved_head_is_the_same_head(tmp_path: Path) -> None:
    """Every field survives, and nothing else is in the file."""
    head = make_head(feature=Feature.POSTNORM, position=Position.PREVIOUS, record={"auc": [0.8, 0.7, 0.9]})
    path = tmp_path / "deep" / "head.json"
    head.save(path)
    read = JudgeHead.load(path, target=TARGET, hidden=3, feature=Feature.POSTNORM, position=Position.PREVIOUS)
    np.testing.assert_array_equal(read.weight, head.weight)
    for name in ("bias", "delta", "target", "feature", "position", "polarity", "record", "data_hash", "c"):
        assert getattr(read, name) == getattr(head, name)
    assert [one.name for one in path.parent.iterdir()] == ["head.json"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("target", {"target": "00" * 32}),
        ("hidden", {"hidden": 4}),
        ("feature", {"feature": Feature.POSTNORM}),
        ("position", {"position": Position.PREVIOUS}),
    ],
)
def test_a_head_of_something_else_is_refused_by_the_field(
    tmp_path: Path, name: str, expected: dict[str, Any]
) -> None:
    """The message names what differs and the option that named the file."""
    path = tmp_path / "head.json"
    make_head().save(path)
    with pytest.raises(ConfigError, match=rf"--judge-head: head.json: {name}: the head is for"):
        JudgeHead.load(path, **expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", 2),
        ("weight", []),
        ("weight", [1.0, "2"]),
        ("weight", [1.0, float("nan")]),
        ("bias", None),
        ("bias", True),
        ("delta", float("inf")),
        ("feature", "layer3"),
        ("position", 0),
        ("polarity", "up"),
        ("target", "ab"),
        ("data_hash", 5),
        ("record", []),
        ("c", "1"),
        ("extra", 1),
    ],
)
def test_a_malformed_head_is_refused_by_the_field(tmp_path: Path, name: str, value: object) -> None:
    """A wrong type, a number that is none, an unknown choice or an unknown field: each is named."""
    path = tmp_path / "head.json"
    make_head().save(path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, name: value}))
    with pytest.raises(ConfigError, match=f"head.json: {name}: "):
        JudgeHead.load(path)


def test_a_missing_field_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    """Polarity is never guessed; what is no JSON object is no head."""
    path = tmp_path / "head.json"
    make_head().save(path)
    content = json.loads(path.read_text())
    del content["polarity"]
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="polarity: is missing"):
        JudgeHead.load(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="JSON object"):
        JudgeHead.load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        JudgeHead.load(tmp_path / "none.json")
