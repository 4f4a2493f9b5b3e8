"""The table of rules, on a tiny target: which lines it has, what they hold, and that they are measured once."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from outrider.cloud.rules import KNOWN, RULES
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.laws import SparseLaw
from tests.tiny_bundle import make_bundle


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path) -> Any:
    """The program; benchmarks are scripts and find each other by path."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    return importlib.import_module("rules")


def test_every_rule_has_a_line(rules: Any) -> None:
    """All that need no head (one -uno stands for the others), drafted as the rule wants; the judge if there is one."""
    found = rules.cases(judge=True)
    left = {"lenience-uno", "top-m-uno", "relative-margin-uno"}
    assert {case.rule for case in found} == ({*KNOWN.names, "judge"} - left)
    for case in found[:-1]:
        drawing = case.budget.drawing
        assert (drawing is not None) is RULES[case.rule].needs_laws
        assert drawing is None or drawing.kind in RULES[case.rule].drafts or case.shape == "chain"
    assert "judge" not in {case.rule for case in rules.cases(judge=False)}


def test_bytes_are_those_of_the_frame(rules: Any) -> None:
    """Four for an id; with laws six an entry and one for its length more, and a few for the fields around them."""
    assert 12 <= rules.bytes_up(Draft.chain((1, 2, 3))) <= 12 + 4
    law = SparseLaw(3, (1, 2, 3, 4), (2, 2, 2, 2))
    drawn = Draft.chain((1, 2, 3), DraftKind.SAMPLED, (law,) * 3)
    assert 12 + 3 * 25 <= rules.bytes_up(drawn) <= 12 + 3 * 25 + 20


def test_rows_are_measured_once_and_written_as_a_table(
    rules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cost, bytes and tau of a chosen and a drawn tree and a lossy chain; a second start measures nothing."""
    make_bundle(tmp_path)
    prompts = tmp_path / "qa.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Who is {n}?"}) + "\n" for n in range(2)))
    out = tmp_path / "out" / "rules.json"
    words = ["rules", "--prompts", str(prompts), "--target", str(tmp_path / "target"), "--dtype", "float32"]
    words += ["--drafter", str(tmp_path / "weights"), "--tokens", "6", "--context", "20", "--out", str(out)]
    words += ["--temperature", "1", "--only", "coupled, tree", "--only", "traversal, tree"]
    monkeypatch.setattr("sys.argv", [*words, "--only", "overaccept, chain"])
    rules.Rules(rules.parse()).run()
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["name"] for row in rows] == ["coupled, tree", "traversal, tree", "overaccept, chain"]
    for row in rows:
        (run,) = row["runs"]
        assert row["worst_ms"] > 0 and row["mean_ms"] > 0 and row["pass_ms"] > 0 and row["bytes_up"] > 4
        assert run["interval"][0] <= run["tau"] <= run["interval"][1] and run["tau"] >= 1
    audit = rows[2]["runs"][0]["audit"]
    assert audit["rejection"] + audit["loss"] == pytest.approx(audit["tv"])
    table = out.with_suffix(".md").read_text(encoding="utf-8")
    assert "| overaccept, chain (lossy) |" in table and "tokens of context" in table
    monkeypatch.setattr(rules.Rules, "_row", lambda self, case: pytest.fail("measured again"))
    rules.Rules(rules.parse()).run()
