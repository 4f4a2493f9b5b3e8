"""The evaluation itself: every contender on every prompt, the target's texts shared among them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from outrider.cloud.evaluate.contenders import Contender
from outrider.cloud.evaluate.figures import RESAMPLES, Figure, Summary, summarise
from outrider.cloud.evaluate.prompts import PromptSet, chat_ids
from outrider.cloud.evaluate.rounds import DEPTH, TREES, Case, Tally, Times, measure_offline, measure_rounds
from outrider.cloud.evaluate.texts import TargetText, TextRequest, TextStore
from outrider.cloud.train.corpus import distinct_fraction
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    per_set: int = 8
    """Prompts of each category."""
    tokens: int = 64
    """Answer tokens over which rounds run."""
    temperature: float = 0.0
    """0: greedy; above: `coupled`, and drafts guess the same coins."""
    seed: int = 1
    """Of the coins and of the bootstrap."""
    offline: bool = False
    """Whether drafting after a cut is measured."""
    offline_tokens: int = 160
    """Answer tokens for that."""
    trees: tuple[int, ...] = TREES
    """Nodes of the trees that are measured."""
    judged: bool = True
    """Whether the target judges what a drafter writes when left alone (a pass of the target per prompt and cut)."""

    @property
    def sampling(self) -> Sampling:
        """How target and drafters choose."""
        return Sampling(self.temperature, seed=self.seed) if self.temperature else Sampling()

    @property
    def length(self) -> int:
        """Answer tokens the target writes."""
        least = self.tokens + DEPTH + 1
        return max(least, self.offline_tokens + 1) if self.offline else least


@dataclass(frozen=True, slots=True)
class Result:
    """One contender's figures."""

    contender: Contender
    plan: Plan
    summary: Summary
    tallies: dict[str, list[Tally]]
    """Per prompt, by category."""
    step_ms: float | None
    """Median time of a chain step."""
    tree_pass_ms: float | None
    """Median time of a pass with up to eight tree nodes."""
    seconds: float
    """CPU time measuring took."""

    def row(self) -> dict[str, Any]:
        """As JSON: scalars of the mean over categories at the top, intervals and categories below."""
        c = self.contender
        mean = self.summary.mean
        row: dict[str, Any] = {
            "name": c.name,
            "kind": c.kind,
            "temperature": self.plan.temperature,
            "bundle": c.digest,
            "parameters": c.parameters,
            "row_bytes": c.row_bytes,
            "step_ms": _rounded(self.step_ms),
            "tree_pass_ms": _rounded(self.tree_pass_ms),
            "acceptance": [
                _rounded(mean[key].value) if (key := f"acceptance_{depth}") in mean else None
                for depth in range(1, DEPTH + 1)
            ],
        }
        row |= {name: _rounded(figure.value) for name, figure in mean.items() if "acceptance_" not in name}
        row["intervals"] = {name: _interval(figure) for name, figure in mean.items()}
        row["categories"] = {
            category: {"prompts": len(self.tallies[category])}
            | {name: [_rounded(figure.value), *_interval(figure)] for name, figure in figures.items()}
            for category, figures in self.summary.categories.items()
        }
        row["seconds"] = round(self.seconds, 1)
        return row


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt's place and the target's text to it."""

    category: str
    text: TargetText


def questions(
    sets: Sequence[PromptSet], plan: Plan, store: TextStore, tokenizer: Tokenizer, report: Report
) -> list[Question]:
    """The target's texts, written where the store lacks them. Texts of less than two tokens are left out."""
    stops = stop_ids(store, tokenizer)
    found: list[Question] = []
    for one in sets:
        requests = [
            TextRequest(
                prompt=chat_ids(tokenizer, message),
                tokens=plan.length,
                stated=plan.tokens + DEPTH + 1,
                sampling=plan.sampling,
                stop_ids=stops,
            )
            for message in one.spread(plan.per_set)
        ]
        written = store.written
        texts = store.get(requests)
        found += [Question(one.category, text) for text in texts if len(text.answer) >= 2]
        report(f"{one.category}: {len(texts)} prompts, {store.written - written} texts written now")
    return found


def stop_ids(store: TextStore, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids that end a text: the target's and the chat format's."""
    return tuple(sorted({*store.target.stop_ids, *tokenizer.stop_ids}))


def evaluate(
    contenders: Sequence[Contender],
    asked: Sequence[Question],
    plan: Plan,
    store: TextStore,
    stops: Sequence[int],
) -> Iterator[Result]:
    """Figures of each contender, as soon as it is through."""
    for contender in contenders:
        begun = time.process_time()
        drafter, times = contender.make(), Times()
        tallies: dict[str, list[Tally]] = {}
        for question in asked:
            text = question.text
            case = Case(
                ids=text.ids,
                prompt=text.prompt,
                tokens=plan.tokens,
                rows=contender.rows(text),
                sampling=plan.sampling,
            )
            tally = measure_rounds(drafter, case, times, nested=contender.nested, trees=plan.trees)
            if plan.offline:
                tally |= _offline(drafter, case, text, plan, store, stops)
            tally["distinct_4grams"] = (distinct_fraction(np.asarray(text.answer, np.int32)), 1.0)
            tallies.setdefault(question.category, []).append(tally)
        yield Result(
            contender,
            plan,
            summarise(tallies, seed=plan.seed, resamples=RESAMPLES),
            tallies,
            statistics.median(times.steps) if times.steps else None,
            statistics.median(times.passes) if times.passes else None,
            time.process_time() - begun,
        )


@torch.inference_mode()
def _offline(
    drafter: Any, case: Case, text: TargetText, plan: Plan, store: TextStore, stops: Sequence[int]
) -> Tally:
    head = store.head

    def surprise(position: int, token: int) -> float:
        return text.surprise(head, position, token)

    return measure_offline(drafter, case, stops, surprise, store.judge if plan.judged else None)


def settings(plan: Plan, target: str, dtype: str) -> dict[str, Any]:
    """What a result depends on beside drafter and prompts, for the record."""
    return {
        **asdict(plan),
        "target": target,
        "dtype": dtype,
        "depth": DEPTH,
        "resamples": RESAMPLES,
        "text": "the engine's own (empty drafts), " + ("coupled" if plan.temperature else "greedy"),
        "times": "CPU time of the drafting thread, medians",
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _interval(figure: Figure) -> list[float | None]:
    return [_rounded(figure.low), _rounded(figure.high)]
