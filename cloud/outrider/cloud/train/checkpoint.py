"""A run's folder: the files of its newest checkpoint, which change together, and the logs beside them.

A new checkpoint is written whole into `checkpoint.partial`, which a rename makes `checkpoint.ready`: from
then on it counts. Its files then move to their places, and whoever finds that unfinished finishes it. So a
process that is killed anywhere leaves the old checkpoint or the new one, never a mixture. Weights and
optimiser state carry their step besides, against folders that were copied while they changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.cloud.kinds.settings import SETTINGS_FILE, WEIGHTS_FILE, DrafterSettings, load_settings

PROGRESS_FILE = "progress.json"
OPTIMISER_FILE = "optimiser.safetensors"
LOG_FILE = "log.csv"
VALIDATION_FILE = "validation.csv"
_PARTIAL, _READY = "checkpoint.partial", "checkpoint.ready"
_FILES = (SETTINGS_FILE, WEIGHTS_FILE, OPTIMISER_FILE, PROGRESS_FILE)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a run goes on from."""

    settings: DrafterSettings
    weights: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    progress: dict[str, Any]
    """JSON values; "step" is the step that weights and optimiser state are of."""


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the folder's checkpoint by this one, all of it or nothing."""
    _settle(folder)
    partial = folder / _PARTIAL
    partial.mkdir()
    label = {"step": str(checkpoint.progress["step"])}
    (partial / SETTINGS_FILE).write_text(checkpoint.settings.to_json() + "\n", encoding="utf-8")
    for name, tensors in ((WEIGHTS_FILE, checkpoint.weights), (OPTIMISER_FILE, checkpoint.optimiser)):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, partial / name, label)
    (partial / PROGRESS_FILE).write_text(json.dumps(checkpoint.progress), encoding="utf-8")
    partial.rename(folder / _READY)
    _settle(folder)


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The folder's checkpoint; None if there is none.

    Raises ValueError if its files are of different steps. Files without a step are taken as they are: older
    versions wrote none.
    """
    _settle(folder)
    if not (folder / PROGRESS_FILE).exists():
        return None
    progress = json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8"))
    for name in (WEIGHTS_FILE, OPTIMISER_FILE):
        with safe_open(folder / name, framework="pt") as file:
            step = (file.metadata() or {}).get("step")
        if step is not None and step != str(progress["step"]):
            raise ValueError(
                f"{folder / name} is of step {step}, {PROGRESS_FILE} of step {progress['step']}: the checkpoint is a "
                "mixture of two; copy the folder again from where it came from, or remove it to begin anew"
            )
    return Checkpoint(
        load_settings(folder), load_file(folder / WEIGHTS_FILE), load_file(folder / OPTIMISER_FILE), progress
    )


def append_row(path: Path, names: Sequence[str], cells: Sequence[str]) -> None:
    """Add a row to a log; a new log begins with the columns' names."""
    fresh = not path.exists()
    with path.open("a", encoding="utf-8") as stream:
        if fresh:
            stream.write(",".join(names) + "\n")
        stream.write(",".join(cells) + "\n")


def drop_rows_after(folder: Path, step: int) -> None:
    """Take rows of steps after this one out of the logs: the run goes through those steps again."""
    for name in (LOG_FILE, VALIDATION_FILE):
        path = folder / name
        if not path.exists():
            continue
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        head, rows = lines[:1], lines[1:]
        # A row that was being written when the process was killed has no end.
        kept = [row for row in rows if row.endswith("\n") and int(row.partition(",")[0]) <= step]
        if len(kept) < len(rows):
            partial = path.with_name(path.name + ".partial")
            partial.write_text("".join([*head, *kept]), encoding="utf-8")
            partial.replace(path)


def other_dial(mine: Mapping[str, Any], stored: Mapping[str, Any]) -> str | None:
    """The first dial that two plans (JSON values) both have and differ in, as `name: stored, now mine`."""
    for name, value in mine.items():
        if name not in stored or stored[name] == value:
            continue
        if isinstance(value, dict) and isinstance(stored[name], dict):
            if inner := other_dial(value, stored[name]):
                return inner
            continue
        return f"{name} {stored[name]}, now {value}"
    return None


def _settle(folder: Path) -> None:
    """Finish the change to a checkpoint that counts already; drop one that was never finished."""
    shutil.rmtree(folder / _PARTIAL, ignore_errors=True)
    ready = folder / _READY
    if not ready.exists():
        return
    for name in _FILES:
        if (ready / name).exists():
            (ready / name).replace(folder / name)
    ready.rmdir()
