"""Records of `disconnection.py` as tallies for `figures.summarise`: per task, numerator and denominator of a figure.

Names: ``right`` (the target's own answer), ``right_25`` (its first quarter, as streaming leaves it), and per drafter
the same with the rest written alone; ``same_…``: the verdict is that on the target's own answer. ``…_25_5s``: an outage
of five seconds at a quarter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.cloud.evaluate.cuts import during
from outrider.cloud.evaluate.scoring.passk import pass_at_k
from outrider.shared.frames import CostCurve

Record = Mapping[str, Any]
Tally = dict[str, tuple[float, float]]
BUCKETS = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 128), (129, 256))
"""Offline positions, both ends included; 1 is the first token without a link."""


def percent(share: float) -> str:
    """How a cut is called in names of figures."""
    return f"{100 * share:g}"


def target_tally(record: Record) -> Tally:
    """The target's own answer, and what plain streaming leaves of it where the link goes for good."""
    tally = {"right": _one(record["right"]), "ended": _one(record["ended"])}
    tally["tokens"] = (float(record["answer"]), 1.0)
    for cut in record["cuts"]:
        name = percent(cut["share"])
        tally[f"right_{name}"] = _one(cut["right"])
        tally[f"same_{name}"] = _one(cut["right"] == record["right"])
    return tally


def alone_tally(record: Record, drafter: str) -> Tally:
    """What became of a task's answer in the hands of one drafter, cut for good."""
    tally: Tally = {}
    for cut in record["cuts"]:
        name, found = percent(cut["share"]), cut["alone"][drafter]
        tally[f"right_{name}"] = _one(found["right"])
        tally[f"same_{name}"] = _one(found["right"] == record["right"])
        tally[f"drafted_{name}"] = (float(found["drafted"]), 1.0)
        tally[f"kept_{name}"] = (float(found["kept"]), 1.0)
        tally[f"ended_{name}"] = _one(found["ended"])
        if "exact" in found:
            _add(tally, "exact", float(found["exact"]))
            _positions(tally, record, cut, found)
    return tally


def _positions(tally: Tally, record: Record, cut: Record, found: Record) -> None:
    """Agreement and surprise by offline position, all cuts together."""
    text = record["nll"][cut["cut"] :]
    for first, last in BUCKETS:
        bucket = f"{first}_{last}"
        for place in range(first - 1, min(last, found["drafted"])):
            _add(tally, f"agree_{bucket}", float(found["agrees"][place] == "1"))
            _add(tally, f"nll_{bucket}", found["nll"][place])
            _add(tally, f"held_{bucket}", float(place < found["kept"]))
        for nats in text[first - 1 : last]:
            _add(tally, f"text_{bucket}", nats)


def outage_tally(
    record: Record, drafter: str, seconds: Sequence[float], *, step_s: float, rtt_s: float, cost: CostCurve
) -> Tally:
    """What outages of so many seconds do at each cut, on a device that takes ``step_s`` for a token."""
    tally: Tally = {}
    for cut in record["cuts"]:
        found = cut["alone"][drafter]
        for length in seconds:
            outage = during(
                length,
                whole=found["drafted"],
                kept=found["kept"],
                step_s=step_s,
                rtt_s=rtt_s,
                cost=cost,
            )
            name = f"{percent(cut['share'])}_{length:g}s"
            tally[f"drafted_{name}"] = (float(outage.drafted), 1.0)
            tally[f"kept_{name}"] = (float(outage.kept), 1.0)
            tally[f"revised_{name}"] = (float(outage.revised), 1.0)
            tally[f"finished_{name}"] = _one(outage.finished and found["ended"])
            tally[f"reconcile_ms_{name}"] = (1e3 * outage.reconcile_s, 1.0)
    return tally


def pass_tally(record: Record, drafter: str | None, counts: Sequence[int]) -> Tally:
    """pass@k from a task's samples: of the target, and of its cut answers, with the rest by ``drafter`` or without."""
    samples = record["samples"]
    verdicts: dict[str, list[bool]] = {}
    for sample in samples:
        if drafter is None:
            verdicts.setdefault("", []).append(sample["right"])
        for cut in sample["cuts"]:
            right = cut["right"] if drafter is None else cut["alone"][drafter]["right"]
            verdicts.setdefault("_" + percent(cut["share"]), []).append(right)
    return {
        f"pass{k}{name}": (pass_at_k(len(found), sum(found), k), 1.0)
        for name, found in verdicts.items()
        for k in counts
        if k <= len(found)
    }


def step_ms(records: Sequence[Record], drafter: str) -> float:
    """Time of a token drafted alone: mean over all of them. nan where there are none."""
    pairs = [
        (
            cut["alone"][drafter]["step_ms"] * cut["alone"][drafter]["drafted"],
            cut["alone"][drafter]["drafted"],
        )
        for record in records
        for cut in record["cuts"]
    ]
    tokens = sum(count for _, count in pairs)
    return sum(took for took, _ in pairs) / tokens if tokens else float("nan")


def _one(value: bool) -> tuple[float, float]:
    return float(value), 1.0


def _add(tally: Tally, name: str, value: float) -> None:
    total, count = tally.get(name, (0.0, 0.0))
    tally[name] = (total + value, count + 1)
