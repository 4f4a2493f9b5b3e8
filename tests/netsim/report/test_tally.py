"""Counts of logs against counts by hand, and their laws."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.client.events import Label, LinkState
from outrider.netsim.errors import BadConfig
from outrider.netsim.events.reader import EventLog
from outrider.netsim.events.schema import EndLine, Line, LinkLine, RoundLine, Run, TokensLine, TurnLine
from outrider.netsim.report import tables
from outrider.netsim.report.grid import Point, crossings, curves, panels, points_of_logs, read_grid
from outrider.netsim.report.ride import ride
from outrider.netsim.report.tally import Counted, Tally, by_category, count, decided, grouped
from tests.netsim.small_log import LINES, RUN, A, B, P, R

LOG = EventLog("small", RUN, LINES)
SMALL = Counted("small", LOG, count(LOG))


def test_the_small_log_by_hand() -> None:
    """Every figure of two turns over one outage, as counted with a pencil."""
    first, second = SMALL.tally.turns
    assert (first.tokens, second.tokens) == (6, 1)
    assert first.labels == [A, A, R, A, A, B]
    assert (first.calls, first.rounds, first.round_tokens, first.nodes, first.accepted) == (3, 2, 6, 7, 4)
    assert (first.provisional, first.taken_back) == (4, 2)
    assert first.seconds == pytest.approx(3.4) and second.seconds == pytest.approx(0.4)
    assert first.first_token_s == pytest.approx(0.4)
    assert first.gaps_s == pytest.approx([0.8, 1.9]) and second.gaps_s == []
    assert first.offline_s == pytest.approx(2.0) and second.offline_s == 0
    assert (first.bytes_up, first.bytes_down) == (200, 900)
    assert first.rtt_s == pytest.approx([0.14, 1.04])
    assert first.compute_s == pytest.approx(0.11)
    assert first.ended and first.verified
    tally = SMALL.tally
    assert tally.tokens_per_s == pytest.approx(7 / 3.8)
    assert tally.tau == pytest.approx(7 / 3)
    assert tally.ratio("calls", "tokens") == pytest.approx(4 / 7)
    assert tally.ratio("bytes_down", "tokens") == pytest.approx(1000 / 7)
    assert [tally.gap(0.5), tally.gap(0.95)] == pytest.approx([0.8, 1.9])
    assert {name: found.tau for name, found in by_category(tally.turns).items()} == {"code": 3, "math": 1}
    assert tally.labels() == {A: 4, R: 2, B: 1}


def test_the_ride_by_hand() -> None:
    """Tokens on display and verified ones over time, the span alone, and what the link carried."""
    course = ride(LOG)
    assert course.shown == [(0.4, 3), (1.2, 7), (3.1, 7), (3.1, 5), (3.1, 6), (4.3, 7)]
    assert course.verified == [(0.4, 3), (1.2, 3), (3.1, 5), (3.1, 5), (3.1, 6), (4.3, 7)]
    assert course.alone == [(1.0, 3.0)] and course.turns == [0.0, 4.0] and course.length_s == 4.4
    assert course.down_mbit == [(0.0, 8.0), (1.0, 0.0), (3.0, 8.0)]


def test_tables_say_what_was_counted() -> None:
    """Markdown and CSV hold the same numbers; what is not known is a dash there and nothing here."""
    groups = grouped([SMALL])
    assert list(groups) == ["chain"]
    table = tables.categories(groups)
    assert table.rows[0] == ("chain", "code", 1, 2, 3.0, 4 / 7, 6 / 3.4)
    assert "| chain | code | 1 | 2 | 3 | 0.5714 | 1.765 |" in table.markdown()
    rows = list(csv.reader(io.StringIO(table.csv())))
    assert rows[1] == ["chain", "code", "1", "2", "3", "0.5714286", "1.764706"]
    runs = tables.runs([SMALL])
    assert runs.rows[0][:6] == ("small", "chain", "moa", "4g-bad", 120.0, "whole")
    empty = Tally(())
    assert tables.figures(empty)[2] is None
    text = tables.modes({"a|b\nc": empty})
    assert "a\\|b c" in text.markdown() and "–" in text.markdown() and "a|b" in text.csv()
    assert tables.labels(groups).rows == (("chain", 4, 2, 1, 0, 0, 0, 0, 7),)
    assert len(tables.turns([SMALL]).rows) == 2


def test_a_run_that_was_killed_counts_as_far_as_it_got() -> None:
    """Without its end a turn lasts to the last line, and time without the link up to there."""
    tally = count(EventLog("killed", RUN, LINES[:8], truncated=True))
    (turn,) = tally.turns
    assert not turn.ended and turn.tokens == 7 and turn.seconds == pytest.approx(1.2)
    assert turn.offline_s == pytest.approx(0.2)
    assert ride(EventLog("killed", RUN, LINES[:8])).alone == [(1.0, 1.2)]
    row = tables.runs([Counted("k", EventLog("k", RUN, LINES[:8], truncated=True), tally)]).rows[0]
    assert row[5] == "killed, last line cut"


def test_only_judged_rounds_count_for_tau() -> None:
    """Superseded, busy and replayed verdicts are calls, but no rounds."""
    lines: list[Line] = [TurnLine(at_s=0.0, turn=1, start=0)]
    for number, (outcome, kinds, again) in enumerate(
        [
            ("verified", (A, B), False),
            ("superseded", (), False),
            ("busy", (), False),
            ("verified", (A,), True),
        ]
    ):
        lines.append(
            RoundLine(
                turn=1,
                round=number,
                sent_s=0.0,
                got_s=1.0,
                nodes=1,
                depth=1,
                parents=(0,),
                start=0,
                kinds=kinds,
                outcome=outcome,
                replayed=again,
            )  # fmt: skip
        )
    (turn,) = count(EventLog("log", RUN, tuple(lines))).turns
    assert (turn.calls, turn.rounds, turn.round_tokens, turn.nodes) == (4, 1, 2, 1)


steps = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([A, R, P, Label.RUN_AHEAD]), st.integers(0, 3)), max_size=25
)


@settings(max_examples=60)
@given(steps)
def test_cumulative_counts_keep_their_bounds(changes: list[tuple[int, Label, int]]) -> None:
    """Verified tokens never exceed those on display, nor these all that ever appeared; the last step is the end."""
    lines: list[Line] = [TurnLine(at_s=0.0, turn=1, start=5)]
    end, appeared, at = 0, 0, 0.0
    for fresh, label, back in changes:
        at += 0.1
        back = min(back, end)
        if back:
            end -= back
            lines.append(TokensLine(at_s=at, start=5 + end, taken_back=back))
        if fresh:
            lines.append(TokensLine(at_s=at, start=5 + end, labels=(label,) * fresh))
            end, appeared = end + fresh, appeared + fresh
    lines.append(EndLine(at_s=at, turn=1, reason="stop", verified=False))
    log = EventLog("log", RUN, tuple(lines))
    course, (turn,) = ride(log), count(log).turns
    assert turn.tokens == end and turn.taken_back == appeared - end
    assert all(v <= s <= appeared for (_, v), (_, s) in zip(course.verified, course.shown, strict=True))
    if course.shown:
        assert course.shown[-1][1] == end and course.verified[-1][1] == decided(turn.labels)
    assert len(turn.gaps_s) <= max(len(lines) - 3, 0) and sum(turn.gaps_s) <= turn.seconds + 1e-9


def test_devices_are_counted_apart_and_shown_together() -> None:
    """Two devices in one log: their displays add up, and the span alone lasts while either is alone."""
    lines: tuple[Line, ...] = (
        TurnLine(at_s=0.0, turn=1, start=0, session="a"),
        TurnLine(at_s=0.0, turn=1, start=9, session="b"),
        LinkLine(at_s=1.0, state=LinkState.LATE, session="a"),
        TokensLine(at_s=1.0, start=0, labels=(P,), session="a"),
        LinkLine(at_s=2.0, state=LinkState.OFFLINE, session="b"),
        LinkLine(at_s=3.0, state=LinkState.ONLINE, session="a"),
        TokensLine(at_s=4.0, start=9, labels=(A, A), session="b"),
        LinkLine(at_s=5.0, state=LinkState.ONLINE, session="b"),
    )
    log = EventLog("two", RUN, lines)
    assert [turn.offline_s for turn in count(log).turns] == [2.0, 3.0]
    assert ride(log).shown == [(1.0, 1), (4.0, 3)] and ride(log).alone == [(1.0, 5.0)]


def test_break_even_is_where_the_lines_cross() -> None:
    """Linear between the two points around it; a mode that never crosses has none; both directions are told."""
    rates = {"tree": (50, 10), "stream": (30, 30), "slow": (1, 2), "late": (20, 40)}
    found = curves(
        [Point(mode, rtt, pair[i]) for mode, pair in rates.items() for i, rtt in enumerate((0, 100))]
    )
    assert [curve.name for curve in found] == ["stream", "late", "slow", "tree"] and found[0].is_baseline
    even = {each.name: each for each in crossings(found)}
    assert set(even) == {"tree", "late"}
    assert even["tree"].rtt_ms == pytest.approx(50) and even["tree"].tokens_per_s == pytest.approx(30)
    assert even["tree"].wins_below and not even["late"].wins_below
    assert crossings(found[1:]) == []
    assert curves([Point("tree", 5, 10), Point("tree", 5, 20)])[0].tokens_per_s == (15.0,)


def test_what_else_a_sweep_varies_is_told_apart(tmp_path: Path) -> None:
    """Each τ has a curve of its own, streaming one for all; each rate has a figure; what does not vary is not told."""
    cells = [
        {
            "mode": mode,
            "rtt_ms": rtt,
            "mbit": mbit,
            "verify_ms": 30,
            "tau_asked": tau,
            "tokens_per_s": 7 + rtt + tau,
        }
        for mode in ("stream", "tree")
        for rtt in (0, 50)
        for mbit in (None, 10)
        for tau in (2, 3)
    ]
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({"cells": cells}))
    found = panels(read_grid(path))
    assert [panel.where for panel in found] == ["unlimited rate", "10 Mbit/s"]
    for panel in found:
        assert [curve.name for curve in panel.curves] == ["stream", "tree, τ 2", "tree, τ 3"]
        assert panel.curves[1].tokens_per_s == (9, 59) and panel.curves[0].tokens_per_s == (9.5, 59.5)


def test_logs_give_points_where_their_round_trip_is_known() -> None:
    """The head's figure, else the median of its rounds; a stream without either gives none."""
    measured = Counted("m", EventLog("m", Run(mode="tree"), LINES), SMALL.tally)
    unknown = Counted("u", EventLog("u", Run(mode="stream"), LINES[:2]), count(EventLog("u", RUN, LINES[:2])))
    (point,) = points_of_logs([SMALL])
    assert (point.mode, point.rtt_ms) == ("chain", 120.0) and point.tokens_per_s == pytest.approx(7 / 3.8)
    (point,) = points_of_logs([measured])
    assert point.mode == "tree" and point.rtt_ms == pytest.approx(160.0)
    assert points_of_logs([unknown]) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{", "line 1, column"),
        ("[]", "cells"),
        ('{"cells": []}', "cells"),
        ('{"cells": [1]}', "cell 1"),
        ('{"cells": [{"mode": "tree", "rtt_ms": 1, "tokens_per_s": 1}, {"rtt_ms": 1}]}', "cell 2, mode"),
        ('{"cells": [{"mode": "tree", "rtt_ms": "1", "tokens_per_s": 1}]}', "cell 1, rtt_ms"),
        ('{"cells": [{"mode": "tree", "rtt_ms": 1, "tokens_per_s": NaN}]}', "cell 1, tokens_per_s"),
        ('{"cells": [{"mode": "tree", "rtt_ms": true, "tokens_per_s": 1}]}', "cell 1, rtt_ms"),
    ],
)
def test_a_sweep_that_is_none_is_refused(text: str, place: str, tmp_path: Path) -> None:
    """File, cell and field are named."""
    path = tmp_path / "grid.json"
    path.write_text(text)
    with pytest.raises(BadConfig, match="expected") as caught:
        read_grid(path)
    assert f"{path}, {place}" in str(caught.value)
