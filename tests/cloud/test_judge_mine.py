"""Mining on scripted models reproduces labels worked out by hand, and its file can be resumed anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.cloud.judge.families import Split
from outrider.cloud.judge.measures import measures, two_cell_kl
from outrider.cloud.judge.mine import Label, Mined, Miner, Setting, Source
from outrider.cloud.judge.passes import Line, Script, grow, together
from outrider.cloud.judge.records import LabelFile, read_labels
from outrider.shared.errors import ConfigError
from outrider.shared.laws import SparseLaw, quantise
from outrider.shared.warps import softmax
from tests.scripted_target import (
    END,
    FAMILY,
    WORDS,
    Next,
    ScriptedDrafter,
    ScriptedPasses,
    WordText,
    make_task,
    state,
)

PROMPT = [100, 101]
IT, IS, SEVEN, EIGHT, SO, THUS, THEN, STOP, LINE, MARK = range(1, 11)


def script_of(table: dict[tuple[int, ...], int], default: int = END) -> Next:
    """The next id after a text, by what stands behind the prompt."""
    return lambda text: table.get(tuple(text[len(PROMPT) :]), default)


TARGET = {(): IT, (IT,): IS, (IT, IS): SEVEN, (IT, THUS): SEVEN}
"""It is 7 <end>; behind "It thus" also 7; everything else ends."""


def mined(
    target: dict[tuple[int, ...], int],
    draft: dict[tuple[int, ...], int],
    answer: str = "7",
    default: int = END,
    **setting: int,
) -> tuple[Mined, ScriptedPasses]:
    """What mining one prompt gives."""
    passes = ScriptedPasses(script_of(target, default))
    chosen = Setting(**{"forged": 0, **setting}, stops=frozenset({END}), kept_out=frozenset({END}))
    drafter = ScriptedDrafter(script_of(draft))
    miner = Miner(passes, WordText(), lambda: drafter.propose, chosen, seed=1)
    (found,) = together([miner.script(0, make_task(answer), FAMILY, PROMPT)], passes, 4)
    return found, passes


def brief(labels: Sequence[Label]) -> list[tuple[int, str, str, bool]]:
    """(place, drafted, the target's own, good)."""
    return [(one.place, WORDS[one.token], WORDS[one.instead_of], one.good) for one in labels]


def test_labels_are_those_worked_out_by_hand() -> None:
    """ "thus" for "is" leads to 7 again: good, and the walk goes on behind it; there "8" for "7" does not: bad."""
    found, passes = mined(TARGET, {(IT,): THUS, (IT, THUS): EIGHT})
    assert (found.answer, found.reference) == ("It is 7", "7")
    assert brief(found.labels) == [(1, "thus", "is", True), (2, "8", "7", False)]
    # It is 7 <end>, then 7 <end> behind "thus", then <end> behind "8".
    assert found.written == 4 + 2 + 1
    assert passes.held == {}


def test_states_and_measures_are_those_of_the_text_the_token_stands_in() -> None:
    """Candidate: at the token behind the rewritten text; previous: at the token before it; law: of the previous row."""
    found, passes = mined(TARGET, {(IT,): THUS, (IT, THUS): EIGHT})
    first, second = found.labels
    for label, before in ((first, [IT]), (second, [IT, THUS])):
        own, previous = [*PROMPT, *before, label.token], [*PROMPT, *before]
        np.testing.assert_array_equal(label.states.candidate.prenorm, state(own, "pre"))
        np.testing.assert_array_equal(label.states.candidate.postnorm, state(own, "post"))
        np.testing.assert_array_equal(label.states.previous.prenorm, state(previous, "pre"))
        np.testing.assert_array_equal(label.states.previous.postnorm, state(previous, "post"))
        assert label.measures == measures(passes.logits(label.states.previous), label.token, 0.5)


def test_a_bad_token_is_taken_back_and_the_round_ends_there() -> None:
    """Behind a bad token the target's own stands, and the next chain is drafted after it."""
    drafted: list[tuple[int, ...]] = []
    table = {(IT,): SO, (IT, SO): SEVEN, (IT, IS): EIGHT, (IT, IS, SEVEN): SO}

    def script(text: Sequence[int]) -> int:
        drafted.append(tuple(text[2:]))
        return table.get(tuple(text[2:]), END)

    passes = ScriptedPasses(script_of({**TARGET, (IT, SO): EIGHT}))
    setting = Setting(forged=0, depth=2, stops=frozenset({END}), kept_out=frozenset({END}))
    miner = Miner(passes, WordText(), lambda: ScriptedDrafter(script).propose, setting, seed=1)
    (found,) = together([miner.script(0, make_task(), FAMILY, PROMPT)], passes, 1)
    assert brief(found.labels) == [
        (1, "so", "is", False),
        (2, "8", "7", False),
        (3, "so", "<end>", True),
    ]
    assert [text for text in drafted if len(text) == 2] == [(IT, SO), (IT, IS)]


def test_a_reference_need_not_be_right() -> None:
    """The target's own result counts, also where it is wrong; without a result nothing is mined."""
    found, _ = mined(TARGET, {(IT,): THUS}, answer="8")
    assert brief(found.labels)[0] == (1, "thus", "is", True)
    silent, _ = mined({(): IT}, {(IT,): THUS})
    assert (silent.reference, silent.labels) == (None, ())


def test_ends_of_text_are_never_labelled() -> None:
    """Where the drafter would stop and the target would not, the target's token stays without a label."""
    found, _ = mined(TARGET, {(IT,): END, (IT, IS): EIGHT})
    assert brief(found.labels) == [(2, "8", "7", False)]


def test_a_rollout_stops_where_its_answer_is_settled() -> None:
    """Behind a mark and the end of its sentence nothing more is written, so a talkative target costs no more."""
    target = {(): IT, (IT,): MARK, (IT, MARK): SEVEN, (IT, MARK, SEVEN): LINE}
    talkative, _ = mined(target, {}, default=THEN, tokens=40)
    assert talkative.reference == "7" and talkative.written == 4
    assert talkative.answer.endswith("7 \n")


def test_the_number_of_labels_is_bounded() -> None:
    """No more than the setting allows, however often the drafter is wrong."""
    found, _ = mined(TARGET, {(IT,): THUS, (IT, THUS): EIGHT}, max_labels=1)
    assert len(found.labels) == 1


def test_a_forged_result_is_bad_and_tokens_before_it_are_good() -> None:
    """The wrong number is bad where the right one stood; words before it are good; nothing behind it is labelled."""
    found, passes = mined(TARGET, {}, forged=1, forged_good=4)
    forged = [one for one in found.labels if one.source is Source.CORRUPTED]
    assert brief(forged) == [(2, "8", "7", False), (0, "It", "It", True), (1, "is", "is", True)]
    np.testing.assert_array_equal(forged[0].states.candidate.prenorm, state([*PROMPT, IT, IS, EIGHT], "pre"))
    np.testing.assert_array_equal(forged[2].states.candidate.prenorm, state([*PROMPT, IT, IS], "pre"))
    np.testing.assert_array_equal(forged[2].states.previous.postnorm, state([*PROMPT, IT], "post"))
    assert passes.held == {}
    wrong, _ = mined(TARGET, {}, answer="8", forged=1)
    assert wrong.labels == ()


def test_prompts_in_one_pass_do_not_touch_each_other() -> None:
    """Any number at once gives the labels of one at a time; passes hold no more texts than asked for."""

    def run(width: int) -> tuple[list[Mined], ScriptedPasses]:
        passes = ScriptedPasses(script_of(TARGET))
        drafter = ScriptedDrafter(script_of({(IT,): THUS, (IT, THUS): EIGHT}))
        setting = Setting(stops=frozenset({END}), kept_out=frozenset({END}))
        miner = Miner(passes, WordText(), lambda: drafter.propose, setting, seed=1)
        scripts = (miner.script(i, make_task("78"[i % 2]), FAMILY, PROMPT) for i in range(7))
        return sorted(together(scripts, passes, width), key=lambda one: one.index), passes

    (one, _), (three, passes) = run(1), run(3)
    assert [brief(a.labels) for a in one] == [brief(b.labels) for b in three]
    assert max(passes.widths) == 3 and passes.held == {}


def test_only_what_is_not_held_is_fed() -> None:
    """A line feeds from the first difference on, the last id always; drafts count as held."""
    line = Line(5)
    assert line.feed([1, 2, 3], [4, 5]).start == 0
    again = line.feed([1, 2, 3, 4, 6], [7])
    assert (again.start, again.ids, again.draft) == (4, (6,), (7,))
    assert line.feed([1, 2]).ids == (2,)


def test_a_limit_of_none_still_reads_the_text() -> None:
    """The state at the last id is there although no token was wanted."""
    passes = ScriptedPasses(script_of(TARGET))

    def script() -> Script[tuple[int, int]]:
        grown = yield from grow(Line(0), PROMPT, 0, lambda tokens: False)
        return len(grown.tokens), len(grown.states)

    assert list(together([script()], passes, 1)) == [(0, 1)]


def test_measures_of_a_known_law() -> None:
    """Probability, rank and entropy of logits log(.5, .3, .2), and a Kullback-Leibler distance by hand."""
    found = measures(np.log(np.array([0.5, 0.3, 0.2])), 2, 0.8)
    assert found.probability == pytest.approx(0.2) and found.rank == 2
    assert found.entropy == pytest.approx(-(0.5 * np.log(0.5) + 0.3 * np.log(0.3) + 0.2 * np.log(0.2)))
    assert found.kl == pytest.approx(0.8 * np.log(4) + 0.2 * np.log(0.25))
    assert two_cell_kl(0.3, 0.3) == pytest.approx(0.0) and two_cell_kl(1.0, 0.0) < 30


@given(st.lists(st.floats(-12, 12), min_size=3, max_size=9), st.integers(0, 2), st.data())
def test_the_distance_of_a_known_law_is_real(logits: list[float], token: int, data: st.DataObject) -> None:
    """That of its definition over all tokens, 0 for equal laws, and never below the two-cell bound."""
    other = data.draw(st.lists(st.floats(-12, 12), min_size=len(logits), max_size=len(logits)))
    target, draft = softmax(np.asarray(logits)), softmax(np.asarray(other))
    law = quantise(draft)
    rounded = law.dense(len(logits))
    found = measures(np.asarray(logits), token, float(rounded[token]), law)
    some = rounded > 0
    exact = float((rounded[some] * np.log(rounded[some] / target[some])).sum())
    assert found.kl == pytest.approx(max(exact, 0.0), abs=1e-9)
    assert found.kl >= two_cell_kl(float(rounded[token]), float(target[token])) - 1e-6
    half = SparseLaw(1, (0, 2), (1, 1))
    assert measures(np.log(np.array([0.5, 1e-300, 0.5])), 0, 0.5, half).kl == pytest.approx(0.0, abs=1e-12)


# ------------------------------------------------------------------------------------------------------------ the file

HEADER = {"target": "ab" * 32, "seed": 1}


def results(count: int) -> list[Mined]:
    """Results of prompts."""
    found, _ = mined(TARGET, {(IT,): THUS, (IT, THUS): EIGHT}, forged=1)
    return [
        Mined(i, found.task, found.answer, found.reference, found.labels, found.written) for i in range(count)
    ]


def test_labels_survive_their_file(tmp_path: Path) -> None:
    """All that a fit reads comes back, in the order of prompts."""
    path = tmp_path / "labels.jsonl"
    file = LabelFile(path, HEADER)
    for one in reversed(results(3)):
        file.add(one)
    read = read_labels(path)
    assert [row.index for row in read.rows] == [0, 1, 2] and read.header["target"] == HEADER["target"]
    row = read.rows[1]
    assert (row.family, row.template, row.split) == ("fake", "fake/train", Split.TRAIN)
    for back, label in zip(row.labels, results(1)[0].labels, strict=True):
        assert brief([back]) == brief([label]) and back.source is label.source
        np.testing.assert_array_equal(back.states.candidate.prenorm, label.states.candidate.prenorm)
        np.testing.assert_array_equal(back.states.previous.postnorm, label.states.previous.postnorm)
        assert back.measures.probability == pytest.approx(label.measures.probability, rel=1e-5)


def test_an_interrupted_file_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    """A half-written row is dropped and done again; the digest is that of a run without interruption."""
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    file = LabelFile(whole, HEADER)
    for one in results(3):
        file.add(one)
    lines = whole.read_text().splitlines(keepends=True)
    broken.write_text("".join([lines[0], lines[2], lines[1][:50]]))
    resumed = LabelFile(broken, HEADER)
    assert resumed.done == {1}
    for one in results(3):
        if one.index not in resumed.done:
            resumed.add(one)
    assert read_labels(broken).digest == read_labels(whole).digest


def test_a_file_of_other_settings_is_refused_by_the_field(tmp_path: Path) -> None:
    """Labels of another target or seed are never mixed in."""
    path = tmp_path / "labels.jsonl"
    LabelFile(path, HEADER)
    with pytest.raises(ConfigError, match="--out: labels.jsonl: seed: begun with 1, now 2"):
        LabelFile(path, {**HEADER, "seed": 2})
    path.write_text("no json\n")
    with pytest.raises(ConfigError, match="no file of this kind"):
        LabelFile(path, HEADER)


def test_a_broken_row_is_named_by_its_line(tmp_path: Path) -> None:
    """So that a file that was edited can be mended."""
    path = tmp_path / "labels.jsonl"
    file = LabelFile(path, HEADER)
    file.add(results(1)[0])
    row = json.loads(path.read_text().splitlines()[1])
    del row["labels"][0]["candidate"]
    with path.open("a") as stream:
        stream.write(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match="LABELS: labels.jsonl:3: "):
        read_labels(path)
