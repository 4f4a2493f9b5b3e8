"""What a run's figures are made of: moments, calls, the verifier's time; worked by hand."""

from __future__ import annotations

import pytest

from outrider.client.answers import Finished, Shown, TakenBack
from outrider.client.events import Label
from outrider.client.stats import TurnStats
from outrider.client.transcript import Piece, Transcript
from outrider.netsim.scenario import Question
from outrider.netsim.scenario.meter import Meter, quantile
from outrider.netsim.scenario.summary import Outcome, common, figures, table
from outrider.shared.anchor import EMPTY
from outrider.shared.draft import Draft
from outrider.shared.frames import CostCurve, DraftFrame, Open, RoundOutcome, Turn, Verdict, Window
from outrider.shared.tokenizer import Tokenizer
from tests.tiny import write_tokenizer

OPEN = Open(bytes(16), 1, EMPTY, Turn(1, EMPTY, (1,), 5, 9), Window(EMPTY))
DRAFT = DraftFrame(2, 1, Window(EMPTY), Draft((), ()))
COST = CostCurve((1, 8), (2_000, 3_000), 0, 100)


def shown(first: int, count: int) -> Shown:
    return Shown(tuple(Piece(first + n, 7, Label.ACCEPTED, "x") for n in range(count)))


class Script:
    """An answer played to a meter."""

    def __init__(self, meter: Meter, tokenizer: Tokenizer, at: float) -> None:
        self.meter, self.at = meter, at
        self.transcript = Transcript(tokenizer, 5)
        meter.ask(Question("q", "text"), (1, 2, 3, 4, 5))
        meter.began(5, at)

    def show(self, count: int, after: float) -> None:
        self.at += after
        start = self.transcript.end
        self.transcript.emit(start, (7,) * count, (Label.ACCEPTED,) * count)
        self.meter.told(shown(start, count), self.transcript, self.at)

    def end(self, after: float, reason: str = "stop", **stats: object) -> None:
        self.at += after
        made = TurnStats(
            self.meter.answers[-1].began_at, ended_at=self.at, tokens=len(self.transcript.pieces)
        )
        for name, value in stats.items():
            setattr(made, name, value)
        self.meter.told(Finished(reason, True, None, made), self.transcript, self.at)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tiny byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


def test_figures_of_a_run_worked_by_hand(tokenizer: Tokenizer) -> None:
    """Two answers: sums, quotients of sums, gaps between moments, the verifier's time by its own word."""
    counted: list[int] = []
    meter = Meter(counted.append)
    meter.cost = lambda: COST
    one = Script(meter, tokenizer, 100.0)
    meter.sent(1, OPEN, 100.0)
    meter.sent(1, DRAFT, 100.2)
    one.show(1, 0.5)
    one.show(4, 0.2)
    meter.judged(1, Verdict(2, RoundOutcome.VERIFIED, compute_us=4_000), TurnStats(0.0), 100.7)
    meter.judged(1, Verdict(2, RoundOutcome.VERIFIED, compute_us=4_000, replayed=True), TurnStats(0.0), 100.7)
    one.end(0.3, rounds=2, round_tokens=5, bytes_up=100, bytes_down=900)
    two = Script(meter, tokenizer, 200.0)
    meter.sent(1, OPEN, 200.0)
    meter.sent(2, OPEN, 200.5)
    two.show(3, 1.0)
    two.end(0.0, labels={Label.RUN_AHEAD: 2, Label.BONUS: 1}, rounds=1, round_tokens=1, offline_s=0.4)
    told = figures(Outcome(tuple(meter.answers)))
    assert counted == [1, 5, 8]
    expected = {
        "answers": 2, "complete": 2, "tokens": 8, "verified": 8, "seconds": 2.0, "tokens_per_s": 4.0, "ttft_s": 0.5,
        "first_token_s": 0.75, "gap_p50_s": 0.2, "longest_gap_s": 0.2, "rounds": 3, "tau": 2.0,
        "calls_per_token": 0.5, "bytes_up": 100, "bytes_down_per_token": 112.5, "reconnects": 1, "offline_s": 0.4,
        "identical": None, "wire_up": None, "interrupted": False,
        # 4 ms of verdicts, 2 x 4 prompt tokens at 0.1 ms, 2 tokens of 2 ms that it decoded by itself
        "forward_ms_per_token": pytest.approx((4 + 0.8 + 4) / 8),
    }  # fmt: skip
    assert {name: told[name] for name in expected} == expected
    assert "tokens/s" in set(table(told, "x").columns[0].cells)


def test_an_answer_that_was_left_counts_to_its_last_token(tokenizer: Tokenizer) -> None:
    """How long a device waits for a dead link is a setting, not the link's speed; and it is not complete."""
    meter = Meter(lambda count: None)
    script = Script(meter, tokenizer, 10.0)
    script.show(4, 2.0)
    script.end(30.0, reason="offline")
    told = figures(Outcome(tuple(meter.answers)))
    assert (told["tokens_per_s"], told["complete"], told["gap_p50_s"]) == (2.0, 0, None)


def test_tokens_shown_again_are_not_new_ones(tokenizer: Tokenizer) -> None:
    """A cut at a token must not wait for text that was taken back: only a longer display counts."""
    counted: list[int] = []
    meter = Meter(counted.append)
    script = Script(meter, tokenizer, 0.0)
    script.show(3, 1.0)
    gone = script.transcript.revise(6)
    meter.told(TakenBack(tuple(gone)), script.transcript, 1.5)
    script.show(2, 1.0)
    script.show(1, 1.0)
    assert counted == [3, 4]


def test_a_run_without_answers_has_figures_too() -> None:
    """Interrupted before anything came: nothing is divided by nothing."""
    told = figures(Outcome((), interrupted=True))
    assert (told["tokens"], told["tokens_per_s"], told["tau"], told["interrupted"]) == (0, None, None, True)
    table(told, "empty")


def test_quantiles_are_by_nearest_rank() -> None:
    """The definition, at its edges."""
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [quantile(values, share) for share in (0.0, 0.2, 0.21, 0.5, 0.95, 1.0)] == [1, 1, 2, 3, 5, 5]
    assert quantile([], 0.5) is None
    assert (common((1, 2, 3), (1, 2, 4)), common((1,), (1, 2)), common((), (1,))) == (2, 1, 0)
