"""The outside: what is declared, what is documented, and that the three programs start."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PORTIONS = ("client", "cloud", "shared", "netsim")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def sources() -> list[Path]:
    """Python files of the packages, without the generated ones."""
    found = [p for portion in PORTIONS for p in sorted((ROOT / portion).rglob("*.py"))]
    return [p for p in found if "__pycache__" not in p.parts]


def names(requirements: list[str]) -> set[str]:
    """Distribution names of requirement lines."""
    return {re.split(r"[<>=!\[; ]", line, maxsplit=1)[0].lower() for line in requirements}


def undocumented(path: Path) -> list[str]:
    """Public names of a file without a docstring: the module, its classes and functions, and public methods."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    missing = [] if ast.get_docstring(tree) or not tree.body else [str(path.relative_to(ROOT))]
    for node in tree.body:
        if not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None:
            missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    return missing


def test_every_public_name_is_documented() -> None:
    """Modules, public classes and public functions say what one gets from them."""
    assert [line for path in sources() for line in undocumented(path)] == []


def test_exported_names_exist() -> None:
    """Where a module lists what it exports, everything in the list is there, once."""
    for path in sources():
        if "__all__" not in path.read_text(encoding="utf-8"):
            continue
        portion = next(p for p in PORTIONS if path.is_relative_to(ROOT / p))
        dotted = ".".join(path.relative_to(ROOT / portion).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(dotted)
        exported = module.__all__
        assert len(exported) == len(set(exported)), dotted
        assert [name for name in exported if not hasattr(module, name)] == [], dotted


def test_the_device_installs_without_the_cloud() -> None:
    """The base dependencies are the device's, and every one of them is used by it."""
    base = names(PROJECT["dependencies"])
    assert base & names(PROJECT["optional-dependencies"]["cloud"]) == set()
    used = {
        "grpcio",
        "jinja2",
        "numpy",
        "onnxruntime",
        "platformdirs",
        "protobuf",
        "rich",
        "tenacity",
        "tokenizers",
    }
    assert base == used | {"typer"}


def test_every_dependency_has_an_exact_version_for_ci() -> None:
    """constraints.txt pins whatever pyproject.toml asks for, and nothing in it is a range."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._]+", line) for line in lines)
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    wanted = set(PROJECT["dependencies"]).union(*PROJECT["optional-dependencies"].values())
    assert names(sorted(wanted)) - {"outrider"} <= pinned


@pytest.mark.parametrize("program", sorted(PROJECT["scripts"]))
def test_programs_start_and_explain_themselves(program: str) -> None:
    """Each of the three programs answers --help and --version with exit code 0 and nothing on stderr."""
    module, _, function = PROJECT["scripts"][program].partition(":")
    for option in ("--help", "--version"):
        code = f"import sys; sys.argv = [{program!r}, {option!r}]; import {module} as m; m.{function}()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={
                "PYTHONPATH": ":".join(str(ROOT / p) for p in (*PORTIONS, "proto")),
                "COLUMNS": "100",
                "LANG": "C.UTF-8",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert PROJECT["version"] in done.stdout if option == "--version" else program in done.stdout


def test_the_readme_names_commands_that_exist() -> None:
    """Every `make` target and program the README mentions is there."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    mentioned = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    assert {"demo", "test", "setup", "check", "test-data", "test-long"} <= mentioned <= targets
    assert set(re.findall(r"(?:^|`)(outrider[a-z-]*) [a-z]", text, re.MULTILINE)) == set(PROJECT["scripts"])
