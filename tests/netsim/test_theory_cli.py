"""`outrider-sim theory`: what it prints and writes, and how it ends."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory import run
from outrider.netsim.theory.cli import numbers
from outrider.netsim.theory.experiments import golden_estimates
from outrider.netsim.theory.figures import FIGURES
from outrider.netsim.theory.report import Settings
from tests.netsim.program import simulator
from tests.netsim.theory_laws import rule_text, sparse_chain, target_text, write

QUICK = ("theory", "--runs", "300", "--chains", "2", "--instances", "10")


@pytest.fixture(scope="module")
def laws(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = np.random.default_rng(1)
    chain = sparse_chain(source, states=5, horizon=6, drafted=2)
    lines = [target_text(chain, source, f"prompt {n}") for n in range(40)]
    lines += [rule_text(chain, source, f"prompt {n}", 0.1, "opt") for n in range(40)]
    return write(tmp_path_factory.mktemp("laws") / "laws.jsonl", lines)


@pytest.fixture(scope="module")
def finished(
    laws: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = tmp_path_factory.mktemp("out") / "theory"
    return simulator(*QUICK, "--pair", str(laws), "--out", str(out), "--json"), out


def last(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The object on stdout's last line."""
    found = json.loads(done.stdout.splitlines()[-1])
    return dict(found)


def test_json_ends_with_the_golden_chain(finished: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    """The last line of stdout is one object: golden values, Monte Carlo within 4.5 s.e., every law holds."""
    done, _ = finished
    assert done.returncode == 0, done.stderr
    found = last(done)
    golden = {batch: round(value, 5) for batch, value in found["golden_chain"].items()}
    assert golden == {"1": 23.54526, "2": 21.34792, "4": 19.61005, "5": 19.15660}
    assert found["monte_carlo"].keys() == golden.keys()
    assert all(abs(one["z"]) < 4.5 and one["error"] > 0 for one in found["monte_carlo"].values())
    assert found["theorem3"]["floor"] == pytest.approx(15.76808, abs=1e-5)
    assert len(found["checks"]) >= 15 and all(check["holds"] for check in found["checks"])
    assert found["overacceptance"]["programmes"]["instances"] == 10
    assert found["pair"]["texts"] == 40 and found["pair"]["rules"][0]["texts"] == 40


def test_the_folder_holds_tables_and_figures(finished: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    """--out has the JSON with its command, the tables that were printed, and a PNG for every figure, all small."""
    done, out = finished
    assert {path.name for path in out.iterdir()} == {"theory.json", "theory.md"} | {
        f"{name}.png" for name in FIGURES
    }
    document = json.loads((out / "theory.json").read_text(encoding="utf-8"))
    assert document.pop("command").startswith("outrider-sim theory --runs 300")
    assert document == last(done)
    tables = (out / "theory.md").read_text(encoding="utf-8")
    assert tables.partition("\n\n")[2].strip() in done.stdout
    assert "23.54526" in tables and "**NO**" not in tables
    for name in FIGURES:
        picture = (out / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG") and len(picture) < 150_000


def test_the_same_seed_gives_the_same_figures() -> None:
    """Two reports of one seed are equal, of another seed differ in the simulated parts only."""
    settings: dict[str, Any] = {"runs": 50, "chains": 1, "instances": 3}
    one, again = (run.compute(Settings(**settings, seed=5)) for _ in range(2))
    other = golden_estimates(Settings(**settings, seed=6))
    assert one == again
    assert {m: e.exact for m, e in other.items()} == one.golden_chain
    assert other != one.monte_carlo


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"runs": 1}, "runs"),
        ({"runs": 10**9}, "runs"),
        ({"seed": -1}, "seed"),
        ({"batches": (0,)}, "batches"),
        ({"batches": ()}, "batches"),
        ({"epsilons": (-0.1,)}, "epsilons"),
        ({"epsilons": (math.nan,)}, "epsilons"),
        ({"windows": (1, 100_000)}, "windows"),
        ({"chains": 0}, "chains"),
        ({"instances": -3}, "instances"),
    ],
)
def test_dials_that_cannot_work_are_named(given: dict[str, Any], field: str) -> None:
    """A dial out of its range is refused by name, with the range."""
    with pytest.raises(BadConfig, match="expected") as caught:
        Settings(**given)
    assert caught.value.field == field


def test_lists_that_are_none_are_named() -> None:
    """A list with something else than numbers in it is refused by name."""
    assert numbers("batches", "1,2, 4", int) == (1, 2, 4)
    for text in ("", "1,,2", "1;2", "two", "1.5"):
        with pytest.raises(BadConfig, match="batches: expected whole numbers"):
            numbers("batches", text, int)
    with pytest.raises(BadConfig, match="epsilons: expected numbers"):
        numbers("epsilons", "a", float)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--batches", "1,x"), 78, "batches: expected whole numbers"),
        (("--epsilons", "2"), 78, "epsilons: expected 0 to 1"),
        (("--pair", "nowhere.jsonl"), 78, "cannot read nowhere.jsonl"),
        (("--runs", "many"), 2, "--runs"),
    ],
)
def test_bad_arguments_end_as_elsewhere(arguments: tuple[str, ...], code: int, said: str) -> None:
    """78 for settings that cannot work, 2 for usage, the reason in one line on stderr, and nothing on stdout."""
    done = simulator("theory", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr and "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """--out onto a file is refused with its reason, exit code 78."""
    taken = tmp_path / "taken"
    taken.write_text("", encoding="utf-8")
    done = simulator(*QUICK, "--no-figures", "--out", str(taken))
    assert (done.returncode, done.stdout) == (78, "") and f"cannot write {taken}" in done.stderr


def test_a_law_that_fails_is_told() -> None:
    """A wrong value makes its check fail, NaN too."""
    assert run.check("law", 1.0, 1.0).holds
    assert not run.check("law", 1.1, 1.0).holds
    assert not run.check("law", math.nan, 1.0).holds
    report = run.compute(Settings(runs=50, chains=1, instances=3))
    wrong = run.exact_checks(
        report.theorem1,
        report.theorem2,
        report.theorem3,
        report.overacceptance,
        report.sequence,
        {**report.golden_chain, "1": 23.5},
    )
    assert [check.law for check in wrong if not check.holds] == ["M = 1 is Theorem 1"]
