"""What every benchmark has in common: how it ends when it was given something that cannot work."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

NO_FILE, NO_JSON, NO_PLACE = "{folder}/nothing-here", "{folder}/junk.json", "{folder}/junk.json/out.json"
PROMPTS = ("--prompts", NO_FILE, "--out", "{folder}/out.json")

CASES: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "ablations": [
        ((*PROMPTS, "--work", "{folder}"), "no such file"),
        (("--prompts", NO_FILE, "--work", "{folder}", "--out", NO_JSON), "is no JSON"),
        (
            (*PROMPTS, "--work", "{folder}", "--only", "nobody"),
            "--only: there is no 'nobody'; choose from base",
        ),
    ],
    "client_server": [
        (("--trace", "my-way-home"), "--trace: expected NAME=PRESET,DOWN[,UP]"),
        (("--trace", f"home=4g-good,{NO_FILE}"), "cannot read"),
        (("--answers", "0"), "--answers: expected a whole number from 1, got '0'"),
    ],
    "costs": [(("--repeats", "none"), "--repeats: expected a whole number from 1")],
    "devices": [
        (("--drafter", "nobody"), "--drafter: there is no 'nobody'"),
        (("--tokens", "-1"), "--tokens: expected a whole number from 1"),
    ],
    "disconnection": [(PROMPTS, "nothing-here")],
    "drafters": [
        (PROMPTS, "no such file"),
        (("--prompts", NO_FILE, "--out", NO_PLACE), "--out: cannot make the folder of"),
        ((*PROMPTS, "--only", "nobody"), "--only: there is no 'nobody'"),
    ],
    "judge": [
        (("--head", NO_FILE), "--head: there is no file"),
        (("--head", NO_JSON), "is no JSON"),
    ],
    "ngram_confidence": [((NO_FILE,), "nothing-here")],
    "round": [
        (("--out", "{folder}"), "--out: cannot write"),
        (("--tokens", "0"), "--tokens: expected a whole number from 1"),
    ],
    "rules": [
        (PROMPTS, "no such file"),
        ((*PROMPTS, "--only", "nothing, nowhere"), "--only: there is no 'nothing, nowhere'"),
    ],
}
WITHOUT_INPUT = {"proxy"}
"""Has one flag, which argparse reads."""
READS_ITS_OWN = {
    "client_server": "bfloat16.json",
    "devices": "bfloat16.json",
    "grid_figures": "client_server.json has no cells",
    "virtual": "bfloat16.json",
}
"""Read measurements that lie beside them."""


@pytest.fixture
def scripts(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder. Its scripts find each other by path: none that another test imported is used, and none is left."""
    folder = root / "benchmarks"
    names = [path.stem for path in folder.glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in names:
        sys.modules.pop(name, None)


def ends(path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code of a script."""
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(path), run_name="__main__")
    return caught.value.code


def programs(folder: Path) -> set[str]:
    """Names of the scripts that can be run."""
    return {path.stem for path in folder.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}


def test_none_is_left_out(scripts: Path) -> None:
    """Whoever adds a benchmark adds its bad input here."""
    assert programs(scripts) == CASES.keys() | WITHOUT_INPUT | READS_ITS_OWN.keys()


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [(name, words, said) for name, cases in CASES.items() for words, said in cases],
)
def test_bad_input_ends_with_one_line(
    scripts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    words: tuple[str, ...],
    said: str,
) -> None:
    """No traceback, exit code 78, the program's name and what is wrong; no model is loaded for it, nothing written."""
    (tmp_path / "junk.json").write_text("{", encoding="utf-8")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    given = tuple(word.replace("{folder}", str(tmp_path)) for word in words)
    assert ends(scripts / f"{name}.py", given, monkeypatch) == 78
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"{name}: ")
    assert said in last
    assert {path.name for path in tmp_path.iterdir()} <= {"junk.json", "cache"}


@pytest.mark.parametrize("name", sorted(READS_ITS_OWN))
def test_measurements_that_are_missing_are_named(
    scripts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """Scripts without the files that belong beside them say which one is not there."""
    for path in scripts.glob("*.py"):
        shutil.copy(path, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert ends(tmp_path / f"{name}.py", (), monkeypatch) == 78
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"{name}: ")
    assert READS_ITS_OWN[name] in last


def test_the_grids_are_drawn_from_their_results(scripts: Path, tmp_path: Path) -> None:
    """Both figures, as PNG and SVG, with every mode, drafter and link that the committed results have."""
    drawing = runpy.run_path(str(scripts / "grid_figures.py"))
    for name in ("client_server", "devices"):
        cells = json.loads((scripts / "results" / f"{name}.json").read_text(encoding="utf-8"))["cells"]
        drawing["draw"](name, cells, tmp_path)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        words = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        for field in ("link", "mode", "drafter"):
            assert all(one[field] in words for one in cells if one.get(field, "none") != "none")


def test_a_defect_keeps_its_traceback(scripts: Path) -> None:
    """An error that no input explains is a bug, and whoever reads it needs to know where."""
    ending = runpy.run_path(str(scripts / "ending.py"))

    def broken() -> None:
        raise KeyError("tau")

    def unplugged() -> None:
        raise ConnectionResetError("by peer")

    for program in (broken, unplugged):
        with pytest.raises((KeyError, ConnectionResetError)):
            ending["run"](program)
