"""The comparison on the same prompts: target, drafter, lossless rounds, the judge, controls of the same acceptance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.judge.families import Family, Task
from outrider.cloud.judge.mine import Propose, Text
from outrider.cloud.judge.passes import Line, Passes, Script
from outrider.cloud.judge.runs import Criterion, Run, RunSetting, alone, rounds
from outrider.cloud.judge.select import right
from outrider.cloud.judge.stats import mcnemar, ratio_interval, recovered_interval, wilson

TARGET, DRAFT, LOSSLESS, JUDGE = "target", "draft", "lossless", "judge"


@dataclass(frozen=True, slots=True)
class Answered:
    """One prompt, answered in every way."""

    index: int
    family: str
    template: str
    runs: Mapping[str, Run]
    right: Mapping[str, bool]

    def to_json(self) -> dict[str, Any]:
        """As a row of a file."""
        return {
            "index": self.index,
            "family": self.family,
            "template": self.template,
            "runs": {name: run.to_json() for name, run in self.runs.items()},
            "right": dict(self.right),
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Answered:
        """Read back."""
        runs = {name: Run.from_json(run) for name, run in row["runs"].items()}
        return cls(row["index"], row["family"], row["template"], runs, row["right"])


def answer_all(
    index: int,
    task: Task,
    family: Family,
    prompt: list[int],
    passes: Passes,
    text: Text,
    drafter: Callable[[], Propose],
    criteria: Mapping[str, Criterion],
    setting: RunSetting,
) -> Script[Answered]:
    """All answers to one prompt. What several of them begin with is read once."""
    line = Line(index)
    runs: dict[str, Run] = {}
    try:
        runs[TARGET] = yield from rounds(index, line, prompt, passes, None, None, setting)
        rows = passes.rows(index, 0, len(prompt) - 1)
        propose = drafter()
        runs[DRAFT] = alone(propose, prompt, rows, setting)
        ways: dict[str, Criterion | None] = {LOSSLESS: None, **criteria}
        for name, criterion in ways.items():
            runs[name] = yield from rounds(index, line, prompt, passes, propose, criterion, setting)
    finally:
        passes.forget(index)
    outcomes = {name: right(run.tokens, task, family, text, setting) for name, run in runs.items()}
    return Answered(index, task.family, task.template, runs, outcomes)


def summary(answered: Sequence[Answered], seed: int = 0) -> list[dict[str, Any]]:
    """One row per way, with intervals by prompt. Raises ValueError without prompts.

    ``tokens_per_call`` counts tokens and target passes behind the first of each answer. ``recovered`` is (acc -
    acc_draft) / (acc_target - acc_draft). ``p_lossless`` and ``p_judge`` are McNemar's exact p-values that the way errs
    as lossless rounds, or the judge, do.
    """
    if not answered:
        raise ValueError("nothing was answered")
    ordered = sorted(answered, key=lambda one: one.index)
    names = list(ordered[0].runs)
    outcomes = {name: np.asarray([one.right[name] for one in ordered], np.float64) for name in names}
    return [_row(name, ordered, outcomes, seed) for name in names]


def _row(
    name: str, ordered: Sequence[Answered], outcomes: Mapping[str, NDArray[np.float64]], seed: int
) -> dict[str, Any]:
    runs = [one.runs[name] for one in ordered]
    own, target, draft = outcomes[name], outcomes[TARGET], outcomes[DRAFT]
    later = np.asarray([run.later for run in runs], np.float64)
    passes = np.asarray([run.rounds for run in runs], np.float64)
    tested, judged = sum(run.tested for run in runs), sum(run.judged for run in runs)
    same = [run.tokens == one.runs[TARGET].tokens for run, one in zip(runs, ordered, strict=True)]
    row: dict[str, Any] = {
        "name": name,
        "prompts": len(runs),
        "accuracy": wilson(int(own.sum()), len(own)).to_json(),
        "recovered": recovered_interval(own, draft, target, seed).to_json(),
        "tokens_per_call": ratio_interval(later, passes, seed).to_json(),
        "judged": judged,
        "judged_of_tested": _share(judged, tested),
        "judged_of_tokens": _share(judged, int(later.sum())),
        "same_text": _share(sum(same), len(same)),
        "agreeing_tokens": _mean([_agreeing(one.runs[name], one.runs[TARGET]) for one in ordered]),
        "nll": _share(sum(run.nats for run in runs), int(later.sum())) if name != DRAFT else None,
        "p_lossless": _paired(own, outcomes[LOSSLESS]),
        "discordant": _share(int((own != outcomes[LOSSLESS]).sum()), len(own)),
        "by_family": _by_family(ordered, own),
    }
    if JUDGE in outcomes:
        row["p_judge"] = _paired(own, outcomes[JUDGE])
    return row


def _paired(own: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return round(mcnemar(int(((own == 1) & (other == 0)).sum()), int(((own == 0) & (other == 1)).sum())), 6)


def _share(part: float, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 2)


def _agreeing(run: Run, other: Run) -> int:
    count = 0
    for one, two in zip(run.tokens, other.tokens, strict=False):
        if one != two:
            break
        count += 1
    return count


def _by_family(ordered: Sequence[Answered], own: NDArray[np.float64]) -> dict[str, list[float | None]]:
    families = sorted({one.family for one in ordered})
    found = {}
    for family in families:
        mask = np.asarray([one.family == family for one in ordered])
        found[family] = wilson(int(own[mask].sum()), int(mask.sum())).to_json()
    return found


def findings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the comparison comes to, in sentences: also where the judge is no better than a control."""
    named = {row["name"]: row for row in rows}
    said = []
    target, draft, lossless = named[TARGET], named[DRAFT], named[LOSSLESS]
    if lossless["same_text"] != 1.0:
        said.append(
            f"lossless rounds gave the target's text in {lossless['same_text']:.1%} of the prompts only"
        )
    if target["accuracy"][0] <= draft["accuracy"][0]:
        said.append("the target is no better than the drafter here: there is nothing to recover")
    judge = named.get(JUDGE)
    if judge is None:
        return said
    if not judge["judged"]:
        said.append("the judge kept nothing that the target would not have said")
        return said
    lost = lossless["accuracy"][0] - judge["accuracy"][0]
    margin = max(1.645 * math.sqrt(judge["discordant"] / judge["prompts"]), 3 / judge["prompts"])
    said.append(
        f"judge: accuracy {judge['accuracy'][0]:.3f} against {lossless['accuracy'][0]:.3f} lossless "
        f"(p = {judge['p_lossless']:.3g}); a drop of {min(1.0, max(lost, 0.0) + margin):.3f} cannot be excluded"
    )
    for row in rows:
        if row["name"] in (TARGET, DRAFT, LOSSLESS, JUDGE):
            continue
        said.append(_against(row, judge))
    return said


def _against(row: Mapping[str, Any], judge: Mapping[str, Any]) -> str:
    ahead = judge["accuracy"][0] - row["accuracy"][0]
    shares = f"keeps {row['judged_of_tested'] or 0:.2f} of candidates, the judge {judge['judged_of_tested'] or 0:.2f}"
    if row["p_judge"] >= 0.05:
        return (
            f"{row['name']}: not told apart from the judge in accuracy (p = {row['p_judge']:.3g}); {shares}"
        )
    better = "less often right than" if ahead > 0 else "more often right than"
    return f"{row['name']}: {better} the judge (p = {row['p_judge']:.3g}); {shares}"
