"""The training loop: resumable to the step, budgeted in minutes.

Phases of a step: 1. pick texts and cut them into blocks · 2. states from the cache (the target runs only
for texts it has not seen) · 3. drafter forward, loss, backward · 4. optimisers at this moment's rate ·
5. now and then: log, validate, checkpoint.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.cloud.kinds.base import FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.settings import WEIGHTS_FILE
from outrider.cloud.train.blocks import BlockMix, draw_rows
from outrider.cloud.train.corpus import Example, distinct_fraction
from outrider.cloud.train.losses import Losses, LossOptions, Teachers
from outrider.cloud.train.optimiser import Optimisers
from outrider.cloud.train.states import StateCache
from outrider.cloud.train.validate import measure

PROGRESS_FILE = "progress.json"
OPTIMISER_FILE = "optimiser.safetensors"
LOG_FILE = "log.csv"


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Dials of a run; none of them changes the drafter's shapes."""

    minutes: float
    """Budget of computing time over all resumed parts."""
    batch_texts: int = 8
    """Texts per optimiser step."""
    muon_rate: float = 0.03
    """Peak learning rate of Muon (matrices)."""
    adam_rate: float = 2e-3
    """Peak learning rate of AdamW (norms, biases, the direct path, the null row)."""
    warmup_steps: int = 20
    """Steps of linear warm-up."""
    constant_share: float = 0.45
    """Share of the budget at the peak rate; then linear down to `final_share`."""
    final_share: float = 0.05
    """Rate at the end over the peak rate."""
    argmax_share: float = 0.2
    """Teacher mass moved to its best token."""
    feature_weight: float = 1.0
    """Weight of the feature losses at the start; linear to 0 at `feature_until` of the budget."""
    feature_until: float = 0.5
    """Share of the budget after which only the law is matched."""
    mix: BlockMix = field(default_factory=BlockMix)
    """How texts are cut."""
    lsa_every: int = 4
    """Steps between gradients into LSA."""
    validate_minutes: float = 20.0
    """Between validations."""
    checkpoint_minutes: float = 3.0
    """Between checkpoints."""
    validation_texts: int = 12
    """Held-out texts per validation in the run."""
    seed: int = 1
    """Of initialisation, text order and cuts."""


@dataclass(slots=True)
class Progress:
    """Where a run stands; everything that is random follows from `seed` and these numbers."""

    step: int = 0
    answer_tokens: int = 0
    elapsed_s: float = 0.0


class Trainer:
    """One run in one folder: the newest weights, optimiser state, progress, log."""

    def __init__(
        self,
        folder: Path,
        plan: TrainingPlan,
        drafter: TrainableDrafter,
        frozen: FrozenTarget,
        cache: StateCache,
        examples: Sequence[Example],
        training: Sequence[int],
        validation: Sequence[int],
        target: Callable[[], Any],
    ):
        """`target` loads the target model, called only when the cache lacks a text. Corrects `frozen`."""
        drafter.correct(frozen)
        self.folder, self.plan, self.drafter, self.frozen = folder, plan, drafter, frozen
        self._cache, self._examples, self._target = cache, examples, target
        self._training, self._validation = list(training), list(validation)
        self.progress = Progress()
        self._optimisers = Optimisers(drafter, plan.muon_rate, plan.adam_rate)
        self._distinct = {row: distinct_fraction(examples[row].answer_ids) for row in training}
        folder.mkdir(parents=True, exist_ok=True)

    def resume(self) -> bool:
        """Load the folder's checkpoint, if there is one."""
        path = self.folder / PROGRESS_FILE
        if not path.exists():
            return False
        self.progress = Progress(**json.loads(path.read_text(encoding="utf-8")))
        self.drafter.load_state_dict(load_file(self.folder / WEIGHTS_FILE))
        self._optimisers.load(load_file(self.folder / OPTIMISER_FILE))
        return True

    def run(self, say: Callable[[str], None] = print) -> None:
        """Train until the budget is used; checkpoints at the end and on the way."""
        budget = self.plan.minutes * 60
        last_check = last_valid = last_log = self.progress.elapsed_s
        mark, tokens, sums = time.monotonic(), self.progress.answer_tokens, Sums()
        while self.progress.elapsed_s < budget:
            sums.add(self.step())
            now = time.monotonic()
            self.progress.elapsed_s += now - mark
            mark = now
            elapsed = self.progress.elapsed_s
            if elapsed - last_log >= 30:
                rate = (self.progress.answer_tokens - tokens) / (elapsed - last_log)
                self._log(sums, rate, say)
                last_log, tokens, sums = elapsed, self.progress.answer_tokens, Sums()
            if elapsed - last_check >= self.plan.checkpoint_minutes * 60 or elapsed >= budget:
                self.checkpoint()
                last_check = elapsed
            if elapsed - last_valid >= self.plan.validate_minutes * 60:
                self.validate(say)
                last_valid, mark = elapsed, time.monotonic()
        self.checkpoint()

    def step(self) -> Losses:
        """One optimiser step."""
        rows = self._pick()
        if missing := self._cache.missing(rows):
            self._cache.fill(missing, self._target())
        generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + self.progress.step)
        texts, teachers = self._texts(rows, generator)
        share = min(1.0, self.progress.elapsed_s / (self.plan.minutes * 60))
        features = self.plan.feature_weight * max(0.0, 1.0 - share / self.plan.feature_until)
        losses = self._backward(texts, teachers, features)
        self._optimisers.step(self._rate(share))
        self.progress.step += 1
        self.progress.answer_tokens += sum(len(self._examples[row].answer_ids) for row in rows)
        return losses

    def validate(self, say: Callable[[str], None] = print) -> None:
        """Measure on held-out texts and log one line."""
        rows = self._validation[: self.plan.validation_texts]
        self._cache.fill(rows, self._target() if self._cache.missing(rows) else None)
        quality = measure(self.drafter, self.frozen, self._cache, self._examples, rows)
        text = f"step={self.progress.step} tokens={self.progress.answer_tokens} {quality.line()}"
        with (self.folder / "validation.log").open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
        say("validation " + text)

    def checkpoint(self) -> None:
        """Write weights, settings, optimiser state and progress; each file appears whole."""
        s = self.drafter.settings
        longest = max(len(self._examples[row]) for row in self._training)
        replace(s, training_step=self.progress.step, trained_length=longest).save(self.folder)
        _save_whole(dict(self.drafter.state_dict()), self.folder / WEIGHTS_FILE)
        _save_whole(self._optimisers.state(), self.folder / OPTIMISER_FILE)
        # Last, and whole: it is what says that there is a checkpoint.
        partial = self.folder / (PROGRESS_FILE + ".partial")
        partial.write_text(json.dumps(asdict(self.progress)), encoding="utf-8")
        partial.replace(self.folder / PROGRESS_FILE)

    def _pick(self) -> list[int]:
        count = len(self._training) // self.plan.batch_texts
        turn, index = divmod(self.progress.step, count)
        order = list(self._training)
        random.Random(turn).shuffle(order)
        return order[index * self.plan.batch_texts : (index + 1) * self.plan.batch_texts]

    def _texts(self, rows: list[int], generator: torch.Generator) -> tuple[list[Text], Teachers]:
        texts, streams, finals, weights = [], [], [], []
        for row in rows:
            example, states = self._examples[row], self._cache.get(row)
            prompt = len(example.prompt_ids)
            first, seen = draw_rows(prompt, len(example), self.plan.mix, generator)
            texts.append(Text(torch.from_numpy(example.ids).long(), states.kv, first, seen))
            weight = torch.full((len(example) - first,), max(0.25, min(1.0, self._distinct[row])))
            weight[: prompt - first] = 0.0
            # The last position predicts what comes after the text, mostly after its end token.
            weight[-1] = 0.0
            streams.append(states.stream[first:])
            finals.append(states.final[first:])
            weights.append(weight)
        weight = torch.cat(weights)
        return texts, Teachers(torch.cat(finals), weight / weight.sum(), torch.cat(streams))

    def _backward(self, texts: list[Text], teachers: Teachers, features: float) -> Losses:
        self.drafter.begin_step(self.progress.step)
        options = LossOptions(argmax_share=self.plan.argmax_share, features=features)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses: Losses = self.drafter.training_loss(texts, teachers, self.frozen, options)
        losses.total.backward()
        return losses

    def _rate(self, share: float) -> float:
        warm = min(1.0, (self.progress.step + 1) / self.plan.warmup_steps)
        constant, last = self.plan.constant_share, self.plan.final_share
        down = max(0.0, share - constant) / (1.0 - constant)
        return warm * (1.0 - (1.0 - last) * down)

    def _log(self, sums: Sums, rate: float, say: Callable[[str], None]) -> None:
        path = self.folder / LOG_FILE
        if not path.exists():
            path.write_text(
                "step,minutes,answer_tokens,law,feature,agreement,tokens_per_s\n", encoding="utf-8"
            )
        law, feature, agreed = sums.means()
        p = self.progress
        line = f"{p.step},{p.elapsed_s / 60:.2f},{p.answer_tokens},{law:.4f},{feature:.4f},{agreed:.4f},{rate:.0f}"
        with path.open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
        say(line)


class Sums:
    """Running means of `Losses` between two log lines."""

    def __init__(self) -> None:
        self._all: list[Losses] = []

    def add(self, losses: Losses) -> None:
        """Count one step."""
        self._all.append(losses)

    def means(self) -> tuple[float, float, float]:
        """(law, feature, agreement) means; zeros if nothing was added."""
        count = max(1, len(self._all))
        return (
            sum(float(x.law) for x in self._all) / count,
            sum(float(x.feature) for x in self._all) / count,
            sum(float(x.agreed) for x in self._all) / count,
        )


def _save_whole(tensors: dict[str, Tensor], path: Path) -> None:
    partial = path.with_suffix(".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial)
    partial.replace(path)
