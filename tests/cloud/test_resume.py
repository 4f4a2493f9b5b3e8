"""Going on with a run: checkpoints that are whole, a run that stays the one it was, logs without steps twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.cloud.kinds.settings import WEIGHTS_FILE
from outrider.cloud.train import checkpoint
from outrider.cloud.train.blocks import BlockMix
from outrider.cloud.train.checkpoint import (
    LOG_FILE,
    OPTIMISER_FILE,
    PROGRESS_FILE,
    VALIDATION_FILE,
    read_checkpoint,
)
from outrider.cloud.train.plan import TrainingPlan
from outrider.cloud.train.trainer import Trainer
from tests.cloud.test_train import assert_same, trainer_for, weights_after
from tests.tiny import make_target

PLAN = TrainingPlan(tokens=400, batch_tokens=60)


class Killed(BaseException):
    """The process ends here."""


class Deadline:
    """Lets so many changes to files happen, then kills."""

    def __init__(self, left: int, patch: pytest.MonkeyPatch) -> None:
        self.left = left
        for name in ("mkdir", "write_text", "rename", "replace", "rmdir"):
            patch.setattr(Path, name, self.guard(getattr(Path, name)))
        patch.setattr(checkpoint, "save_file", self.guard(save_file))

    def guard(self, change: Any) -> Any:
        """The same change, counted."""

        def counted(*values: Any, **named: Any) -> Any:
            if self.left == 0:
                raise Killed
            self.left -= 1
            return change(*values, **named)

        return counted


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target folder."""
    return make_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def saved(tmp_path: Path, target: Path) -> Trainer:
    """A run of two steps with its checkpoint."""
    trainer = trainer_for(tmp_path / "run", target, tmp_path / "states", PLAN)
    weights_after(trainer, 2)
    trainer.checkpoint()
    return trainer


def test_a_process_killed_between_files_leaves_a_whole_checkpoint(tmp_path: Path, saved: Trainer) -> None:
    """Wherever writing stops, the run goes on from the old checkpoint or the new one, and the next is written."""
    old = {name: tensor.clone() for name, tensor in saved.drafter.state_dict().items()}
    new = weights_after(saved, 1)
    seen, left, done = set(), 0, False
    while not done:
        saved.progress.step = 2
        saved.drafter.load_state_dict(old)
        saved.checkpoint()
        saved.progress.step = 3
        saved.drafter.load_state_dict(new)
        with pytest.MonkeyPatch.context() as patch:
            Deadline(left, patch)
            try:
                saved.checkpoint()
                done = True
            except Killed:
                left += 1
        found = read_checkpoint(tmp_path / "run")
        assert found is not None
        step = found.progress["step"]
        seen.add(step)
        assert found.settings.training_step == step
        assert_same(found.weights, {2: old, 3: new}[step])
        assert {path.name for path in (tmp_path / "run").iterdir()} == {
            "drafter.json",
            WEIGHTS_FILE,
            OPTIMISER_FILE,
            PROGRESS_FILE,
        }
    assert seen == {2, 3}
    assert left > 8


@pytest.mark.parametrize("name", [WEIGHTS_FILE, OPTIMISER_FILE])
def test_files_of_two_checkpoints_are_refused(
    tmp_path: Path, target: Path, saved: Trainer, name: str
) -> None:
    """A file of another step, as a copy made during a change has it, is named with what to do."""
    before = (tmp_path / "run" / name).read_bytes()
    weights_after(saved, 1)
    saved.checkpoint()
    (tmp_path / "run" / name).write_bytes(before)
    with pytest.raises(ValueError, match=rf"{name} is of step 2, progress\.json of step 3.*remove it"):
        trainer_for(tmp_path / "run", target, tmp_path / "states", PLAN).resume()


def test_a_run_of_an_older_version_goes_on(tmp_path: Path, target: Path, saved: Trainer) -> None:
    """A checkpoint without steps in its files, plan or corpus is resumed like any other."""
    folder = tmp_path / "run"
    for name in (WEIGHTS_FILE, OPTIMISER_FILE):
        save_file(load_file(folder / name), folder / name)
    progress = json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8"))
    old = {name: progress[name] for name in ("step", "answer_tokens", "elapsed_s", "turn", "place")}
    (folder / PROGRESS_FILE).write_text(json.dumps(old), encoding="utf-8")
    again = trainer_for(folder, target, tmp_path / "states", replace(PLAN, muon_rate=0.01))
    assert again.resume()
    assert again.progress == saved.progress
    assert_same(dict(again.drafter.state_dict()), dict(saved.drafter.state_dict()))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"muon_rate": 0.01}, "muon_rate 0.03, now 0.01"),
        ({"features": "off"}, "features annealed, now off"),
        ({"mix": BlockMix(short=(2, 4))}, r"short \[4, 12\], now \[2, 4\]"),
        ({"staircase": True}, "staircase"),
        ({"seed": 2}, "seed 1, now 2"),
    ],
)
def test_a_run_goes_on_with_the_plan_it_began_with(
    tmp_path: Path, target: Path, saved: Trainer, change: dict[str, Any], name: str
) -> None:
    """A plan that differs is refused, naming the dial with both values."""
    again = trainer_for(saved.folder, target, tmp_path / "states", replace(PLAN, **change))
    with pytest.raises(ValueError, match=name):
        again.resume()


def test_a_run_may_be_made_longer(tmp_path: Path, target: Path, saved: Trainer) -> None:
    """Budgets, and how often a run is looked at, are free in every part of it."""
    plan = replace(PLAN, tokens=4000, minutes=5.0, validate_minutes=1.0, checkpoint_minutes=1.0)
    again = trainer_for(saved.folder, target, tmp_path / "states", plan)
    assert again.resume()
    assert again.progress == saved.progress


def test_a_run_goes_on_with_the_texts_it_began_with(tmp_path: Path, target: Path, saved: Trainer) -> None:
    """Another corpus is refused, though plan and draft vocabulary are the same."""
    again = trainer_for(saved.folder, target, tmp_path / "states", PLAN)
    again._training = again._training[:-1]
    with pytest.raises(ValueError, match="other texts"):
        again.resume()


@pytest.mark.parametrize("step", [2, 0])
def test_no_step_is_logged_twice(tmp_path: Path, target: Path, saved: Trainer, step: int) -> None:
    """Rows of steps after the checkpoint leave both logs, also where there is no checkpoint; so do broken ones."""
    folder = saved.folder
    if step == 0:
        (folder / PROGRESS_FILE).unlink()
    for name in (LOG_FILE, VALIDATION_FILE):
        (folder / name).write_text("step,minutes\n0,0.0\n2,0.1\n3,0.2\n10,0.3\n1", encoding="utf-8")
    again = trainer_for(folder, target, tmp_path / "states", PLAN)
    assert again.resume() is (step > 0)
    for name in (LOG_FILE, VALIDATION_FILE):
        rows = (folder / name).read_text(encoding="utf-8").splitlines()
        assert [row.partition(",")[0] for row in rows] == ["step", "0", "2"][: 2 + (step > 0)]
    assert torch.isfinite(again.step().total)
