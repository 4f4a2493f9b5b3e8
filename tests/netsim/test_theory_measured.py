"""The theorems on a measured pair: what the file may hold, and that its predictions are the exact ones."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory.batch import ENDLESS, batched
from outrider.netsim.theory.chains import Process
from outrider.netsim.theory.measured import RuleUsed, Text, read
from outrider.netsim.theory.predict import batch_rejections, predict, window_counts
from outrider.netsim.theory.rejections import expected_rejections, windowed
from outrider.netsim.theory.sequence import account, uno_rule
from outrider.netsim.theory.simulate import MOST_DEVIATIONS
from tests.netsim.theory_laws import HEADER, entry, rule_text, sparse_chain, target_text, write

Lines = list[dict[str, Any]]


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def every_text(chain: Process, path: Path) -> list[tuple[float, Text]]:
    """All texts of a small chain, read back from a file, with the target's probability of each."""
    lines, weights = [], []
    for tokens in product(range(chain.vocabulary), repeat=chain.horizon):
        state, weight, positions = 0, 1.0, []
        for step, token in zip(chain.steps, tokens, strict=True):
            pair = type(step)(step.target[state], step.draft[state])
            weight *= float(pair.target[token])
            positions.append(entry(pair, token, None))
            state = token
        lines.append({"prompt": "all", "rule": None, "positions": positions})
        weights.append(weight)
    return list(zip(weights, read(write(path, lines)).texts, strict=True))


def test_the_mean_over_texts_is_the_theorem(tmp_path: Path) -> None:
    """Summed over all 256 texts with their probabilities, what is computed along each gives Theorems 1, 3 and windows.

    The draft says two tokens of four, so the file holds half of each law, and nothing is lost by that.
    """
    chain = sparse_chain(rng(1), states=4, horizon=4, drafted=2)
    texts = every_text(chain, tmp_path / "laws.jsonl")
    for batch in (1, 2, 5, ENDLESS):
        along = sum(weight * batch_rejections(text, batch) for weight, text in texts)
        assert along == pytest.approx(batched(chain, batch).rejections, abs=1e-9)
    for window in (1, 2, 4):
        counts = sum(weight * np.array(window_counts(text, window)) for weight, text in texts)
        exact = windowed(chain, window)
        assert counts == pytest.approx(np.array([exact.rejections, exact.rounds]), abs=1e-9)


@pytest.fixture(scope="module")
def chain() -> Process:
    return sparse_chain(rng(2), states=6, horizon=12, drafted=3)


@pytest.fixture(scope="module")
def laws(chain: Process, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = rng(3)
    lines = [target_text(chain, source, f"prompt {n % 150}") for n in range(300)]
    for epsilon, replace in ((0.0, "opt"), (0.1, "opt"), (0.1, "uno")):
        lines += [rule_text(chain, source, f"prompt {n}", epsilon, replace) for n in range(300)]
    return write(tmp_path_factory.mktemp("laws") / "laws.jsonl", lines)


def test_predictions_of_a_sampled_file(chain: Process, laws: Path) -> None:
    """300 texts in 150 prompts: each prediction within 4.5 standard errors of the exact value of the chain."""
    found = predict(read(laws), batches=(1, 2, 4), windows=(1, 4), epsilons=(0.0, 0.1))
    assert (found.prompts, found.texts, found.tokens) == (150, 300, 3600)
    assert abs(found.theorem1.z(expected_rejections(chain))) < MOST_DEVIATIONS
    assert found.batches["1"].mean == pytest.approx(found.theorem1.mean, abs=1e-9)
    for batch in (2, 4):
        assert abs(found.batches[str(batch)].z(batched(chain, batch).rejections)) < MOST_DEVIATIONS
    for window in (1, 4):
        exact, one = windowed(chain, window), found.windows[str(window)]
        assert abs(one.rejections.z(exact.rejections)) < MOST_DEVIATIONS
        assert abs(one.rounds.z(exact.rounds)) < MOST_DEVIATIONS
        assert one.tokens_per_round == pytest.approx(exact.tokens_per_round, rel=0.05)
    assert found.one_step["0"]["rejection"] == pytest.approx(found.rejected_share)
    step = found.one_step["0.1"]
    assert step["rejection"] + step["loss"] == pytest.approx(found.rejected_share)
    assert step["uno_loss"] > step["loss"]


def test_what_real_runs_paid(chain: Process, laws: Path) -> None:
    """Speculative decoding agrees with Theorem 1, OPT's account closes, UNO's does not: its gap is the exact one."""
    found = predict(read(laws), batches=(1,), windows=(1,), epsilons=(0.1,))
    standard, best, other = found.rules
    assert [paid.rule for paid in (standard, best, other)] == [
        RuleUsed(0.0, "opt"),
        RuleUsed(0.1, "opt"),
        RuleUsed(0.1, "uno"),
    ]
    assert found.standard_against_theorem1 is not None
    assert abs(found.standard_against_theorem1) < MOST_DEVIATIONS
    assert all(abs(paid.surprise.z()) < MOST_DEVIATIONS for paid in found.rules)
    assert standard.loss.mean == pytest.approx(0, abs=1e-9)
    assert abs(best.gap.z()) < MOST_DEVIATIONS
    assert other.gap.z() > 10 and abs(other.gap.z(account(chain, uno_rule(0.1)).gap)) < MOST_DEVIATIONS


def test_a_run_that_breaks_its_rule_is_noticed(chain: Process, tmp_path: Path) -> None:
    """Texts written with ε = 0.1 and labelled ε = 0 reject too seldom, by more than 4.5 standard errors."""
    source = rng(4)
    lines = [target_text(chain, source, f"prompt {n}") for n in range(100)]
    for n in range(100):
        line = rule_text(chain, source, f"prompt {n}", 0.1, "opt")
        lines.append({**line, "rule": {"epsilon": 0.0, "replace": "opt"}})
    found = predict(read(write(tmp_path / "laws.jsonl", lines)), batches=(1,), windows=(1,), epsilons=(0,))
    assert found.rules[0].surprise.z() < -MOST_DEVIATIONS
    assert found.standard_against_theorem1 is not None
    assert found.standard_against_theorem1 < -MOST_DEVIATIONS


def test_untested_positions_are_left_out(tmp_path: Path) -> None:
    """A bonus token (rejected: null) adds to no sum, and no comparison with Theorem 1 is made then."""
    position = {"draft": [128, 128], "target": [0.75, 0.25], "at": 1, "rejected": True}
    bonus = {**position, "rejected": None}
    rule = {"epsilon": 0.0, "replace": "opt"}
    lines: Lines = [
        {"prompt": "one", "rule": None, "positions": [bonus]},
        {"prompt": "one", "rule": rule, "positions": [position, bonus]},
    ]
    found = predict(read(write(tmp_path / "laws.jsonl", lines)), batches=(1,), windows=(1,), epsilons=(0,))
    assert found.rules[0].distance.mean == pytest.approx(0.25) and found.rules[0].rejected.mean == 1
    assert found.standard_against_theorem1 is None


def test_compressed_files_read_the_same(laws: Path, tmp_path: Path) -> None:
    """`.gz` is read as such; a plain file named so is refused."""
    packed = tmp_path / "laws.jsonl.gz"
    packed.write_bytes(gzip.compress(laws.read_bytes()))
    assert len(read(packed).texts) == len(read(laws).texts) == 1200
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(packed.read_bytes()[:2000])
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_bytes(laws.read_bytes())
    for bad in (cut, plain):
        with pytest.raises(BadConfig, match=bad.name):
            read(bad)


GOOD = {"draft": [200, 56], "target": [0.5, 0.25], "at": 0, "rejected": None}
RULE = {"epsilon": 0.1, "replace": "opt"}


def text(position: object = GOOD, rule: object = None) -> dict[str, Any]:
    return {"prompt": "one", "rule": rule, "positions": [position]}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "no text"),
        ([{"prompt": "one", "positions": []}], "positions"),
        ([{"prompt": 3, "positions": [GOOD]}], "prompt"),
        ([{**text(), "colour": "red"}], "unknown: colour"),
        ([text(rule={"epsilon": 0.1})], "rule"),
        ([text(rule={"epsilon": -1, "replace": "opt"})], "rule.epsilon"),
        ([text(rule={"epsilon": True, "replace": "opt"})], "rule.epsilon"),
        ([text(rule={"epsilon": 0.1, "replace": "best"})], "rule.replace"),
        ([text([1, 2])], r"positions\[0\]"),
        ([text({**GOOD, "extra": 1})], "expected draft, target, at and rejected"),
        ([text({**GOOD, "draft": []})], "draft"),
        ([text({**GOOD, "draft": [256, 0]})], "draft"),
        ([text({**GOOD, "draft": [200.0, 56.0]})], "draft"),
        ([text({**GOOD, "draft": [200, 57]})], "257"),
        ([text({**GOOD, "target": [0.5]})], "target"),
        ([text({**GOOD, "target": [0.9, 0.2]})], "target"),
        ([text({**GOOD, "target": [-0.1, 0.2]})], "target"),
        ([text({**GOOD, "target": [float("nan"), 0.2]})], "target"),
        ([text({**GOOD, "at": 2})], "at"),
        ([text({**GOOD, "at": True})], "at"),
        ([text({**GOOD, "rejected": True})], "rejected"),
        ([text({**GOOD, "rejected": 0}, RULE)], "rejected"),
        ([text({**GOOD, "at": -1, "rejected": False}, RULE)], "rejected"),
        ([text({**GOOD, "target": [0.0, 0.25]})], "probability 0"),
    ],
)
def test_a_bad_line_is_named(lines: Lines, why: str, tmp_path: Path) -> None:
    """Every field is checked before anything is computed; the message names the file, the line and the field."""
    path = write(tmp_path / "laws.jsonl", lines)
    with pytest.raises(BadConfig, match=why) as caught:
        read(path)
    assert caught.value.field == "pair" and str(path) in str(caught.value)
    if lines:
        assert "line 2" in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda header: {**header, "format": "laws"}, "format"),
        (lambda header: {**header, "version": 2}, "version"),
        (lambda header: {**header, "bits": 0}, "bits"),
        (lambda header: {**header, "bits": True}, "bits"),
        (lambda header: {**header, "target": None}, "target"),
    ],
)
def test_a_bad_first_line_is_named(spoil: Callable[[Any], Any], why: str, tmp_path: Path) -> None:
    """A file of something else, or of another version, is refused by its first line."""
    with pytest.raises(BadConfig, match=f"line 1: .*{why}"):
        read(write(tmp_path / "laws.jsonl", [text()], spoil(HEADER)))


def test_files_that_are_none(tmp_path: Path) -> None:
    """Missing, empty, binary, no JSON, JSON of another shape, and no text of the target: each is said."""
    contents = {
        "empty": (b"", "empty"),
        "binary": (bytes(range(256)), "text file"),
        "words": (b"hello\n", "not JSON"),
        "list": (b"[1]\n", "one JSON object"),
        "deep": (b"[" * 100_000, "not JSON"),
    }
    for name, (content, why) in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BadConfig, match=why):
            read(path)
    with pytest.raises(BadConfig, match="cannot read"):
        read(tmp_path / "nowhere")
    only_rule = write(tmp_path / "rule.jsonl", [text({**GOOD, "rejected": True}, RULE)])
    with pytest.raises(BadConfig, match="text of the target alone"):
        predict(read(only_rule), batches=(1,), windows=(1,), epsilons=(0,))


def test_the_example_in_the_documentation_is_a_file_of_laws(root: Path, tmp_path: Path) -> None:
    """What docs/theory.md shows can be read, and says what the page says about it."""
    page = (root / "docs" / "theory.md").read_text(encoding="utf-8")
    path = tmp_path / "example.jsonl"
    path.write_text(page.partition("```json\n")[2].partition("```")[0], encoding="utf-8")
    found = predict(read(path), batches=(1,), windows=(1,), epsilons=(0.1,))
    assert (found.texts, found.tokens, len(found.rules)) == (1, 2, 1)
    assert found.theorem1.mean == pytest.approx(0.375)
