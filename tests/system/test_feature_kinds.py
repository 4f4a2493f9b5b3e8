"""EAGLE-2 and Medusa through a real verifier: rows are the target's final states, and the text is the target's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from outrider.client.bundle import Bundle, load_bundle
from outrider.client.plan import Plan
from outrider.cloud.export.bundle import export_bundle
from outrider.cloud.kinds.registry import find_kind
from outrider.cloud.kinds.target import TargetWeights
from outrider.cloud.kinds.weights import save_drafter
from outrider.shared.sampling import Sampling
from tests.device import Device, chain, tree
from tests.harness import running_verifier
from tests.system.conftest import Target
from tests.tiny import VOCABULARY

KINDS = {
    "eagle2": {"num_layers": 2, "mlp_size": 40},
    "medusa": {"num_medusa_heads": 4, "num_blocks": 1},
}
COUNT = 24


def make_kind(kind: str, target: Path, folder: Path) -> Bundle:
    """Weights of a drafter with random parts in ``folder``/weights, and their bundle."""
    entry = find_kind(kind)
    settings = entry.shape(AutoConfig.from_pretrained(str(target)), **KINDS[kind])
    settings = replace(settings, draft_vocabulary=tuple(range(VOCABULARY)), training_step=7)
    drafter = entry.build(settings)
    entry.initialise(drafter, TargetWeights(target), 1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    save_drafter(drafter, settings, folder / "weights", torch.float32)
    export_bundle(folder / "weights", target, folder / "drafter.onnx")
    return load_bundle(folder / "drafter.onnx")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_text_is_the_targets_own(target: Target, tmp_path: Path, kind: str) -> None:
    """Train-shaped weights → export → serve → device: any plan and temperature gives the target's own text."""
    bundle = make_kind(kind, target.folder, tmp_path)
    plans: list[tuple[Plan, Sampling | None]] = [
        (chain(3), None),
        (tree(8, 4), None),
        (chain(4, rounds=2, run_ahead=2), Sampling(0.8, seed=5)),
        (tree(8, 4), Sampling(0.8, seed=6)),
    ]
    with running_verifier(target.folder, bundle.path, drafter=tmp_path / "weights") as verifier:
        for plan, sampling in plans:
            prompt = target.prompt(f"tell me of {plan.max_nodes}")
            drafter: Any = bundle.drafter()
            device = Device(
                address=verifier.address,
                tokenizer=target.tokenizer,
                drafter=drafter,
                plan=plan,
                bundle=bundle.sha256,
                num_planes=len(bundle.planes),
            )
            answer = device.ask(prompt, COUNT, sampling)
            assert answer.ids == target.alone(prompt, COUNT, sampling)
            assert drafter.kind == kind and drafter.counters.nodes > 0 and drafter.counters.rows > 0
            _check_rows(drafter, (*prompt, *answer.ids), target.folder)


def _check_rows(drafter: Any, ids: tuple[int, ...], folder: Path) -> None:
    """What the device holds as rows are the target's final states (after the norm), as well as int8 can say it."""
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    with torch.no_grad():
        true = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
    known = np.flatnonzero(drafter.rows.valid[: len(ids)])
    assert len(known) >= len(ids) // 2
    error = np.abs(drafter.rows.planes[0][known] - true[known])
    assert (error <= np.abs(true[known]).max(axis=1, keepdims=True) / 127).all()
