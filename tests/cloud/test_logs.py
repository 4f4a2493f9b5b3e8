"""The log is JSON lines, and no text of a user can get into it."""

from __future__ import annotations

import io
import json
import logging

import pytest

from outrider.cloud import logs

CANARY = "canary-7f3a the user's own words"


def last(stream: io.StringIO) -> dict[str, object]:
    """The last line as an object."""
    entry = json.loads(stream.getvalue().splitlines()[-1])
    assert isinstance(entry, dict)
    return entry


def test_an_event_is_one_json_line(debug_log: io.StringIO) -> None:
    """Message, level, logger, time and fields stand in one object a line."""
    logs.event(logging.getLogger("outrider.test"), logging.INFO, "frame refused", stream=3, field="draft.ids")
    entry = last(debug_log)
    assert (
        entry["event"] == "frame refused" and entry["level"] == "info" and entry["logger"] == "outrider.test"
    )
    assert entry["stream"] == 3 and entry["field"] == "draft.ids" and str(entry["time"]).endswith("+00:00")


def test_only_listed_fields_can_be_logged() -> None:
    """A field that is not on the list is refused where it is written, not filtered silently."""
    with pytest.raises(ValueError, match="text"):
        logs.event(logging.getLogger("outrider.test"), logging.INFO, "x", text=CANARY)


def test_an_exception_is_logged_by_type_and_place(debug_log: io.StringIO) -> None:
    """The message of an unexpected exception, which may quote input, does not reach the log; its incident does."""
    try:
        raise ValueError(CANARY)
    except ValueError as error:
        incident = logs.report(logging.getLogger("outrider.test"), "unexpected", error, phase="step")
    entry = last(debug_log)
    assert entry["error"] == "ValueError" and entry["incident"] == incident and entry["phase"] == "step"
    assert "test_logs.py" in str(entry["where"]) and CANARY not in debug_log.getvalue()


def test_other_libraries_lose_their_arguments(debug_log: io.StringIO) -> None:
    """A record of another library keeps its template; what it was about to fill in is not written."""
    logging.getLogger("grpc").warning("while handling %s", CANARY)
    assert last(debug_log)["event"] == "while handling %s" and CANARY not in debug_log.getvalue()


def test_an_unknown_level_is_refused() -> None:
    """The level is one of four words."""
    with pytest.raises(ValueError, match="loud"):
        logs.set_up("loud")
