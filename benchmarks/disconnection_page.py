"""Figures and tables of `disconnection.py`, from its records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.cloud.evaluate import cut_tallies as tallies
from outrider.cloud.evaluate.cut_tallies import BUCKETS, Tally, percent
from outrider.cloud.evaluate.figures import Figure, difference, summarise
from outrider.cloud.evaluate.tables import NONE, markdown
from outrider.shared.frames import CostCurve

Record = dict[str, Any]
Records = Mapping[str, Sequence[Record]]
Shown = list[float | None]
"""A figure and the ends of its interval."""
TARGET = "the target alone"
STREAMING = "plain streaming"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """How records are read."""

    outages_s: Sequence[float]
    rtt_ms: float
    step_ms: Sequence[float]
    """Devices by time of a token, beside the one that was measured."""
    counts: Sequence[int]
    """k of pass@k."""
    seed: int
    """Of the bootstrap."""


def results(
    greedy: Records, sampled: Records, drafters: Sequence[str], cost: CostCurve, ways: Ways
) -> Record:
    """Everything that the page and the figures say, per set of tasks."""
    kinds = [kind for kind in greedy if greedy[kind] or sampled[kind]]
    return {
        "cost_us": dict(zip(map(str, cost.widths), cost.costs_us, strict=True)),
        "sets": {kind: _set(greedy[kind], sampled[kind], drafters, cost, ways) for kind in kinds},
    }


def _set(
    greedy: Sequence[Record], sampled: Sequence[Record], drafters: Sequence[str], cost: CostCurve, ways: Ways
) -> Record:
    own = [tallies.target_tally(record) for record in greedy]
    alone = {name: [tallies.alone_tally(record, name) for record in greedy] for name in drafters}
    shares = [cut["share"] for record in greedy for cut in record["cuts"]]
    found: Record = {
        "tasks": len(greedy),
        "uncut": sum(not record["cuts"] for record in greedy),
        "shares": sorted(set(shares)),
        "target": _figures(own, ways.seed),
        "drafters": {name: _figures(alone[name], ways.seed) for name in drafters},
        "over_streaming": {name: _gains(alone[name], own, ways.seed) for name in drafters},
        "outages": [],
        "sampled_tasks": len(sampled),
        "pass": {},
    }
    for name in drafters:
        measured = tallies.step_ms(greedy, name)
        for step_ms, label in [(measured, "measured"), *((step, "assumed") for step in ways.step_ms)]:
            per_task = [
                tallies.outage_tally(
                    record,
                    name,
                    ways.outages_s,
                    step_s=step_ms / 1e3,
                    rtt_s=ways.rtt_ms / 1e3,
                    cost=cost,
                )
                for record in greedy
            ]
            row = {"drafter": name, "step_ms": round(step_ms, 3), "step": label}
            found["outages"].append({**row, "figures": _figures(per_task, ways.seed)})
    for who in (None, *drafters):
        per_task = [tallies.pass_tally(record, who, ways.counts) for record in sampled]
        found["pass"][who or TARGET] = _figures(per_task, ways.seed)
    found["records"] = [_compact(record, drafters) for record in greedy]
    return found


def _figures(per_task: Sequence[Tally], seed: int) -> dict[str, Shown]:
    """Name -> value, low, high."""
    found = summarise({"all": per_task}, seed=seed).categories.get("all", {})
    return {name: _shown(figure) for name, figure in found.items()}


def _gains(alone: Sequence[Tally], own: Sequence[Tally], seed: int) -> dict[str, Shown]:
    """Right answers of the drafter less those of the bare cut, in pairs."""
    names = sorted({name for tally in alone for name in tally if name.startswith("right_")})
    found = {name: difference({"all": alone}, {"all": own}, name, seed=seed) for name in names}
    return {name: _shown(figure) for name, figure in found.items() if figure is not None}


def _shown(figure: Figure) -> Shown:
    return [round(value, 4) for value in (figure.value, figure.low, figure.high)]


def _compact(record: Record, drafters: Sequence[str]) -> Record:
    """Verdicts and counts of a task, without what is said of each token."""
    cuts = [
        [
            cut["cut"],
            int(cut["right"]),
            *([one[n] if n[0] in "dk" else int(one[n]) for n in ("drafted", "kept", "ended", "right")]
              for one in (cut["alone"][name] for name in drafters)),
        ]
        for cut in record["cuts"]
    ]  # fmt: skip
    return {
        "task": record["task"],
        "answer": record["answer"],
        "ended": int(record["ended"]),
        "right": int(record["right"]),
        "cuts": cuts,
    }


# ------------------------------------------------------------------------------------------------------------- tables


def markdown_page(result: Record) -> str:
    """The whole page."""
    settings, about = result["settings"], result["machine"]
    parts = [
        "# What a disconnection does to answers\n",
        f"Target {settings['target']} ({settings['dtype']}), answers of at most {settings['tokens']} tokens, greedy "
        "unless said otherwise. Brackets hold 95 %: percentile bootstrap by task, 1,000 resamples, "
        f"seed {settings['seed']}. Commit {about['commit']}, {about['cpu']}, Python {about['python']}.\n",
        "The target is small: its own scores (*whole*) are all that its answers can be worth. Where they are near the "
        "floor, scores after a cut say little; *same verdict* (right where the target is right, wrong where it is "
        "wrong) says more, though an answer that stays wrong counts there as well.\n",
        f"Sandbox: {settings['sandbox']}.\n",
    ]
    for kind, found in result["sets"].items():
        parts.append(f"## {kind}: {found['tasks']} tasks\n")
        if found["uncut"]:
            parts.append(f"{found['uncut']} answers were too short to be cut and count as a whole only.\n")
        if found["tasks"]:
            parts += [_says(found), *_scores(found), _positions(found), *_outages(found, settings)]
        if found["sampled_tasks"]:
            parts += _pass(found, settings)
    return "\n".join(parts)


def _cell(figures: Mapping[str, Shown], name: str, scale: float = 100, digits: int = 0) -> str:
    found = figures.get(name)
    if found is None:
        return NONE
    value, low, high = (f"{scale * (one or 0.0):.{digits}f}" for one in found)
    return f"{value} [{low}, {high}]"


Line = tuple[str, Mapping[str, Shown], str]
"""Label, figures, and what stands before the cut in their names."""


def _by_cut(shares: Sequence[float], head: str, lines: Sequence[Line], whole: str = "") -> str:
    """Lines by cut; the first of them also for the whole answer, if that is given."""
    names = [percent(share) for share in shares]
    body = []
    for number, (label, figures, prefix) in enumerate(lines):
        first = [NONE if number else whole] if whole else []
        body.append([label, *first, *(_cell(figures, f"{prefix}_{name}") for name in names)])
    return markdown([head, *(["whole"] if whole else []), *(f"cut at {name} %" for name in names)], body)


def _says(found: Record) -> str:
    """The tables in a paragraph, for the first drafter and the cut in the middle."""
    who = next(iter(found["drafters"]))
    own, alone = found["target"], found["drafters"][who]
    share = percent(found["shares"][len(found["shares"]) // 2])
    gain = found["over_streaming"][who].get(f"right_{share}", [0.0, None, None])
    low, high = (one if one is not None else 0.0 for one in gain[1:])
    told = "better" if low > 0 else "worse" if high < 0 else "no difference that could be told from chance"
    words = [
        f"**What it says.** The target's whole answers are right in {_cell(own, 'right')} %. Cut for good at {share} "
        f"%, what plain streaming had shown is right in {_cell(own, f'right_{share}')} %, what {who} makes of it alone "
        f"in {_cell(alone, f'right_{share}')} %: {told}.",
        f"The target, given the same text, would have said {_cell(alone, 'agree_1_1')} % of the first tokens written "
        f"alone and {_cell(alone, 'agree_17_32')} % of the 17th to 32nd; its own answer they still are in "
        f"{_cell(alone, 'held_1_1')} % and {_cell(alone, 'held_17_32')} %.",
        f"Of {_cell(alone, f'drafted_{share}', 1)} tokens that the device writes to the end of such an answer, "
        f"{_cell(alone, f'kept_{share}', 1, 1)} stand after a reconcile.",
    ]
    if alone[f"kept_{share}"][0] < 0.2 * alone[f"drafted_{share}"][0]:  # type: ignore[operator]
        words.append(
            "What is shown in an outage is a text to read on with; most of it is replaced afterwards."
        )
    return " ".join(words) + "\n"


def _scores(found: Record) -> list[str]:
    own, drafters, shares = found["target"], found["drafters"], found["shares"]
    ends, alone, over = f"{STREAMING}: ends there", "{} writes on alone", "{} over streaming, in pairs"
    right: list[Line] = [(ends, own, "right")]
    right += [(alone.format(who), figures, "right") for who, figures in drafters.items()]
    right += [(over.format(who), figures, "right") for who, figures in found["over_streaming"].items()]
    same: list[Line] = [(ends, own, "same")]
    same += [(alone.format(who), figures, "same") for who, figures in drafters.items()]
    return [
        "Cut for good, right answers in %. *whole* is the target's own answer, which is also what every answer is "
        "after a reconcile.\n",
        _by_cut(shares, "right", right, _cell(own, "right")),
        _by_cut(shares, "same verdict as the target", same),
    ]


def _positions(found: Record) -> str:
    own = [f"{first}_{last}" for first, last in BUCKETS]
    spans = [s for s in own if any(f"agree_{s}" in f for f in found["drafters"].values())]
    lines = []
    for who, figures in found["drafters"].items():
        lines += [
            [f"{who}: the target would have said it, %", *(_cell(figures, f"agree_{s}") for s in spans)],
            [f"{who}: still in the target's own text, %", *(_cell(figures, f"held_{s}") for s in spans)],
            [f"{who}: the target's NLL of it, nats", *(_cell(figures, f"nll_{s}", 1, 2) for s in spans)],
        ]
    first: Mapping[str, Shown] = next(iter(found["drafters"].values()), {})
    lines.append(
        ["the target's NLL of its own text there", *(_cell(first, f"text_{s}", 1, 2) for s in spans)]
    )
    return "Text written alone, by offline position, all cuts together.\n\n" + markdown(
        ["position", *(_span(s) for s in spans)], lines
    )


def _span(name: str) -> str:
    first, _, last = name.partition("_")
    return first if first == last else f"{first}–{last}"


def _outages(found: Record, settings: Record) -> list[str]:
    exact = [
        f"{who}: {_cell(figures, 'exact')} %"
        for who, figures in found["drafters"].items()
        if "exact" in figures
    ]
    parts = [
        "Reconciled text equal to the target's own, checked by the target on every text written alone: "
        f"{'; '.join(exact)}.\n",
        "Outages: plain streaming shows nothing for their length and ends with the same answer. Means per answer. "
        f"To reconcile takes a round trip of {settings['rtt_ms']:g} ms and one pass over what was drafted.\n",
    ]
    for row in found["outages"]:
        figures, lines = row["figures"], []
        for share in found["shares"]:
            for seconds in sorted({name.rpartition("_")[2] for name in figures}, key=lambda s: float(s[:-1])):
                name = f"{percent(share)}_{seconds}"
                lines.append(
                    [
                        f"{percent(share)} %, {seconds[:-1]} s",
                        *(_cell(figures, f"{what}_{name}", 1, 1) for what in ("drafted", "kept", "revised")),
                        _cell(figures, f"finished_{name}"),
                        _cell(figures, f"reconcile_ms_{name}", 1),
                    ]
                )
        head = f"{row['drafter']}, {row['step_ms']:g} ms a token ({row['step']})"
        columns = ["tokens alone", "kept", "revised", "answer finished alone, %", "reconcile, ms"]
        parts.append(markdown([head, *columns], lines))
    return parts


def _pass(found: Record, settings: Record) -> list[str]:
    names = sorted({name for figures in found["pass"].values() for name in figures})
    counts = sorted({name.partition("_")[0] for name in names}, key=lambda name: int(name[4:]))
    parts = [
        f"pass@k in %, {found['sampled_tasks']} tasks, {settings['samples']} samples each at temperature "
        f"{settings['temperature']:g} (coupled: device and target share the noise), unbiased estimator. Few tasks "
        "and few samples: read the brackets.\n"
    ]
    shares = _shares(names)
    for count in counts:
        lines: list[Line] = [
            (f"{STREAMING}: ends there" if who == TARGET else f"{who} writes on alone", figures, count)
            for who, figures in found["pass"].items()
        ]
        parts.append(_by_cut(shares, f"pass@{count[4:]}", lines, _cell(found["pass"][TARGET], count)))
    return parts


def _shares(names: Sequence[str]) -> list[float]:
    return sorted({float(name.partition("_")[2]) / 100 for name in names if "_" in name})
