"""The disconnection experiment on a tiny target, and its program: exactness, resuming, and what the page says."""

from __future__ import annotations

import argparse
import importlib
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from outrider.client.drafter import Budget, Proposal, SequenceDrafter
from outrider.cloud.evaluate.contenders import Contender
from outrider.cloud.evaluate.disconnection import Disconnection, Plan
from outrider.cloud.evaluate.scoring.gsm8k import NumberTask
from outrider.cloud.evaluate.scoring.sandbox import Verdict
from outrider.cloud.evaluate.scoring.tasks import Scorer, Task
from outrider.cloud.evaluate.texts import TextStore
from outrider.cloud.target import load_target
from tests.tiny_bundle import make_bundle

TASKS = [NumberTask(f"T/{n}", f"What is {n} and {n}?", Decimal(2 * n)) for n in range(3)]
PLAN = Plan(tokens=24, samples=2)


class Lengths(Scorer):
    """Answers are right by their length: verdicts that differ without a target that can do anything."""

    def __init__(self) -> None:
        pass

    def score(self, task: Task, answer: str) -> Verdict:
        """Even ones are."""
        return Verdict(len(answer) % 2 == 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/, weights/, and a few tasks of both kinds."""
    folder = tmp_path_factory.mktemp("disconnection")
    make_bundle(folder)
    rows = [{"question": f"How many are {n}?", "answer": f"#### {n}"} for n in range(4)]
    (folder / "number.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = {"prompt": "def f(x):\n", "entry_point": "f", "test": "def check(c):\n    assert c(1) == 1\n"}
    rows = [{"task_id": f"C/{n}", **code, "prompt": f"# {n}\ndef f(x):\n"} for n in range(3)]
    (folder / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Bundles and records of a test are its own; benchmarks are scripts and find each other by path."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(root / "benchmarks"))


class Parrot(SequenceDrafter):
    """Says the last token again, as small random targets often do."""

    def propose(self, budget: Budget) -> Proposal:
        """As often as is asked."""
        count = budget.max_nodes
        return self.count(Proposal.chain(self.ids[-1:] * count, [-1.0] * count))


def experiment(folder: Path, tmp_path: Path) -> Disconnection:
    """The tiny target with a drafter that is sometimes right."""
    parrot = Contender(name="parrot", kind="parrot", make=Parrot)
    target = load_target(folder / "target")
    return Disconnection(target, [parrot], PLAN, Lengths(), tmp_path / "texts")


def test_reconciling_is_exact_and_texts_are_not_kept(folder: Path, tmp_path: Path) -> None:
    """Every text written alone is resolved to the target's own by one pass of it; the states are gone afterwards."""
    records = list(experiment(folder, tmp_path).greedy(TASKS))
    assert [record["task"] for record in records] == ["T/0", "T/1", "T/2"]
    written = 0
    for record in records:
        assert len(record["nll"]) == record["answer"] and len(record["cuts"]) == len(PLAN.shares)
        for cut in record["cuts"]:
            found = cut["alone"]["parrot"]
            assert cut["cut"] + found["drafted"] <= PLAN.tokens
            assert found["kept"] <= found["drafted"]
            if found["drafted"]:
                assert found["exact"] is True
                assert len(found["agrees"]) == len(found["nll"]) == found["drafted"]
                assert found["agrees"][: found["kept"]] == "1" * found["kept"]
                written += found["drafted"]
    assert written > 20
    assert list((tmp_path / "texts").iterdir()) == []


def test_another_targets_answer_is_not_exact(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: judged by logits that were tampered with, the same texts are reported as not exact."""
    true_logits = TextStore.logits

    def tampered(self: TextStore, prefix: Any, line: Any) -> Any:
        logits = true_logits(self, prefix, line).clone()
        return logits.roll(1, dims=-1)

    monkeypatch.setattr(TextStore, "logits", tampered)
    records = list(experiment(folder, tmp_path).greedy(TASKS[:1]))
    found = [cut["alone"]["parrot"] for cut in records[0]["cuts"] if cut["alone"]["parrot"]["drafted"]]
    assert found and not any(one["exact"] for one in found)


def test_samples_have_seeds_of_their_own(folder: Path, tmp_path: Path) -> None:
    """One record a task; each sample is the one that its seed alone gives."""
    run = experiment(folder, tmp_path)
    (record, other) = run.sampled(TASKS[:2])
    assert [record["task"], other["task"], len(record["samples"])] == ["T/0", "T/1", 2]
    run.plan = replace(PLAN, samples=1, seed=PLAN.seed + 1)
    (second,) = run.sampled(TASKS[:1])
    assert _untimed(second["samples"][0]) == _untimed(record["samples"][1])
    assert _untimed(record["samples"][0]) != _untimed(record["samples"][1])


def _untimed(record: Any) -> Any:
    text = json.dumps(record)
    return json.loads(text, object_hook=lambda row: {k: v for k, v in row.items() if k != "step_ms"})


def options(module: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> argparse.Namespace:
    """A command line as the program reads it."""
    monkeypatch.setattr("sys.argv", ["benchmark", *words])
    return module.parse()


def words(folder: Path, tmp_path: Path) -> list[str]:
    """A small run."""
    return [
        *("--prompts", str(folder / "number.jsonl"), "--prompts", str(folder / "code.jsonl")),
        *("--target", str(folder / "target"), "--dtype", "float32", "--drafter", f"moa={folder / 'weights'}"),
        *("--per-set", "2", "--sampled", "1", "--samples", "2", "--tokens", "12", "--step-ms", "50"),
        *("--work", str(tmp_path / "run"), "--out", str(tmp_path / "out.json"), "--weak-sandbox"),
    ]


def test_the_program_resumes_and_says_what_it_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without time nothing is begun; a torn record is measured again, a finished run nothing; then the page."""
    program: Any = importlib.import_module("disconnection")
    given = words(folder, tmp_path)
    program.Run(options(program, monkeypatch, *given, "--minutes", "0", "--no-figures")).run()
    assert json.loads((tmp_path / "out.json").read_text())["sets"] == {}
    program.Run(options(program, monkeypatch, *given)).run()
    (records,) = (tmp_path / "run").glob("*.jsonl")
    whole = records.read_bytes()
    result = json.loads((tmp_path / "out.json").read_text())
    assert {kind: found["tasks"] for kind, found in result["sets"].items()} == {"gsm8k": 2, "humaneval": 2}
    assert result["sets"]["humaneval"]["sampled_tasks"] == 1
    page = (tmp_path / "out.md").read_text()
    for said in (
        "cut at 25 %",
        "moa writes on alone",
        "50 ms a token (assumed)",
        "pass@1",
        "moa: 100 [100, 100] %",
    ):
        assert said in page
    assert (tmp_path / "out-agreement.svg").is_file() and (tmp_path / "out-scores.png").is_file()
    records.write_bytes(whole[:-20])
    program.Run(options(program, monkeypatch, *given, "--no-figures")).run()
    assert _untimed([json.loads(line) for line in records.read_bytes().splitlines()]) == _untimed(
        [json.loads(line) for line in whole.splitlines()]
    )
    monkeypatch.setattr(program.Disconnection, "_answered", lambda *_, **__: pytest.fail("measured again"))
    program.Run(options(program, monkeypatch, *given, "--no-figures")).run()
    assert (tmp_path / "out.md").read_text().replace(_commit(tmp_path), "") == page.replace(
        _commit(tmp_path), ""
    )


def _commit(tmp_path: Path) -> str:
    return str(json.loads((tmp_path / "out.json").read_text())["machine"]["commit"])


def test_a_sample_is_drawn_and_grows(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tasks are the same ones and others, in an order that the seed draws."""
    program: Any = importlib.import_module("disconnection")
    run = program.Run.__new__(program.Run)
    run.options = options(program, monkeypatch, *words(folder, tmp_path))
    tasks = program.TaskSet("gsm8k", tuple(NumberTask(f"T/{n}", "?", Decimal(n)) for n in range(20)))
    assert run.order(tasks, 12)[:5] == run.order(tasks, 5) != list(tasks.tasks[:5])
    assert [chunk for _, chunk in program.turns([(tasks, [1] * 10), (tasks, [2])])] == [[1] * 8, [2], [1, 1]]
