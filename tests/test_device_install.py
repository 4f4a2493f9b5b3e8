"""The device as a user installs it: an environment of its own with the base dependencies only, and no torch in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = (
    "torch",
    "transformers",
    "gguf",
    "accelerate",
    "safetensors",
    "onnx",
    "matplotlib",
    "prometheus_client",
)


@dataclass(frozen=True)
class DeviceEnvironment:
    """A virtual environment with the device's distribution in it."""

    folder: Path

    def run(self, *command: str, input_text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with nothing of this one on its path and a home of its own."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH", "TMPDIR")}
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            env={**keep, "HOME": str(home), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            cwd=home,
            input=input_text,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> DeviceEnvironment:
    """`pip install .` into a fresh environment, at the versions CI uses."""
    folder = tmp_path_factory.mktemp("device") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    done = subprocess.run(
        [*install, "-c", str(ROOT / "constraints.txt"), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return DeviceEnvironment(folder)


def installed_bytes(folder: Path) -> dict[str, int]:
    """Bytes per top-level folder of an environment's packages, without what every environment has."""
    (packages,) = folder.glob("lib/python*/site-packages")
    sizes = {
        top.name: sum(p.stat().st_size for p in top.rglob("*") if p.is_file() and not p.is_symlink())
        for top in packages.iterdir()
        if top.is_dir() and not top.name.startswith(("pip", "setuptools", "pkg_resources", "_distutils"))
    }
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def test_the_device_installs_without_torch(
    device: DeviceEnvironment, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base distribution brings neither torch nor transformers; its size is printed."""
    code = "import importlib.util as u, json, sys; print(json.dumps([n for n in sys.argv[1:] if u.find_spec(n)]))"
    done = device.run("python", "-c", code, *HEAVY)
    assert json.loads(done.stdout) == [], done.stderr
    sizes = installed_bytes(device.folder)
    largest = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in list(sizes.items())[:5])
    with capsys.disabled():
        print(f"\ndevice install: {sum(sizes.values()) / 1e6:.0f} MB (goal 220): {largest}")


def test_the_installed_device_starts(device: DeviceEnvironment) -> None:
    """`outrider --version` and `outrider generate --help` work from the installed distribution."""
    done = device.run("outrider", "--version")
    assert (done.returncode, done.stderr) == (0, "") and "0.1.0" in done.stdout
    assert "--offline" in device.run("outrider", "generate", "--help").stdout


def test_the_operators_program_says_what_to_install(device: DeviceEnvironment) -> None:
    """Without the extra, `outrider-cloud serve` names it instead of showing a traceback."""
    done = device.run("outrider-cloud", "serve")
    assert done.returncode == 78, done.stderr
    assert "outrider[cloud]" in done.stderr and "Traceback" not in done.stderr
