"""Synthetic files of laws, as a measurement of two real models would write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from outrider.netsim.theory.chains import Process, markov
from outrider.netsim.theory.pairs import Pair
from outrider.netsim.theory.sequence import Rule, opt_rule, uno_rule

BITS = 8
HEADER = {"format": "outrider-laws", "version": 1, "bits": BITS, "target": "synthetic", "draft": "sparse"}


def sparse_chain(rng: np.random.Generator, states: int, horizon: int, drafted: int) -> Process:
    """A chain whose draft says `drafted` tokens only, each law in 256ths."""

    def laws(shape: tuple[int, ...]) -> Pair:
        target = rng.dirichlet(np.ones(states), size=shape)
        counts = np.zeros((int(np.prod(shape, dtype=int)), states))
        for row in counts:
            likely = rng.permutation(states)[:drafted]
            row[likely] = 1 + rng.multinomial(2**BITS - drafted, rng.dirichlet(np.ones(drafted)))
        return Pair(target, counts.reshape((*shape, states)) / 2**BITS)

    return markov(laws(()), laws((horizon - 1, states)))


def entry(pair: Pair, token: int, rejected: bool | None) -> dict[str, Any]:
    """One position as the file has it, from dense laws [vocabulary]."""
    ids = np.flatnonzero(pair.draft)
    return {
        "draft": [round(count * 2**BITS) for count in pair.draft[ids].tolist()],
        "target": pair.target[ids].tolist(),
        "at": ids.tolist().index(token) if token in ids else -1,
        "rejected": rejected,
    }


def target_text(chain: Process, rng: np.random.Generator, prompt: str) -> dict[str, Any]:
    """A text drawn from the target alone."""
    state, positions = 0, []
    for step in chain.steps:
        pair = Pair(step.target[state], step.draft[state])
        token = int(rng.choice(chain.vocabulary, p=pair.target))
        positions.append(entry(pair, token, None))
        state = token
    return {"prompt": prompt, "rule": None, "positions": positions}


def rule_text(
    chain: Process, rng: np.random.Generator, prompt: str, epsilon: float, replace: str
) -> dict[str, Any]:
    """A text written by the ε-rule, one draft tested at every position."""
    rule: Rule = opt_rule(epsilon) if replace == "opt" else uno_rule(epsilon)
    state, positions = 0, []
    for step in chain.steps:
        pair = Pair(step.target[state], step.draft[state])
        accept, replacement = rule(pair)
        token = int(rng.choice(chain.vocabulary, p=pair.draft))
        rejected = bool(rng.random() >= accept[token])
        if rejected:
            token = int(rng.choice(chain.vocabulary, p=replacement))
        positions.append(entry(pair, token, rejected))
        state = token
    return {"prompt": prompt, "rule": {"epsilon": epsilon, "replace": replace}, "positions": positions}


def write(path: Path, lines: list[dict[str, Any]], header: dict[str, Any] | None = None) -> Path:
    """Write a file of laws."""
    path.write_text("".join(json.dumps(line) + "\n" for line in [header or HEADER, *lines]), encoding="utf-8")
    return path
