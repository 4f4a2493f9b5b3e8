"""The device as a user installs it: an environment of its own with the base dependencies only, and no torch in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.server_process import environment, server_process
from tests.tiny import make_target

ROOT = Path(__file__).resolve().parents[1]
PROMPT = "hello there, draft me a line"
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


@dataclass(frozen=True)
class Cloud:
    """What the environment with torch made for the device: a target, drafter weights for it, and their bundle."""

    target: Path
    weights: Path
    bundle: Path

    def alone(self, *options: str) -> list[int]:
        """Ids that `outrider-cloud generate` gives for the prompt."""
        command = ["generate", PROMPT, "--target", str(self.target), "--threads", "1", "--json", *options]
        done = subprocess.run(
            [sys.executable, "-m", "outrider.cloud.cli", *command],
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        ids: list[int] = json.loads(done.stdout.splitlines()[-1])["ids"]
        return ids


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Cloud:
    """A tiny random target and an untrained drafter, exported the way an operator does it."""
    from outrider.cloud.export.bundle import export_bundle
    from tests.tiny_weights import make_weights

    folder = tmp_path_factory.mktemp("cloud")
    target = make_target(folder / "target", seed=3)
    made = Cloud(target, make_weights(folder / "weights", target), folder / "tiny.onnx")
    export_bundle(made.weights, target, made.bundle)
    return made


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object a command ended with."""
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


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


def test_a_whole_generation_without_server_network_or_torch(device: DeviceEnvironment, cloud: Cloud) -> None:
    """`--offline always` with a bundle file drafts a whole answer, all of it labelled provisional."""
    said = answer(
        device.run(
            "outrider", "generate", PROMPT, "--offline", "always", "--bundle", str(cloud.bundle),
            "--max-tokens", "24", "--json",
        )
    )  # fmt: skip
    assert said["ids"] and set(said["labels"]) == {"provisional"} and said["verified"] is False


def test_a_connected_generation_is_the_targets_own(device: DeviceEnvironment, cloud: Cloud) -> None:
    """Drafting in the installed environment against a real verifier gives the target's text, greedy and sampled."""
    with server_process(
        "serve", "--target", str(cloud.target), "--drafter", str(cloud.weights), "--bundle", str(cloud.bundle),
        "--port", "0", "--threads", "1", "--kv-budget-mib", "64", module="outrider.cloud.cli",
    ) as server:  # fmt: skip
        for options in (
            ["--max-tokens", "32"],
            ["--max-tokens", "32", "--temperature", "0.9", "--seed", "7"],
        ):
            said = answer(
                device.run(
                    "outrider", "generate", PROMPT, "--server", server.address, "--bundle", str(cloud.bundle),
                    "--pacing", "edge", "--offline", "never", "--json", *options,
                )
            )  # fmt: skip
            assert said["ids"] == cloud.alone(*options)
            assert said["verified"] is True and said["stats"]["rounds"] > 0
