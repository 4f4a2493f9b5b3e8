"""The error tree, its table of statuses, and what users see of it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import grpc
import pytest

from outrider.shared import errors
from outrider.shared.errors import ExitCode, OutriderError
from outrider.shared.frames import Failure, FailureReason
from outrider.shared.transport import error_of, status_code
from outrider.v1 import verifier_pb2 as pb

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, OutriderError)]


def failure(reason: FailureReason) -> Failure:
    return Failure(
        reason,
        "expected this, got that",
        retry_after_ms=700,
        last_epoch=9,
        field="draft.parents",
        remedy="do so",
    )


def test_every_class_stands_in_the_drawn_tree() -> None:
    """The docstring's tree names every class of the module exactly once."""
    drawn = (errors.__doc__ or "").partition("=====")[0]
    for cls in CLASSES:
        assert len(re.findall(rf"\b{cls.__name__}\b", drawn)) == 1, cls.__name__


def test_the_table_in_the_docstring_is_the_table_in_the_code() -> None:
    """Each row of the docstring's table holds for the code: status, class, whether it surfaces, exit code."""
    rows = re.findall(
        r"^([A-Z_]+|\(none\)) +(\w+) +(\w+) +(yes|no) +(\d+)$", errors.__doc__ or "", re.MULTILINE
    )
    assert {r[0] for r in rows} - {"(none)"} == {r.name for r in FailureReason}
    for reason, status, name, surfaces, code in rows:
        if reason == "(none)":
            error = errors.from_status(status, "details")
        else:
            error = errors.from_failure(failure(FailureReason[reason]))
            assert errors.status_of(FailureReason[reason]) == status
        assert type(error).__name__ == name
        assert errors.surfaces(error) is (surfaces == "yes")
        assert errors.exit_code(error) == int(code)


def test_statuses_are_those_of_the_wire_file() -> None:
    """The comment beside each failure reason in the .proto names the status the table gives it."""
    spec = importlib.util.find_spec("outrider.v1")
    assert spec is not None and spec.submodule_search_locations
    with open(f"{spec.submodule_search_locations[0]}/verifier.proto", encoding="utf-8") as file:
        comments = dict(re.findall(r"FAILURE_REASON_(\w+) = \d+; // ([A-Z_]+)\b", file.read()))
    for reason in FailureReason:
        assert comments[reason.name] == errors.status_of(reason)
        assert pb.FailureReason.Value(f"FAILURE_REASON_{reason.name}") == reason
        assert status_code(reason).name == errors.status_of(reason)


@pytest.mark.parametrize("reason", FailureReason, ids=lambda r: r.name)
def test_a_failure_frame_survives_the_way_through_its_error(reason: FailureReason) -> None:
    """Frame to error to frame keeps reason, detail, remedy, field, epoch and delay (a gap becomes a conflict)."""
    error = errors.from_failure(failure(reason))
    again = errors.to_failure(error)
    expected = FailureReason.ROUND_CONFLICT if reason is FailureReason.ROUND_GAP else reason
    assert again.reason is expected
    assert (again.detail, again.remedy) == ("expected this, got that", "do so")
    assert "expected this, got that" in str(error) and "do so" in str(error)
    if reason is FailureReason.INVALID:
        assert again.field == "draft.parents"
    if reason is FailureReason.FENCED:
        assert again.last_epoch == 9
    if reason is FailureReason.OVERLOADED:
        assert again.retry_after_ms == 700


@pytest.mark.parametrize("reason", FailureReason, ids=lambda r: r.name)
def test_the_status_alone_says_the_same_when_the_frame_is_lost(reason: FailureReason) -> None:
    """A stream's status and details lead to the class that the lost frame would have led to."""
    sent = failure(reason)
    error = errors.from_status(errors.status_of(reason), errors.status_details(sent))
    assert type(error) is type(errors.from_failure(sent))
    assert "expected this, got that" in str(error)


def test_a_foreign_exception_tells_its_type_and_nothing_of_its_text() -> None:
    """An unexpected exception becomes ENGINE without its text, which might quote a prompt."""
    frame = errors.to_failure(RuntimeError("the user's secret prompt"))
    assert frame.reason is FailureReason.ENGINE
    assert "secret" not in frame.detail and "RuntimeError" in frame.detail


def test_long_details_are_cut_at_a_character() -> None:
    """A detail is cut to its limit in bytes and stays valid UTF-8."""
    detail = errors.to_failure(errors.Overloaded("é" * 1000)).detail
    assert len(detail.encode()) <= errors.DETAIL_BYTES and set(detail) == {"é"}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: str(c.__name__))
def test_only_what_waiting_cannot_mend_surfaces(cls: type[OutriderError]) -> None:
    """No class of "no timely verdict" surfaces; refused input, credentials, fingerprints, versions and settings do."""
    made = {
        errors.InvalidField: lambda: errors.InvalidField("a.b", "why"),
        errors.FingerprintMismatch: lambda: errors.FingerprintMismatch(
            "law", ours=b"\1" * 32, theirs=b"\2" * 32
        ),
        errors.ConfigError: lambda: errors.ConfigError("--server", "why"),
    }
    error = made[cls]() if cls in made else cls("detail")
    always = (
        errors.InvalidField,
        errors.Unauthenticated,
        errors.PermissionDenied,
        errors.ContextTooLong,
        errors.Mismatch,
        errors.ConfigError,
    )
    assert errors.surfaces(error) is (isinstance(error, always) or cls is OutriderError)


def test_a_peers_violation_is_a_broken_link_and_an_own_one_is_a_bug() -> None:
    """A lying peer does not end the turn; a frame this side must not send does."""
    assert not errors.surfaces(errors.ProtocolViolation("x"))
    assert errors.surfaces(errors.ProtocolViolation("x", ours=True))


def test_a_fingerprint_mismatch_says_which_and_what_to_do() -> None:
    """The message carries the fingerprint's name, both digests in short, and a way out."""
    text = str(errors.FingerprintMismatch("tokenizer", ours=b"\xab" * 32, theirs=b"\xcd" * 32))
    assert "tokenizer" in text and "abababababab" in text and "cdcdcdcdcdcd" in text and "connect to" in text


def test_exit_codes_of_what_is_no_error_of_ours() -> None:
    """Ctrl-C is 130 and an unknown exception 1."""
    assert errors.exit_code(KeyboardInterrupt()) is ExitCode.INTERRUPTED
    assert errors.exit_code(ValueError("x")) is ExitCode.ERROR


def test_any_status_has_an_error() -> None:
    """Every gRPC status but OK leads to an error of this tree, and to a link error where nothing better is known."""
    for code in grpc.StatusCode:
        if code is not grpc.StatusCode.OK:
            assert isinstance(errors.from_status(code.name, ""), OutriderError)
    assert type(errors.from_status("UNKNOWN", "x")) is errors.LinkDown
    with pytest.raises(TypeError):
        error_of(ValueError("no error of a call"))


def test_the_tree_imports_no_grpc() -> None:
    """The cores raise these errors without loading gRPC."""
    code = "import sys, outrider.shared.errors as e; e.to_failure(e.Draining('x')); sys.exit('grpc' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}
        ).returncode
        == 0
    )
