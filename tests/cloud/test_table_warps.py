"""What the session table does for warps: works carry the text, and the log keeps log-probabilities."""

from __future__ import annotations

from typing import Any

from outrider.cloud.events import Verify
from outrider.shared.anchor import EMPTY, extend
from outrider.shared.frames import Commit, Open, Opened, Turn, Verdict, Window
from outrider.shared.sampling import History, LogProbs, Sampling
from tests.cloud.table_bench import PROMPT, SERVED, Bench, draft, ids_of, opening, turn
from tests.toy_engine import ToyEngine

SAMPLING = Sampling(
    0.9, 0, 0.95, 3, 0.01, 1.3, 0.4, 0.2, 6, tuple((token_id, 0.5) for token_id in range(0, 97, 9))
)
STOPS = (1, 2, 3, 4, 5)


def warped_turn(**changes: Any) -> Turn:
    """A turn with every warp on."""
    return turn(sampling=SAMPLING, stop_ids=STOPS, **changes)


def bench_of(frame: Open) -> Bench:
    """A table over a target with real laws, with one session."""
    bench = Bench()
    bench.engine = ToyEngine(SERVED.vocabulary)  # type: ignore[assignment]
    bench.open(frame)
    return bench


def works_of(bench: Bench) -> list[Verify]:
    """The verifications asked for so far."""
    return [work for step in bench.steps for work in step.works if isinstance(work, Verify)]


def told_of(frames: list[Verdict] | list[Commit]) -> list[LogProbs]:
    """The log-probabilities that verdicts or commits carry, in order."""
    commits = [frame.commit if isinstance(frame, Verdict) else frame for frame in frames]
    return [one for commit in commits if commit is not None for one in commit.log_probs]


def test_drafts_and_catch_up_have_the_text_and_log_probs_of_the_target_alone() -> None:
    """Rounds, run-ahead and a second stream that knows nothing: the same ids and the same log-probabilities."""
    bench = bench_of(opening(turn=warped_turn(log_probs=True)))
    engine: Any = bench.engine
    truth = tuple(engine.generate(PROMPT, 12, SAMPLING, STOPS))
    text: tuple[int, ...] = PROMPT
    told: list[LogProbs] = []
    for number, ids in enumerate(((*truth[:2], 7), truth[3:6], (7, 7), ()), 1):
        bench.up(draft(number, text, ids))
        verdicts = bench.take(Verdict)
        text, told = text + ids_of(verdicts), told + told_of(verdicts)
    bench.up(draft(5, text, window=Window(extend(EMPTY, text), run_ahead_until=len(PROMPT) + 10)))
    for frames in (bench.take(Verdict), bench.take(Commit)):
        text, told = text + ids_of(frames), told + told_of(frames)
    count = len(text) - len(PROMPT)
    assert count >= 10 and text == PROMPT + truth[:count]
    assert told == engine.told(text, count, SAMPLING, STOPS)
    bench.lose()
    bench.open(opening(epoch=2, turn=warped_turn(log_probs=True), rejoin=True), stream=2)
    late = bench.take(Commit, 2)
    assert PROMPT + ids_of(late) == text and told_of(late) == told


def test_works_carry_the_text_only_where_the_law_reads_it() -> None:
    """The history is prompt and committed tokens, generated ones from the turn's mark on, and the turn's stop ids."""
    bench = bench_of(opening(turn=warped_turn()))
    bench.up(draft(1, PROMPT))
    bench.up(draft(2, PROMPT + ids_of(bench.take(Verdict))))
    first, second = works_of(bench)
    assert first.history == History(PROMPT, len(PROMPT), STOPS) and not first.log_probs
    assert second.history is not None and second.history.ids[:-1] == PROMPT
    for sampling in (Sampling(), Sampling(0.9, 5, 0.5, 1, 0.1, logit_bias=((3, 1.0),))):
        plain = bench_of(opening(turn=turn(sampling=sampling)))
        plain.up(draft(1, PROMPT))
        assert [work.history for work in works_of(plain)] == [None]


def test_a_turn_that_adopts_text_still_counts_it_as_generated() -> None:
    """Text kept after an outage is appended by the device, and penalised as the generated text it is."""
    adopted = turn(ids=(*PROMPT, 8, 9), sampling=SAMPLING, generated_from=len(PROMPT), stop_ids=STOPS)
    bench = bench_of(opening(turn=adopted))
    bench.up(draft(1, (*PROMPT, 8, 9)))
    (work,) = works_of(bench)
    assert work.history == History((*PROMPT, 8, 9), len(PROMPT), STOPS)


def test_nobody_is_told_what_was_not_asked_for() -> None:
    """Without log_probs in the turn no commit carries any."""
    bench = bench_of(opening(turn=warped_turn()))
    bench.up(draft(1, PROMPT, (1, 2)))
    assert told_of(bench.take(Verdict)) == []


def test_the_minor_version_is_the_devices_if_it_is_older() -> None:
    """A device of the first minor version is served in it; one that needs a later one than there is, is refused."""
    bench = bench_of(opening(protocol_max=1))
    assert bench.one(Opened).protocol == 1
    bench = bench_of(opening(protocol_min=2, protocol_max=5))
    assert bench.one(Opened).protocol == 2
