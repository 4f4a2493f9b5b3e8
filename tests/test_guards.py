"""House rules, kept by machine: namespace, import fences, forbidden calls, sizes, words, and what a wheel holds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PORTIONS = ("client", "cloud", "shared", "netsim", "proto")
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def python_files(*tops: str) -> list[Path]:
    """Written (not generated) Python files under these top-level folders."""
    found = [p for top in tops for p in sorted((ROOT / top).rglob("*.py")) if not GENERATED.search(p.name)]
    return [p for p in found if "__pycache__" not in p.parts]


def modules(portion: str) -> list[str]:
    """Dotted names of all modules of a portion."""
    top = ROOT / portion
    names = (".".join(p.relative_to(top).with_suffix("").parts) for p in python_files(portion))
    return [name.removesuffix(".__init__") for name in names]


def where(path: Path, node: ast.AST) -> str:
    """file:line of a node."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def loaded_after_importing(names: list[str]) -> set[str]:
    """Top-level and second-level modules that importing ``names`` loads, in a process of its own."""
    code = "import importlib, sys\nfor n in sys.argv[1:]: importlib.import_module(n)\nprint('\\n'.join(sys.modules))"
    path = ":".join(str(ROOT / portion) for portion in PORTIONS)
    done = subprocess.run(
        [sys.executable, "-c", code, *names],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {".".join(name.split(".")[:2]) for name in done.stdout.split()}


def test_no_portion_hides_the_others() -> None:
    """No folder named outrider has an __init__.py: one would make every other portion unimportable."""
    assert [p for portion in PORTIONS for p in (ROOT / portion).glob("outrider/__init__.py*")] == []


def test_importing_the_device_loads_nothing_of_the_cloud() -> None:
    """Every module of the device imports without torch, transformers or anything of the verifier's."""
    loaded = loaded_after_importing(modules("client") + modules("shared"))
    assert loaded & {"torch", "transformers", "gguf", "onnx", "outrider.cloud", "outrider.netsim"} == set()


def test_the_verifier_loads_nothing_of_the_device_or_the_network() -> None:
    """Device and verifier share code through outrider.shared only; measuring drafters, which needs both, is apart."""
    allowed = {"cloud", "shared", "v1"}
    for path in python_files("cloud"):
        imports = {name.split(".")[1] for name in imported(path) if name.startswith("outrider.")}
        assert imports <= allowed | ({"client"} if path.parent.name == "evaluate" else set()), path.name
    serving = loaded_after_importing(["outrider.cloud.cli", "outrider.cloud.load", "outrider.cloud.serve"])
    assert "outrider.client" not in serving


@pytest.mark.parametrize("name", ["outrider.client.machine", "outrider.client.tail", "outrider.cloud.table"])
def test_the_cores_do_no_io(name: str) -> None:
    """The sans-I/O cores, with all they import, load no gRPC, no protobuf, no engine and no event loop."""
    loaded = loaded_after_importing([name])
    assert loaded & {"grpc", "google.protobuf", "torch", "onnxruntime", "asyncio", "outrider.v1"} == set()


def imported(path: Path) -> Iterator[str]:
    """Full names of the modules a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "torch.load",
    "os.system",
    "os.popen",
    "np.load",
    "sys.exit",
}
ALLOWED_CALLS = {("sys.exit", "cli.py")}
FORBIDDEN_ARGUMENTS = {"trust_remote_code": True, "shell": True, "allow_pickle": True, "weights_only": False}
FORBIDDEN_IN_TESTS = {
    "pytest.skip",
    "pytest.xfail",
    "pytest.importorskip",
    "pytest.mark.skip",
    "pytest.mark.xfail",
}


def test_nothing_runs_code_from_data() -> None:
    """No pickle, torch.load, eval, shell or remote code in any package, and no sys.exit outside a command line."""
    found = []
    for path in python_files("client", "cloud", "shared", "netsim"):
        found += [f"{path.name}: import {m}" for m in imported(path) if m.split(".")[0] in FORBIDDEN_MODULES]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            if name in FORBIDDEN_CALLS and (name, path.name) not in ALLOWED_CALLS:
                found.append(f"{where(path, node)} {name}")
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg in FORBIDDEN_ARGUMENTS and value is FORBIDDEN_ARGUMENTS[keyword.arg]:
                    found.append(f"{where(path, node)} {keyword.arg}={value}")
    assert found == []


def test_no_test_is_skipped_and_none_is_expected_to_fail() -> None:
    """What a test needs and lacks is a failure, never a skip."""
    found = [
        where(path, node)
        for path in python_files("tests")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in FORBIDDEN_IN_TESTS
    ]
    assert found == []


def test_every_test_says_what_it_proves() -> None:
    """Each test function and each test file has a docstring."""
    found = []
    for path in python_files("tests"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if ast.get_docstring(tree) is None:
            found.append(str(path.relative_to(ROOT)))
        found += [
            f"{where(path, node)} {node.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and ast.get_docstring(node) is None
        ]
    assert found == []


def test_files_and_functions_stay_readable() -> None:
    """No file above 400 lines, no function above 60."""
    found = []
    for path in python_files("client", "cloud", "shared", "netsim", "tests", "benchmarks"):
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > MAX_FILE_LINES:
            found.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(f"{where(path, node)} {node.name}: {lines} lines")
    assert found == []


# In pieces, so that this file does not find itself.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
PRIVATE = re.compile(
    "|".join(
        ["/" + top + "/" for top in ("wo" + "rk", "ro" + "ot", "fa" + "rm", "ho" + "me")]
        + ["bash_" + "jobs", r"\bC" + r"EO\b", "steering " + "repo", "/opt/" + "pypi", r"\bissue " + r"#?\d"]
    )
)


def text_files() -> Iterator[Path]:
    """Every text file of the repository that someone wrote."""
    tops = (*PORTIONS, "tests", "benchmarks", "docs", "models", ".ci")
    for path in [p for top in tops for p in sorted((ROOT / top).rglob("*"))] + sorted(ROOT.glob("*.*")):
        skip = "__pycache__" in path.parts or GENERATED.search(path.name) or path.suffix in BINARY
        # What tools leave behind (.mypy_cache, .coverage) is hidden; so is .ci, which is ours.
        hidden = any(part.startswith(".") for part in path.relative_to(ROOT).parts if part != ".ci")
        if path.is_file() and not skip and not hidden:
            yield path
    yield ROOT / "Makefile"


BINARY = {".safetensors", ".onnx", ".png", ".pdf", ".gz", ".npz", ".pyc", ".log"}


def test_no_unfinished_marks_and_no_private_words() -> None:
    """No marks of unfinished work, no path of one machine, nothing about who wrote what."""
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if UNFINISHED.search(line) or PRIVATE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number} {line.strip()[:80]}")
    assert found == []


def test_the_wheel_holds_every_module_the_stubs_and_the_type_markers(tmp_path: Path) -> None:
    """A built wheel has all five portions, typed, with stubs and .proto, and neither tests nor weights."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"outrider/{portion}/py.typed" for portion in ("client", "cloud", "shared", "netsim", "v1")}
    stubs = (
        "verifier_pb2.py",
        "verifier_pb2.pyi",
        "verifier_pb2_grpc.py",
        "verifier_pb2_grpc.pyi",
        "verifier.proto",
    )
    expected |= {f"outrider/v1/{name}" for name in stubs}
    for portion in PORTIONS:
        expected |= {str(p.relative_to(ROOT / portion)) for p in python_files(portion)}
    assert expected <= names
    outside = {name for name in names if not name.startswith(("outrider/", "outrider-"))}
    assert outside == set() and "outrider/__init__.py" not in names
    assert not any(name.endswith((".safetensors", ".onnx", ".gguf")) for name in names)
