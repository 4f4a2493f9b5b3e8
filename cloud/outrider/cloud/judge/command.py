"""What `outrider-cloud judge …` does, once its options are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider.cloud.judge import controls, evaluate
from outrider.cloud.judge.families import FAMILIES, Family, Split
from outrider.cloud.judge.fit import FitSetting, fit
from outrider.cloud.judge.head import JudgeHead
from outrider.cloud.judge.mine import Mined, Miner, Setting
from outrider.cloud.judge.passes import Script, together
from outrider.cloud.judge.records import FORMAT, LabelFile, Labels, read_labels
from outrider.cloud.judge.rowfile import RowFile
from outrider.cloud.judge.runs import Criterion, RunSetting
from outrider.cloud.judge.select import Ability, Tried, attempt, choose
from outrider.cloud.judge.workshop import Purpose, Workshop, make_tasks
from outrider.shared.errors import ConfigError

Say = Callable[[str], None]
_MINED_SPLITS = (Split.TRAIN, Split.TRAIN, Split.TRAIN, Split.VALIDATION)
_TRIED_SPLITS = (Split.TRAIN, Split.VALIDATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class MineRequest:
    """One mining run."""

    out: Path
    prompts: int
    tokens: int
    depth: int
    width: int
    """Prompts at once."""
    items: int
    """Per family, to see what target and drafter can do; 0 keeps every family."""
    min_target: float
    min_gap: float
    seed: int


def select(shop: Workshop, found: list[Family], request: MineRequest, say: Say) -> list[Ability]:
    """What target and drafter can do in each family, tried on prompts of their own; kept beside the labels."""
    tasks = make_tasks(found, request.items * len(found), Purpose.SELECT, request.seed, _TRIED_SPLITS)
    header = {"format": FORMAT, **shop.described(), "seed": request.seed, "tokens": request.tokens}
    header |= {"items": request.items, "families": [family.name for family in found]}
    file = RowFile(request.out.with_suffix(".select.jsonl"), header, "--out")
    done = {row["index"] for row in file.rows}
    setting = _run_setting(shop, request.tokens, request.depth)

    def scripts() -> Iterator[Script[Tried]]:
        for index, task in enumerate(tasks):
            if index not in done:
                family, prompt = FAMILIES[task.family], shop.prompt(task)
                yield attempt(index, task, family, prompt, shop.passes, shop.tokenizer, shop.drafter, setting)

    for number, tried in enumerate(together(scripts(), shop.passes, request.width), len(done) + 1):
        file.add(asdict(tried))
        if number % 50 == 0:
            say(f"tried {number} of {len(tasks)} items")
    tries = sorted((Tried(**row) for row in file.rows), key=lambda one: one.index)
    return list(choose(tries, min_target=request.min_target, min_gap=request.min_gap).values())


def mine(shop: Workshop, found: list[Family], request: MineRequest, say: Say) -> dict[str, Any]:
    """Mine labels into a file; what was mined before an interruption is kept. Returns counts."""
    tasks = make_tasks(found, request.prompts, Purpose.MINE, request.seed, _MINED_SPLITS)
    setting = Setting(tokens=request.tokens, depth=request.depth, stops=shop.stops, kept_out=shop.kept_out)
    header = {**shop.described(), "seed": request.seed, "prompts": request.prompts}
    header |= {
        "tokens": request.tokens,
        "depth": request.depth,
        "families": [family.name for family in found],
    }
    file = LabelFile(request.out, header)
    miner = Miner(shop.passes, shop.tokenizer, shop.drafter, setting, request.seed)

    def scripts() -> Iterator[Script[Mined]]:
        for index, task in enumerate(tasks):
            if index not in file.done:
                yield miner.script(index, task, FAMILIES[task.family], shop.prompt(task))

    for mined in together(scripts(), shop.passes, request.width):
        file.add(mined)
        good = sum(label.good for label in mined.labels)
        say(f"{len(file.done)} of {len(tasks)}: {mined.task.template}: {good} good of {len(mined.labels)}")
    labels = read_labels(request.out)
    return counts(labels)


def counts(labels: Labels) -> dict[str, Any]:
    """How many labels of which kind a file holds, in all and by family."""
    by_family: dict[str, dict[str, int]] = {}
    for row in labels.rows:
        own = by_family.setdefault(row.family, {"prompts": 0})
        own["prompts"] += 1
        for label in row.labels:
            name = f"{label.source}_{'good' if label.good else 'bad'}"
            own[name] = own.get(name, 0) + 1
    total: dict[str, int] = {}
    for own in by_family.values():
        for name, count in own.items():
            total[name] = total.get(name, 0) + count
    return {**total, "families": by_family, "digest": labels.digest}


def train(files: list[Path], out: Path, setting: FitSetting) -> JudgeHead:
    """Fit a head from label files of one target and save it. Raises ConfigError for files that do not go together."""
    read = [read_labels(path) for path in files]
    targets = {labels.header.get("target") for labels in read}
    if len(targets) != 1 or not all(isinstance(one, str) for one in targets):
        raise ConfigError("LABELS", "labels of different targets")
    rows = [row for labels in read for row in labels.rows]
    head = fit(rows, setting, target=str(targets.pop()), data_hash=_joint_digest(read))
    head.save(out)
    return head


def families_of(files: list[Path]) -> list[str]:
    """Families that label files hold rows of, in the project's order."""
    found = {row.family for path in files for row in read_labels(path, "--labels").rows}
    return [name for name in FAMILIES if name in found]


def _joint_digest(read: list[Labels]) -> str:
    if len(read) == 1:
        return read[0].digest
    return hashlib.sha256("".join(labels.digest for labels in read).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """One comparison."""

    head: Path
    labels: list[Path]
    """Whose validation candidates the controls are matched on."""
    delta: float | None
    items: int
    """Per family."""
    tokens: int
    depth: int
    width: int
    seed: int
    work: Path | None
    """File of finished prompts, resumed if it exists."""


def compare(shop: Workshop, found: list[Family], request: CompareRequest, say: Say) -> dict[str, Any]:
    """Answer test prompts in every way and sum up. Raises ConfigError for a head of another target."""
    head = JudgeHead.load(
        request.head, target=shop.target.weights.hex(), hidden=shop.target.hidden_size, option="--head"
    )
    judge = controls.judge_criterion(head, request.delta)
    matched = _matched(judge, request)
    ways = controls.criteria(judge, matched, request.seed)
    tasks = make_tasks(found, request.items * len(found), Purpose.COMPARE, request.seed, (Split.TEST,))
    header: dict[str, Any] = {"format": FORMAT, **shop.described(), "seed": request.seed}
    header |= {"items": request.items, "tokens": request.tokens, "depth": request.depth}
    header |= {"families": [family.name for family in found], "head": head.data_hash}
    header |= {"delta": head.delta if request.delta is None else request.delta, "matched": asdict(matched)}
    file = None if request.work is None else RowFile(request.work, header, "--work")
    answered = [evaluate.Answered.from_json(row) for row in (file.rows if file else [])]
    done = {one.index for one in answered}
    setting = _run_setting(shop, request.tokens, request.depth)

    def scripts() -> Iterator[Script[evaluate.Answered]]:
        for index, task in enumerate(tasks):
            if index not in done:
                family, prompt = FAMILIES[task.family], shop.prompt(task)
                yield evaluate.answer_all(
                    index, task, family, prompt, shop.passes, shop.tokenizer, shop.drafter, ways, setting
                )

    for one in together(scripts(), shop.passes, request.width):
        # As a resumed run would read it: figures then do not depend on interruptions, not even in the last digit.
        row = one.to_json()
        answered.append(evaluate.Answered.from_json(row))
        if file is not None:
            file.add(row)
        say(f"{len(answered)} of {len(tasks)}")
    rows = evaluate.summary(answered, request.seed)
    return {"rows": rows, "findings": evaluate.findings(rows), "settings": header}


def _matched(judge: Criterion, request: CompareRequest) -> controls.Matched:
    rows = [row for path in request.labels for row in read_labels(path, "--labels").rows]
    validation = [row for row in rows if row.split is Split.VALIDATION]
    try:
        return controls.match(judge, controls.candidates_of(validation), request.seed)
    except ValueError as error:
        raise ConfigError("--labels", str(error), remedy="name the files the head was fitted on") from error


def _run_setting(shop: Workshop, tokens: int, depth: int) -> RunSetting:
    return RunSetting(tokens=tokens, depth=depth, stops=shop.stops, kept_out=shop.kept_out)
