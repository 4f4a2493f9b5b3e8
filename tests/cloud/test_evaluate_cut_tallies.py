"""From records of disconnections to figures, on records whose figures are counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.cloud.evaluate import cut_tallies as tallies
from outrider.cloud.evaluate.figures import summarise
from outrider.shared.frames import CostCurve

COST = CostCurve((1, 64), (40_000, 103_000), 128, 500)


def alone(drafted: int, kept: int, right: bool, **more: Any) -> dict[str, Any]:
    """What a drafter made of a cut."""
    agrees = "1" * kept + "0" * (drafted - kept)
    nll = [0.5] * kept + [4.0] * (drafted - kept)
    found = {"drafted": drafted, "ended": True, "kept": kept, "right": right, "step_ms": 2.0}
    return {**found, "agrees": agrees, "nll": nll, "exact": True, **more}


def record(right: bool, cut_right: bool, one: dict[str, Any]) -> dict[str, Any]:
    """An answer of eight tokens, cut in its middle."""
    cut = {"share": 0.5, "cut": 4, "right": cut_right, "alone": {"moa": one}}
    return {"answer": 8, "ended": True, "right": right, "nll": [0.25] * 8, "cuts": [cut]}


RECORDS = [
    record(True, False, alone(6, 1, True)),
    record(True, False, alone(4, 4, False, step_ms=6.0)),
    record(False, False, alone(2, 0, False)),
    record(False, True, alone(2, 0, True)),
]


def figure(found: list[tallies.Tally], name: str) -> float:
    """Its value over all tasks."""
    return summarise({"all": found}).categories["all"][name].value


def test_verdicts_are_counted() -> None:
    """Right and same verdict, of the target, the bare cut, and the drafter."""
    own = [tallies.target_tally(one) for one in RECORDS]
    moa = [tallies.alone_tally(one, "moa") for one in RECORDS]
    assert (figure(own, "right"), figure(own, "right_50"), figure(own, "same_50")) == (0.5, 0.25, 0.25)
    assert (figure(moa, "right_50"), figure(moa, "same_50"), figure(moa, "kept_50")) == (0.5, 0.5, 1.25)
    assert figure(moa, "exact") == 1.0 and figure(own, "tokens") == 8.0


def test_positions_are_folded() -> None:
    """By offline position: agreement, what still stands, and surprise beside the target's at its own text."""
    moa = [tallies.alone_tally(one, "moa") for one in RECORDS]
    assert figure(moa, "agree_1_1") == 0.5 and figure(moa, "held_1_1") == 0.5
    assert figure(moa, "agree_2_2") == 0.25 and figure(moa, "agree_3_4") == 0.5
    assert figure(moa, "agree_5_8") == 0.0 and "agree_9_16" not in moa[0]
    assert figure(moa, "nll_2_2") == pytest.approx((3 * 4.0 + 0.5) / 4) and figure(moa, "text_3_4") == 0.25
    assert [moa[0]["text_3_4"][1], "text_5_8" in moa[0]] == [2.0, False]  # the answer ends four tokens on


def test_agreement_after_a_difference_still_counts_as_agreement() -> None:
    """What the target would say to the device's own text is one thing, what stands after a reconcile another."""
    tally = tallies.alone_tally(record(True, True, alone(4, 1, True, agrees="1011")), "moa")
    assert tally["agree_3_4"] == (2.0, 2.0) and tally["held_3_4"] == (0.0, 2.0)


def test_outages_are_arithmetic() -> None:
    """Ten milliseconds at 2 ms a token: at most five tokens; a pass costs 40 ms and 1 ms a row more."""
    found = [
        tallies.outage_tally(one, "moa", (0.01, 20.0), step_s=0.002, rtt_s=0.1, cost=COST) for one in RECORDS
    ]
    assert figure(found, "drafted_50_0.01s") == (5 + 4 + 2 + 2) / 4
    assert figure(found, "revised_50_20s") == (5 + 0 + 2 + 2) / 4
    assert (figure(found, "finished_50_0.01s"), figure(found, "finished_50_20s")) == (0.75, 1.0)
    assert figure(found, "reconcile_ms_50_20s") == pytest.approx(140 + (6 + 4 + 2 + 2) / 4)


def test_step_time_is_a_mean_over_tokens() -> None:
    """Long texts count with all their tokens; nothing drafted has no time."""
    assert tallies.step_ms(RECORDS, "moa") == pytest.approx((6 * 2 + 4 * 6 + 2 * 2 + 2 * 2) / 14)
    assert tallies.step_ms([], "moa") != tallies.step_ms([], "moa")


def test_pass_at_k_of_samples() -> None:
    """Of the target, of the bare cut and of the drafter; a k above the samples is left out."""
    samples = [record(n < 2, False, alone(2, 0, n < 1)) for n in range(4)]
    found = {"samples": samples}
    own = tallies.pass_tally(found, None, (1, 2, 5))
    assert own == {
        "pass1": (0.5, 1.0),
        "pass2": (pytest.approx(1 - 1 / 6), 1.0),
        "pass1_50": (0.0, 1.0),
        "pass2_50": (0.0, 1.0),
    }
    assert tallies.pass_tally(found, "moa", (1,)) == {"pass1_50": (0.25, 1.0)}


def test_an_answer_too_short_to_cut_counts_as_a_whole() -> None:
    """It has no cuts and no part in their figures."""
    short = {"answer": 1, "ended": True, "right": True, "cuts": []}
    assert tallies.target_tally(short)["right"] == (1.0, 1.0) and tallies.alone_tally(short, "moa") == {}
    assert tallies.percent(0.1) == "10"
