"""Scripted faults of a scenario: the kinds of the command line, as tables."""

from __future__ import annotations

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Scheduled, parse_fault
from outrider.netsim.faults.parse import KINDS
from outrider.netsim.scenario.source import Table

KEYS = ("kind", "at", "token", "for", "dir", "bytes", "then")


def read_fault(table: Table, *, ride: bool) -> Scheduled:
    """A fault of a phase (`at`: from the phase's start) or of the ride (`at` from its start, or `token`).

    Raises `BadScenario`.
    """
    kind = table.choice("kind", KINDS)
    at_s = table.seconds("at", None)
    token = table.whole("token", None)
    if token is not None and not ride:
        table.fail("token", "expected at = …: faults by token belong to the ride, under [[faults]]", key=True)
    if (at_s is None) == (token is None):
        both = "at or token, not both" if at_s is not None else ("at or token" if ride else "at")
        table.source.fail(table.path, f"expected the moment of the {kind}: {both}", key=True)
    text = _as_text(table)
    try:
        fault, for_s = parse_fault(kind, text)
    except BadConfig as error:
        _blame(table, error)
    return Scheduled(fault, at_s=at_s, token=token, for_s=for_s)


def _as_text(table: Table) -> str:
    """What the command line would say; `parse_fault` knows the rest."""
    table.seconds("for", None)
    pairs = {
        "for": table.raw("for", None),
        "dir": table.choice("dir", ("up", "down", "both"), None),
        "bytes": table.whole("bytes", None),
        "then": table.choice("then", ("hold", "reset"), None),
    }
    return ",".join(f"{name}={value}" for name, value in pairs.items() if value is not None)


def _blame(table: Table, error: BadConfig) -> None:
    """Point at the key that the refusal is about; at the fault where it is about one that is missing."""
    name = error.field
    for key in KEYS:  # "reset: does not know dir" is about dir
        if key in table and f"does not know {key}" in error.why:
            table.fail(key, f"expected no such key with this kind: {error}", key=True)
    if name in table:
        table.fail(name, f"expected otherwise: {error.why}")
    table.source.fail(table.path, f"expected {name}: {error.why}", key=True)
