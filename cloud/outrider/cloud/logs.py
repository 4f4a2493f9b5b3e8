"""JSON lines on stderr that cannot carry a user's text.

One line per record: ``{"time", "level", "logger", "event", ...fields}``. The event is a constant string; values travel
as named fields, and only fields listed here, of plain types, are written. Exceptions are written as type and places,
never with their message: messages quote input. Records of other libraries keep their template and lose its arguments.
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
import traceback
from datetime import UTC, datetime
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")
"""Values of ``--log-level``."""

Field = str | int | float | bool

FIELDS = frozenset(
    {
        # who and where
        "address", "method", "peer_kind", "stream", "incident", "phase", "replica",
        # how it went
        "code", "reason", "field", "outcome", "frames", "seconds", "deadline_ms", "signal",
        # what is served
        "target", "dtype", "threads", "drafter", "bundle", "law", "tokenizer", "size_bytes", "planes", "rules",
        "width_invariant", "near_tie_gap", "widths", "costs_us", "prefill_us_per_token", "kv_budget_bytes",
        "max_sessions", "max_context", "tls", "mutual_tls", "tokens_required", "reflection", "padding",
        # how much
        "sessions", "streams", "works", "queued_bytes",
    }
)  # fmt: skip
"""Names of fields that may be written. None of them holds text, ids or credentials."""

_OURS = "outrider"
_LONGEST = 200


def event(logger: logging.Logger, level: int, message: str, **fields: Field) -> None:
    """Log a constant ``message`` with named ``fields``; names outside ``FIELDS`` are a programming error."""
    unknown = fields.keys() - FIELDS
    if unknown:
        raise ValueError(f"log fields {sorted(unknown)} are not on the list of fields that hold no text")
    logger.log(level, message, extra={"outrider_fields": fields})


def report(logger: logging.Logger, message: str, error: BaseException, **fields: Field) -> str:
    """Log an unexpected exception without its text; gives the opaque incident number that was logged with it."""
    incident = secrets.token_hex(4)
    logger.error(message, exc_info=error, extra={"outrider_fields": {"incident": incident, **fields}})
    return incident


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object without exception messages or foreign arguments."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its newline."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": str(record.msg)[:_LONGEST],
        }
        if record.name.split(".")[0] == _OURS:
            entry |= {
                name: value[:_LONGEST] if isinstance(value, str) else value
                for name, value in getattr(record, "outrider_fields", {}).items()
            }
        if record.exc_info and record.exc_info[1] is not None:
            entry |= describe_exception(record.exc_info[1])
        return json.dumps(entry, ensure_ascii=True)


def describe_exception(error: BaseException) -> dict[str, object]:
    """Type of an exception and the places it came through, without its message."""
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "error": type(error).__name__,
        "where": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }


def set_up(level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Send every log record of this process to ``stream`` (default stderr) as JSON lines; gives the handler.

    Raises ValueError for a level that is not one of ``LEVELS``.
    """
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Libraries speak up only when something is wrong: their debug output quotes what they handle.
    for name in ("transformers", "asyncio", "grpc", "urllib3", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler
