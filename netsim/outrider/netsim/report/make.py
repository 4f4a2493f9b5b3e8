"""A report: everything is computed first and written last, so that a bad log leaves no half of one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from outrider.netsim.errors import BadConfig
from outrider.netsim.events.reader import read
from outrider.netsim.events.writer import replace_file
from outrider.netsim.report import parts, tables
from outrider.netsim.report.grid import panels, points_of_logs, read_grid
from outrider.netsim.report.tables import Table
from outrider.netsim.report.tally import Counted, count, grouped


def load(paths: Sequence[Path]) -> list[Counted]:
    """The logs with their counts, named after their files. Raises `BadLog`, `BadConfig`."""
    made = []
    names: set[str] = set()
    for path in paths:
        log = read(path)
        stem = path.name.removesuffix(".jsonl")
        name, number = stem, 2
        while name in names:
            name, number = f"{stem}-{number}", number + 1
        names.add(name)
        made.append(Counted(name, log, count(log)))
    return made


def report(logs: Sequence[Counted], grids: Sequence[Path] = (), *, figures: bool = True) -> dict[str, bytes]:
    """The files of a report by name. Raises `BadConfig` for a grid that is none; figures need matplotlib."""
    groups = grouped(logs)
    points = [point for grid in grids for point in read_grid(grid)]
    places = panels(points or points_of_logs(logs))
    made: list[tuple[str, Table]] = []
    if logs:
        made += [("runs", tables.runs(logs)), ("modes", tables.modes(groups))]
        made += [("categories", tables.categories(groups)), ("labels", tables.labels(groups))]
    if (spent := parts.table(logs)).rows:
        made.append(("rounds", spent))
    if places:
        made.append(("throughput", tables.points(places)))
    if any(panel.even for panel in places):
        made.append(("break-even", tables.break_even(places)))
    files = {f"{name}.csv": table.csv().encode() for name, table in made}
    if logs:
        files["turns.csv"] = tables.turns(logs).csv().encode()
    words = "# Report\n\n" + "\n".join(table.markdown() for _, table in made)
    if figures:
        from outrider.netsim.report.draw import draw

        drawn = draw(logs, groups, places)
        files |= drawn
        words += "\n" + "".join(f"![{name}]({name})\n" for name in drawn if name.endswith(".svg"))
    return {"report.md": words.encode(), **files}


def write(files: dict[str, bytes], folder: Path) -> None:
    """Put a report into a folder, which is made where it is missing. Raises `BadConfig`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfig("--out", f"cannot make {folder}: {error.strerror}") from error
    for name, content in files.items():
        replace_file(folder / name, content, setting="--out")


def plain(name: str) -> str:
    """A log's name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "log"
