"""Every message survives the edge unchanged, and whatever a schema can refuse is refused with its field's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outrider.shared.anchor import EMPTY, extend
from outrider.shared.codec import pack_doubles, pack_floats, pack_ids, pack_parents
from outrider.shared.draft import Draft
from outrider.shared.errors import InvalidField
from outrider.shared.frames import (
    Anchor,
    Attach,
    BundleInfo,
    Cancel,
    Close,
    Commit,
    Context,
    CostCurve,
    Description,
    DownFrame,
    DraftFrame,
    Drain,
    Failure,
    FailureReason,
    Feature,
    Fingerprints,
    FinishReason,
    Limits,
    Numerics,
    Open,
    Opened,
    Ping,
    Pong,
    Progress,
    RoundOutcome,
    RowEncoding,
    RowPlane,
    Rows,
    RowsWanted,
    Rule,
    RuleReport,
    Steer,
    TokenKind,
    Turn,
    TurnEnd,
    UpFrame,
    Verdict,
    Window,
)
from outrider.shared.sampling import LogProbs, Sampling
from outrider.shared.wire import (
    DownChecks,
    UpChecks,
    description_from_wire,
    description_to_wire,
    down_from_wire,
    down_to_wire,
    up_from_wire,
    up_to_wire,
)
from outrider.v1 import verifier_pb2 as pb

SEEN = extend(EMPTY, [5, 6, 7])
WINDOW = Window(SEEN, 40, 77)
TREE = Draft((8, 9, 10), (0, 1, 0))
PRINTS = Fingerprints(b"a" * 32, b"b" * 32, b"c" * 32)
PLANE = RowPlane(0, 8, RowEncoding.INT8, "moa.ca_kv", 2)
ROWS = Rows(2, 0, 3, 2, bytes(range(32)), bulk=True)
SAMPLING = Sampling(0.7, 40, 0.9, 2**63, 0.05, 1.2, 0.5, -0.25, 7, ((3, -1.5), (99, 0.1)))
TURN = Turn(2, SEEN, (1, 2), 5, 99, (2,), SAMPLING, Rule("judge", (("tau", 0.5),)), log_probs=True)
DRAFT = DraftFrame(1, 2, WINDOW, TREE, base=extend(SEEN, [3]))
OPEN = Open(
    session_id=bytes(range(16)),
    epoch=4,
    have=SEEN,
    turn=TURN,
    window=WINDOW,
    fingerprints=PRINTS,
    features=(Feature.TREES, Feature.RUN_AHEAD),
    context=Context(0, (5, 6, 7)),
    draft=DRAFT,
    rows=RowsWanted(1, 2, 3, RowEncoding.F16, 4096),
    rejoin=True,
)
TOLD = (LogProbs(-0.5, 0.0), LogProbs(-2.25, float("-inf")))
COMMIT = Commit(2, 3, (8, 9), (TokenKind.ACCEPTED, TokenKind.BONUS), (ROWS,), 1, TOLD)
OPENED = Opened(
    epoch=4,
    attach=Attach.LIVE,
    committed=SEEN,
    context_from=1,
    fingerprints=PRINTS,
    features=(Feature.TREES,),
    limits=Limits(max_tree_nodes=7),
    planes=(PLANE,),
    cost=CostCurve((1, 4), (100, 200), 300, 5),
    prefill_estimate_us=9,
    replica=b"replica1",
    numerics=Numerics(True, 1e-4),
)
REPORT = RuleReport(Rule("overaccept", (("epsilon", 0.1),)), 7, 1.5, 0.25, 1.75, client_laws=True)
UP: list[UpFrame] = [
    OPEN,
    DRAFT,
    DraftFrame(3, 2, Window(SEEN), Draft.chain((4, 5))),
    DraftFrame(3, 2, Window(SEEN), Draft.chain(())),
    Steer(2, WINDOW),
    TURN,
    Context(7, (1, 2, 3)),
    Cancel(2),
    Close(True),
    Ping(12345),
]
DOWN: list[DownFrame] = [
    OPENED,
    Verdict(1, RoundOutcome.VERIFIED, COMMIT, 1, 1, 2, 3, 0, True),
    Verdict(2, RoundOutcome.BUSY, retry_after_ms=50),
    COMMIT,
    ROWS,
    TurnEnd(2, FinishReason.STOP_ID, SEEN),
    Progress(2, 128, 1000),
    Pong(12345, 7),
    Drain(1000, 2000),
    Failure(FailureReason.FENCED, "older", SEEN, 10, 7, "f", "do this"),
    TurnEnd(2, FinishReason.LENGTH, SEEN, REPORT),
]


@pytest.mark.parametrize("frame", UP, ids=lambda f: type(f).__name__)
def test_up_frames_round_trip(frame: UpFrame) -> None:
    """What the device meant is what the verifier reads, through real bytes, with padding on."""
    data = up_to_wire(frame, b"pad").SerializeToString()
    assert up_from_wire(pb.DecodeRequest.FromString(data)) == frame


@pytest.mark.parametrize("frame", DOWN, ids=lambda f: type(f).__name__)
def test_down_frames_round_trip(frame: DownFrame) -> None:
    """What the verifier meant is what the device reads, through real bytes, with padding on."""
    data = down_to_wire(frame, b"pad").SerializeToString()
    checks = DownChecks(100, 8192, {0: PLANE})
    assert down_from_wire(pb.DecodeResponse.FromString(data), checks) == frame


def test_description_round_trips() -> None:
    """Describe says the same on both sides."""
    bundle = BundleInfo(b"d" * 32, 10, "moa", 16000, 5, (PLANE,))
    one = Description(PRINTS, 100, "toy", "float32", (2,), ("greedy",), (Feature.TREES,), Limits(), (bundle,))
    assert (
        description_from_wire(pb.DescribeResponse.FromString(description_to_wire(one).SerializeToString()))
        == one
    )


def test_the_chain_costs_what_the_design_says() -> None:
    """A chain of six drafts is at most 66 bytes of message with a base, the figure the pacing counts on."""
    chain = DraftFrame(40, 1, Window(Anchor(900, 2**63)), Draft.chain(tuple(range(6))), Anchor(907, 2**63))
    assert up_to_wire(chain).ByteSize() <= 66


def test_length_zero_is_the_empty_anchor_whatever_hash_came() -> None:
    """An absent anchor and an explicit empty one mean the same."""
    request = up_to_wire(Steer(1, Window(EMPTY)))
    request.steer.window.ClearField("seen")
    request.steer.window.seen.SetInParent()
    assert up_from_wire(request) == Steer(1, Window(EMPTY))


def _add(numbers: Any, value: int) -> None:
    numbers.append(value)


def _clear(message: Any, *fields: str) -> None:
    for field in fields:
        message.ClearField(field)


Change = Callable[[pb.DecodeRequest], object]
UP_REFUSALS: list[tuple[str, int, Change]] = [
    ("frame", 7, lambda m: m.Clear()),
    ("padding", 9, lambda m: setattr(m, "padding", b"x" * 65_537)),
    ("request", 9, lambda m: setattr(m, "padding", b"x" * 1_048_577)),
    ("open.session_id", 0, lambda m: setattr(m.open, "session_id", b"x" * 15)),
    ("open.epoch", 0, lambda m: setattr(m.open, "epoch", 0)),
    ("open.protocol_min", 0, lambda m: setattr(m.open, "protocol_min", 9)),
    ("open.fingerprints.law", 0, lambda m: setattr(m.open.fingerprints, "law", b"x" * 31)),
    ("open.features", 0, lambda m: _add(m.open.features, 77)),
    ("open.turn", 0, lambda m: m.open.ClearField("turn")),
    ("open.window", 0, lambda m: m.open.ClearField("window")),
    ("open.window.seen", 0, lambda m: setattr(m.open.window.seen, "length", 2)),
    ("open.context", 0, lambda m: setattr(m.open.context, "start", 1)),
    ("open.context.ids", 0, lambda m: setattr(m.open.context, "ids", b"\0" * 8196)),
    ("open.draft.round", 0, lambda m: setattr(m.open.draft, "round", 2)),
    ("open.draft.parents", 0, lambda m: m.open.features.__delitem__(0)),
    ("open.rows.held_from", 0, lambda m: setattr(m.open.rows, "held_from", 4)),
    ("open.rows.encoding", 0, lambda m: setattr(m.open.rows, "encoding", 0)),
    ("open.have.length", 0, lambda m: setattr(m.open.have, "length", 9000)),
    ("open.turn.stop_ids", 0, lambda m: setattr(m.open.turn, "stop_ids", b"\0" * 4 * 257)),
    ("draft.round", 1, lambda m: setattr(m.draft, "round", 0)),
    ("draft.turn", 1, lambda m: setattr(m.draft, "turn", 0)),
    ("draft.window", 1, lambda m: m.draft.ClearField("window")),
    ("draft.ids", 1, lambda m: setattr(m.draft, "ids", b"\0" * 7)),
    ("draft.ids", 1, lambda m: setattr(m.draft, "ids", pack_ids((8, 9, 100)))),
    ("draft.ids", 1, lambda m: setattr(m.draft, "ids", pack_ids(tuple(range(65))))),
    ("draft.ids", 2, lambda m: setattr(m.draft, "ids", pack_ids((1,) * 513))),
    ("draft.ids", 1, lambda m: setattr(m.draft, "ids", pack_ids((8, 9, 8)))),
    ("draft.parents", 1, lambda m: setattr(m.draft, "parents", pack_parents((0, 1)))),
    ("draft.parents", 1, lambda m: setattr(m.draft, "parents", pack_parents((0, 2, 0)))),
    ("draft.parents", 1, lambda m: setattr(m.draft, "parents", b"\0" * 5)),
    ("draft.laws", 1, lambda m: setattr(m.draft.laws, "bits", 4)),
    ("steer.turn", 4, lambda m: setattr(m.steer, "turn", 0)),
    ("steer.window", 4, lambda m: m.steer.ClearField("window")),
    ("turn.turn", 5, lambda m: setattr(m.turn, "turn", 0)),
    ("turn.append_ids", 5, lambda m: setattr(m.turn, "append_ids", pack_ids((100,)))),
    ("turn.append_ids", 5, lambda m: _clear(m.turn, "keep", "append_ids")),
    ("turn.append_ids", 5, lambda m: setattr(m.turn, "append_ids", b"\0" * 65_540)),
    ("turn.generated_from", 5, lambda m: setattr(m.turn, "generated_from", 6)),
    ("turn.sampling.temperature", 5, lambda m: setattr(m.turn.sampling, "temperature", float("nan"))),
    ("turn.sampling.temperature", 5, lambda m: setattr(m.turn.sampling, "temperature", -1.0)),
    ("turn.sampling.top_p", 5, lambda m: setattr(m.turn.sampling, "top_p", 1.5)),
    ("turn.sampling.min_p", 5, lambda m: setattr(m.turn.sampling, "min_p", float("nan"))),
    ("turn.sampling.repetition_penalty", 5, lambda m: setattr(m.turn.sampling, "repetition_penalty", -1.0)),
    ("turn.sampling.presence_penalty", 5, lambda m: setattr(m.turn.sampling, "presence_penalty", 2.5)),
    ("turn.sampling.frequency_penalty", 5, lambda m: setattr(m.turn.sampling, "frequency_penalty", -2.5)),
    ("turn.sampling.bias_ids", 5, lambda m: setattr(m.turn.sampling, "bias_ids", pack_ids((3, 100)))),
    ("turn.sampling.bias_ids", 5, lambda m: setattr(m.turn.sampling, "bias_ids", b"\0" * 4100)),
    ("turn.sampling.bias_values", 5, lambda m: setattr(m.turn.sampling, "bias_values", b"\0" * 8)),
    ("turn.sampling.bias_values", 5, lambda m: setattr(m.turn.sampling, "bias_values", b"\0" * 15)),
    ("turn.sampling.logit_bias", 5, lambda m: setattr(m.turn.sampling, "bias_ids", pack_ids((3, 3)))),
    (
        "turn.sampling.logit_bias",
        5,
        lambda m: setattr(m.turn.sampling, "bias_values", pack_doubles((float("inf"), 0.0))),
    ),
    ("turn.rule.name", 5, lambda m: setattr(m.turn.rule, "name", "")),
    ("turn.rule.parameters", 5, lambda m: m.turn.rule.parameters.update({"x": float("inf")})),
    ("context.ids", 6, lambda m: setattr(m.context, "start", 8191)),
    ("cancel.turn", 7, lambda m: setattr(m.cancel, "turn", 0)),
]


@pytest.mark.parametrize(
    ("field", "index", "change"), UP_REFUSALS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_bad_up_frames_are_refused_by_field(field: str, index: int, change: Change) -> None:
    """One wrong field is enough, and the refusal names it."""
    request = up_to_wire(UP[index])
    checks = UpChecks(vocabulary=100, granted=(Feature.TREES, Feature.RUN_AHEAD))
    assert up_from_wire(request, checks) == UP[index]
    change(request)
    with pytest.raises(InvalidField) as refusal:
        up_from_wire(request, checks)
    assert refusal.value.field == field


def test_what_was_not_granted_is_refused() -> None:
    """Trees and run-ahead need their features."""
    for frame, field in ((DRAFT, "draft.window.run_ahead_until"), (DRAFT, "draft.parents")):
        granted = (Feature.TREES,) if field.endswith("until") else (Feature.RUN_AHEAD,)
        with pytest.raises(InvalidField) as refusal:
            up_from_wire(up_to_wire(frame), UpChecks(granted=granted))
        assert refusal.value.field == field


def test_deep_trees_are_refused() -> None:
    """A tree deeper than the limit is refused even with few nodes."""
    deep = DraftFrame(1, 1, Window(EMPTY), Draft((1, 2, 3, 4), (0, 0, 2, 3)))
    with pytest.raises(InvalidField) as refusal:
        up_from_wire(up_to_wire(deep), UpChecks(Limits(max_tree_depth=2)))
    assert refusal.value.field == "draft.parents"


Down = Callable[[pb.DecodeResponse], object]
DOWN_REFUSALS: list[tuple[str, int, Down]] = [
    ("frame", 7, lambda m: m.Clear()),
    ("opened.attach", 0, lambda m: setattr(m.opened, "attach", 9)),
    ("opened.committed.length", 0, lambda m: setattr(m.opened.committed, "length", 9000)),
    ("opened.fingerprints.law", 0, lambda m: setattr(m.opened.fingerprints, "law", b"x")),
    ("opened.features", 0, lambda m: _add(m.opened.features, 0)),
    ("opened.limits.max_chain_tokens", 0, lambda m: setattr(m.opened.limits, "max_chain_tokens", 0)),
    ("opened.planes", 0, lambda m: m.opened.planes.append(m.opened.planes[0])),
    ("opened.planes[0].width", 0, lambda m: setattr(m.opened.planes[0], "width", 2**31)),
    ("opened.planes[0].parts", 0, lambda m: setattr(m.opened.planes[0], "parts", 3)),
    ("opened.planes[0].encoding", 0, lambda m: setattr(m.opened.planes[0], "encoding", 0)),
    ("opened.cost.widths", 0, lambda m: m.opened.cost.widths.__setitem__(1, 1)),
    ("opened.cost.costs_us", 0, lambda m: m.opened.cost.costs_us.pop()),
    ("opened.replica", 0, lambda m: setattr(m.opened, "replica", b"x")),
    ("opened.numerics.near_tie_gap", 0, lambda m: setattr(m.opened.numerics, "near_tie_gap", float("nan"))),
    ("verdict.round", 1, lambda m: setattr(m.verdict, "round", 0)),
    ("verdict.outcome", 1, lambda m: setattr(m.verdict, "outcome", 0)),
    ("verdict.commit", 1, lambda m: m.verdict.ClearField("commit")),
    ("verdict.commit", 1, lambda m: setattr(m.verdict, "outcome", 2)),
    ("verdict.accepted", 1, lambda m: setattr(m.verdict, "accepted", 3)),
    ("verdict.commit.ids", 1, lambda m: setattr(m.verdict.commit, "ids", pack_ids((8, 100)))),
    ("commit.ids", 3, lambda m: setattr(m.commit, "ids", b"")),
    ("commit.kinds", 3, lambda m: setattr(m.commit, "kinds", b"\1")),
    ("commit.kinds", 3, lambda m: setattr(m.commit, "kinds", b"\1\7")),
    ("commit.start", 3, lambda m: setattr(m.commit, "start", 8191)),
    ("commit.near_ties", 3, lambda m: setattr(m.commit, "near_ties", 3)),
    ("commit.raw_log_probs", 3, lambda m: setattr(m.commit, "raw_log_probs", pack_floats((0.5, -1.0)))),
    ("commit.raw_log_probs", 3, lambda m: setattr(m.commit, "raw_log_probs", pack_floats((-1.0,)))),
    ("commit.warped_log_probs", 3, lambda m: m.commit.ClearField("warped_log_probs")),
    (
        "commit.warped_log_probs",
        3,
        lambda m: setattr(m.commit, "warped_log_probs", pack_floats((float("nan"), -1.0))),
    ),
    ("commit.rows", 3, lambda m: setattr(m.commit.rows[0], "turn", 9)),
    ("rows.count", 4, lambda m: setattr(m.rows, "count", 0)),
    ("rows.plane", 4, lambda m: setattr(m.rows, "plane", 1)),
    ("rows.data", 4, lambda m: setattr(m.rows, "count", 3)),
    ("rows.data", 4, lambda m: setattr(m.rows, "data", b"\0" * 16_385)),
    ("rows.start", 4, lambda m: setattr(m.rows, "start", 8191)),
    ("turn_end.reason", 5, lambda m: setattr(m.turn_end, "reason", 0)),
    ("turn_end.report.rejection", 10, lambda m: setattr(m.turn_end.report, "rejection", 7.1)),
    ("turn_end.report.loss", 10, lambda m: setattr(m.turn_end.report, "loss", float("nan"))),
    ("turn_end.report.tv", 10, lambda m: setattr(m.turn_end.report, "tv", -0.1)),
    ("turn_end.report.rule", 10, lambda m: setattr(m.turn_end.report.rule, "name", "a\x1b[2Jb")),
    ("turn_end.report.rule.name", 10, lambda m: m.turn_end.report.ClearField("rule")),
    ("turn_end.end.length", 5, lambda m: setattr(m.turn_end.end, "length", 9000)),
    ("failure.reason", 9, lambda m: setattr(m.failure, "reason", 0)),
]


@pytest.mark.parametrize(
    ("field", "index", "change"), DOWN_REFUSALS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_bad_down_frames_are_refused_by_field(field: str, index: int, change: Down) -> None:
    """A hostile verifier's frame goes no further than the edge."""
    response = down_to_wire(DOWN[index])
    checks = DownChecks(100, 8192, {0: PLANE})
    change(response)
    with pytest.raises(InvalidField) as refusal:
        down_from_wire(response, checks)
    assert refusal.value.field == field


def test_what_a_server_says_is_clipped() -> None:
    """Waits are at most a minute and details are printable and short."""
    failure = Failure(FailureReason.OVERLOADED, "a\x1b[2Jb" + "x" * 2000, None, 10**9)
    read = down_from_wire(down_to_wire(failure))
    assert isinstance(read, Failure)
    assert read.retry_after_ms == 60_000
    assert len(read.detail) <= 1000 and "\x1b" not in read.detail
    drain = down_from_wire(down_to_wire(Drain(5, 10**9)))
    assert drain == Drain(5, 60_000)


def test_what_is_off_takes_no_bytes() -> None:
    """A turn that uses none of the later fields is, byte for byte, what the first minor version sent."""
    turn = Turn(2, SEEN, (1, 2), 5, 99, (2,), Sampling(0.7, 40, 0.9, 2**63))
    fields = {field.name for field, _ in up_to_wire(turn).turn.sampling.ListFields()}
    assert fields == {"temperature", "top_k", "top_p", "seed"} and turn.protocol == 1
    assert TURN.protocol == 2 == replace(turn, log_probs=True).protocol
    read = up_from_wire(up_to_wire(turn))
    assert isinstance(read, Turn) and read.sampling.repetition_penalty == 1.0
