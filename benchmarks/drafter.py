"""How often the target takes what the drafter says, on held-out prompts, in real rounds without a network.

    python benchmarks/drafter.py --bundle drafter.onnx --weights models/smollm2-135m-instruct --prompts PROMPTS/moa-eval

For every prompt the target writes greedily; then the device's drafter (onnxruntime, one thread) drafts round by round
with state rows (through their int8 encoding) of everything but the last committed token. Emitted tokens per round count
the recovered or bonus token. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine
from numpy.typing import NDArray
from transformers import AutoTokenizer

from outrider.client.bundle import load_bundle
from outrider.client.drafter import Budget, Drafter
from outrider.cloud.moa.server_half import ServerHalf
from outrider.cloud.target import load_target
from outrider.cloud.train.corpus import distinct_fraction, read_json_lines, render_prompt, user_turn
from outrider.shared.codec import decode_rows, encode_rows
from outrider.shared.draft import Draft
from outrider.shared.frames import RowEncoding, RowPlane

CHAINS = (4, 6, 8)
DEPTH = max(CHAINS)
TREE = Budget(max_nodes=24, max_depth=DEPTH, tree=True)
ALONE_FROM = 20
MAX_PROMPT = 500

Rows = Sequence[NDArray[np.float32]]


@dataclass
class SetResult:
    """Sums over the prompts of one set."""

    rounds: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    matches: list[list[bool]] = field(default_factory=list)
    """Per depth 0..7, where the chain up to there was right: whether the next token was."""
    alone: list[bool] = field(default_factory=list)
    distinct: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)

    def count(self, name: str, rounds: int) -> None:
        """Add one prompt's rounds."""
        self.rounds[name] = self.rounds.get(name, 0) + rounds

    def figures(self) -> dict[str, float]:
        """Means of the set."""
        figures = {f"tau_{name}": self.tokens / rounds for name, rounds in self.rounds.items()}
        for depth in (0, 3, 7):
            seen = [match[depth] for match in self.matches if len(match) > depth and all(match[:depth])]
            figures[f"top1_depth{depth}"] = float(np.mean(seen)) if seen else 0.0
        figures["alone_top1"] = float(np.mean(self.alone)) if self.alone else 0.0
        figures["distinct_4grams"] = float(np.mean(self.distinct))
        return {name: round(value, 3) for name, value in figures.items()}


class Bench:
    """One target, its server half, and the device's drafter."""

    def __init__(self, target: str, dtype: str, weights: Path, bundle: Path, tokens: int):
        self.target = load_target(target, dtype=dtype, threads=0)
        self.half = ServerHalf.load(weights, self.target.model.config)
        self.planes = [
            RowPlane(plane.plane, plane.width, RowEncoding.INT8, plane.content, plane.parts)
            for plane in self.half.planes
        ]
        self.bundle = load_bundle(bundle)
        self.tokenizer = AutoTokenizer.from_pretrained(str(self.target.folder), local_files_only=True)
        self.tokens = tokens

    def run(self, prompt: str, result: SetResult) -> None:
        """All rounds of one prompt."""
        ids = render_prompt(self.tokenizer, prompt, MAX_PROMPT).tolist()
        text, rows = self._write(ids)
        if len(text) - len(ids) < 2:
            return
        result.distinct.append(distinct_fraction(np.asarray(text[len(ids) :], dtype=np.int32)))
        drafter = self.bundle.drafter()
        result.tokens += len(text) - len(ids) - 1
        drafts = self._drafts(drafter, text, rows, len(ids), result)
        for chain in CHAINS:
            result.count(f"chain{chain}", walk(drafts, chain))
        result.count("tree24", self._tree_rounds(drafter, text, rows, len(ids)))
        result.alone += self._alone(drafter, text, rows, len(ids))

    @torch.no_grad()
    def _write(self, prompt: list[int]) -> tuple[list[int], Rows]:
        """The target's greedy continuation, and the decoded state rows of all positions."""
        model: Any = self.target.model
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=self.tokens,
            do_sample=False,
            pad_token_id=self.target.stop_ids[0],
        )[0]
        cache = model.model(input_ids=out[None], use_cache=True).cache.layers
        kv = {layer: (cache[layer].keys[0], cache[layer].values[0]) for layer in self.half.needed_layers}
        made = self.half.rows(kv, None, torch.arange(len(out)))
        rows = [
            decode_rows(encode_rows(plane_rows.numpy(), plane), len(out), plane)
            for plane_rows, plane in zip(made, self.planes, strict=True)
        ]
        return out.tolist(), rows

    def _drafts(
        self, drafter: Drafter, text: list[int], rows: Rows, prompt: int, result: SetResult
    ) -> list[list[bool]]:
        """A greedy chain after every committed length, compared with the text token by token."""
        self._start(drafter, text, rows, prompt)
        drafts: list[list[bool]] = []
        for length in range(prompt + 1, len(text)):
            start = time.perf_counter()
            ids = drafter.propose(Budget(max_nodes=DEPTH, max_depth=DEPTH)).draft.ids
            result.step_ms.append(1000 * (time.perf_counter() - start) / DEPTH)
            drafts.append([one == other for one, other in zip(ids, text[length:], strict=False)])
            drafter.accept(text[length : length + 1])
            self._give(drafter, rows, length - 1, length)
        result.matches += drafts
        return drafts

    def _tree_rounds(self, drafter: Drafter, text: list[int], rows: Rows, prompt: int) -> int:
        """Rounds with trees of 24 nodes until `text` is committed."""
        self._start(drafter, text, rows, prompt)
        length, count = prompt + 1, 0
        while length < len(text):
            accepted = accepted_of(drafter.propose(TREE).draft, text[length:])
            stop = min(length + accepted + 1, len(text))
            drafter.accept(text[length:stop])
            self._give(drafter, rows, length - 1, stop - 1)
            length = stop
            count += 1
        return count

    def _start(self, drafter: Drafter, text: list[int], rows: Rows, prompt: int) -> None:
        """As after the prefill: the first answer token is committed, the prompt's rows have come."""
        drafter.rollback(0)
        drafter.begin(text[: prompt + 1])
        self._give(drafter, rows, 0, prompt)

    def _alone(self, drafter: Drafter, text: list[int], rows: Rows, prompt: int) -> list[bool]:
        """Best-token agreement from the 20th token on when no row arrives after the prompt's."""
        self._start(drafter, text, rows, prompt)
        agreed = []
        for token in text[prompt + 1 :]:
            agreed.append(drafter.propose(Budget(max_nodes=1, max_depth=1)).draft.ids[0] == token)
            drafter.accept([token])
        return agreed[ALONE_FROM:]

    def _give(self, drafter: Drafter, rows: Rows, start: int, stop: int) -> None:
        for plane, values in enumerate(rows):
            drafter.add_rows(plane, start, values[start:stop])


def walk(drafts: Sequence[Sequence[bool]], chain: int) -> int:
    """Rounds of chains of `chain` tokens over the matches after every committed length."""
    place, rounds = 0, 0
    while place < len(drafts):
        accepted = 0
        while accepted < min(chain, len(drafts[place])) and drafts[place][accepted]:
            accepted += 1
        place += accepted + 1
        rounds += 1
    return rounds


def accepted_of(draft: Draft, truth: Sequence[int]) -> int:
    """Tokens of `truth` that the draft holds as a path from its base."""
    children = {
        (parent, token): node + 1
        for node, (parent, token) in enumerate(zip(draft.parents, draft.ids, strict=True))
    }
    node, accepted = 0, 0
    for token in truth:
        if (node, token) not in children:
            break
        node = children[node, token]
        accepted += 1
    return accepted


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="folder of JSON-lines files, one per set")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--per-set", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    bench = Bench(options.target, options.dtype, options.weights, options.bundle, options.tokens)
    sets: dict[str, dict[str, float]] = {}
    steps: list[float] = []
    for path in sorted(options.prompts.glob("*.jsonl")):
        result = SetResult()
        rows = list(read_json_lines(path))
        for row in rows[:: max(1, len(rows) // options.per_set)][: options.per_set]:
            bench.run(user_turn(row), result)
        sets[path.stem] = result.figures()
        steps += result.step_ms
        print(path.stem, sets[path.stem], file=sys.stderr, flush=True)
    names = next(iter(sets.values()))
    mean = {name: round(statistics.mean(figures[name] for figures in sets.values()), 3) for name in names}
    step = {"median": round(statistics.median(steps), 3), "p10": round(sorted(steps)[len(steps) // 10], 3)}
    print("mean", mean, "chain step ms", step, file=sys.stderr)
    settings = {"per_set": options.per_set, "tokens": options.tokens, "dtype": options.dtype}
    step_key = "chain_step_ms"
    print(json.dumps({"sets": sets, "mean": mean, step_key: step, "machine": machine(**settings)}))


if __name__ == "__main__":
    main()
