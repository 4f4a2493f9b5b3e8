"""Drafters as they were measured: acceptance, step times and rows, from benchmark results or from event logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.client.cost import StepCost
from outrider.netsim.errors import BadConfig
from outrider.netsim.events.reader import read
from outrider.netsim.events.schema import RoundLine
from outrider.netsim.virtual.acceptance import Acceptance, from_rounds, recorded
from outrider.netsim.virtual.planner import Device
from outrider.netsim.virtual.sweep import read_json

WIDE = 8
"""Nodes of the pass that ``tree_pass_ms`` was measured for."""


def drafters(path: Path, temperature: float = 0.0) -> dict[str, Device]:
    """Every drafter in a table of drafters (`benchmarks/results/drafters.json`), by name. Raises `BadConfig`."""
    told = read_json(path, "drafters")
    rows = told.get("rows") if isinstance(told, dict) else None
    if not isinstance(rows, list):
        raise BadConfig("drafters", f"{path}: expected an object with a list of rows")
    try:
        found = {row["name"]: _device(row, path) for row in rows if row["temperature"] == temperature}
    except (KeyError, TypeError) as error:
        raise BadConfig("drafters", f"{path}: a row lacks {error}") from error
    if not found:
        raise BadConfig("drafters", f"{path}: expected rows at temperature {temperature:g}")
    return found


def _device(row: dict[str, Any], path: Path) -> Device:
    step_s = row["step_ms"] / 1e3
    wide_s = (row["tree_pass_ms"] or row["step_ms"]) / 1e3
    node_s = max(wide_s - step_s, 0.0) / (WIDE - 1)
    source = f"{path.name}: {row['name']}"
    return Device(
        kind=row["kind"],
        step=StepCost(max(step_s - node_s, 0.0), node_s),
        acceptance=recorded(row["acceptance"], row["tau_chain6"], row["tau_tree24"], source),
        row_bytes=row["row_bytes"],
    )


def from_events(path: Path) -> Acceptance:
    """What the rounds of an event log say about their drafter. Raises `BadConfig`."""
    lines = read(path).lines
    rounds = [
        (line.parents, line.path)
        for line in lines
        if isinstance(line, RoundLine) and line.outcome == "verified" and not line.replayed and line.parents
    ]
    return from_rounds(rounds, path.name)
