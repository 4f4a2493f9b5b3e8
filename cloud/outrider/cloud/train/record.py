"""What a run was: everything needed to judge and to repeat it, as one JSON object beside the weights."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from outrider.cloud.kinds.settings import DrafterSettings
from outrider.cloud.train.validate import DrafterQuality

if TYPE_CHECKING:
    from outrider.cloud.train.command import TrainingRequest
    from outrider.cloud.train.trainer import Progress

COMMIT_VARIABLE = "OUTRIDER_COMMIT"
"""Names the commit of a program that runs from a copy of its sources."""
_PACKAGES = ("outrider", "torch", "transformers", "numpy", "safetensors")


def run_record(
    request: TrainingRequest,
    progress: Progress,
    settings: DrafterSettings,
    parameters: int,
    texts: int,
    quality: Mapping[str, DrafterQuality],
) -> dict[str, Any]:
    """Seed, plan, budget used, corpus, results, versions, machine, and the commit where there is one."""
    shapes = {**asdict(settings), "draft_vocabulary": len(settings.draft_vocabulary)}
    return {
        "kind": request.kind,
        "seed": request.plan.seed,
        "plan": asdict(request.plan),
        "settings": shapes,
        "parameters": parameters,
        "corpus": [path.name for path in request.corpus],
        "max_length": request.max_length,
        "training_texts": texts,
        "steps": progress.step,
        "answer_tokens": progress.answer_tokens,
        "minutes": round(progress.elapsed_s / 60, 2),
        "threads": torch.get_num_threads(),
        "held_out": {name: asdict(each) for name, each in quality.items()},
        "versions": {name: _version(name) for name in _PACKAGES},
        "machine": {"processor": processor(), "python": platform.python_version()},
        "commit": commit(),
    }


def processor() -> str:
    """The processor's name, as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit(source: Path = Path(__file__)) -> str | None:
    """What OUTRIDER_COMMIT says, else the commit of the checkout that tracks this source file; None outside of one."""
    if said := os.environ.get(COMMIT_VARIABLE, "").strip():
        return said
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*words: str) -> str | None:
        command = [git, "-C", str(source.parent), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() or None if done.returncode == 0 else None

    # A copy below somebody else's checkout is in a work tree too, but no file of it.
    return ask("rev-parse", "HEAD") if ask("ls-files", "--error-unmatch", source.name) else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
