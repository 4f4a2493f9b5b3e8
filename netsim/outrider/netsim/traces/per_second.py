"""CSV with one capacity a second: bare values, values with their units, or named columns.

    4.37                                  Mbit/s, one line a second (further numbers on the line are left alone)
    812,Kbits/sec                         as iperf logs it; each line's own unit counts
    Timestamp,…,DL_bitrate,UL_bitrate,…   a header: columns by name, with an optional column of time

Known names need no option (`COLUMNS`); others are told by `down=NAME`, `up=NAME` and `unit=kbit`. A column of time
(`Timestamp`, `time`, `seconds`) holds seconds or `YYYY.MM.DD_HH.MM.SS`. Loggers that stamp whole seconds write some
twice and leave out others: rows with the same stamp share the time until the next stamp equally. Without such a column
a row lasts one second. The last row lasts a second, or as long as its neighbours in the mean; then the trace repeats.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.netsim.settings import Direction
from outrider.netsim.traces.capacity import Capacity
from outrider.netsim.traces.source import Source, is_number
from outrider.netsim.traces.trace import Trace

OPTIONS = frozenset({"down", "up", "unit"})
UNITS = {"bit": 1e-6, "kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}
"""Units as multiples of Mbit/s; `unit` reduces the usual spellings to these."""
COLUMNS: dict[str, tuple[Direction | None, str]] = {
    "dl_bitrate": ("down", "kbit"),
    "ul_bitrate": ("up", "kbit"),
    "down_mbit": ("down", "mbit"),
    "up_mbit": ("up", "mbit"),
    "download_mbps": ("down", "mbit"),
    "upload_mbps": ("up", "mbit"),
    "mbit": (None, "mbit"),
    "mbps": (None, "mbit"),
    "kbit": (None, "kbit"),
    "kbps": (None, "kbit"),
}
"""Column names that need no option, in lower case, with direction (`None`: either) and unit."""
TIMES = ("timestamp", "time", "seconds")
_UNIT = re.compile(r"([kmg]?)(?:bits?|bps|b)(?:/s|/sec|ps)?", re.ASCII | re.IGNORECASE)
_STAMP = re.compile(r"\d{4}\.\d\d\.\d\d_\d\d\.\d\d\.\d\d", re.ASCII)
_STAMP_FORM = "%Y.%m.%d_%H.%M.%S"
_EPOCH = datetime(1970, 1, 1)
_SPELLINGS = "bits/sec, Kbits/sec, Mbits/sec or Gbits/sec"


def unit(text: str) -> str | None:
    """`kbit` for `Kbits/sec`, `kbit/s`, `kbps`; `None` for what is no unit of a rate."""
    match = _UNIT.fullmatch(text.strip())
    return None if match is None else f"{match[1].lower()}bit"


def load(source: Source, options: dict[str, str]) -> Trace:
    """The trace of one direction, or of both if the header has both. Raises `BadTrace`."""
    rows = table(source)
    if is_number(rows[0].fields[0]):
        capacity = _without_header(source, rows, options)
        return Trace(source=source.path, format="csv", down=capacity, up=capacity)
    down, up = _named(source, rows[0], options)
    held = _held(source, rows)
    found = {column: _capacity(source, rows[1:], held, column) for column in {down, up} if column is not None}
    return Trace(
        source=source.path,
        format="csv",
        down=None if down is None else found[down],
        up=None if up is None else found[up],
    )


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, with the line it stands on."""

    line: int
    fields: list[str]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of rates, counted from 0, and what one Mbit/s is in it."""

    index: int
    name: str
    unit: str


def table(source: Source) -> list[Row]:
    """The rows that are not blank. Raises `BadTrace` for quotes that do not close."""
    out = []
    for line, text in source.filled():
        try:
            out.append(Row(line, next(csv.reader([text], strict=True))))
        except csv.Error as error:
            raise source.bad(line, 1, f"comma-separated fields ({error})", text) from error
    return out


def columns_of(source: Source, header: Row) -> dict[str, int]:
    """Column names in lower case and their places. Raises `BadTrace` for a name that comes twice."""
    out: dict[str, int] = {}
    for index, name in enumerate(header.fields):
        key = name.strip().lower()
        if key and key in out:
            raise source.bad(header.line, index + 1, "column names that differ", name)
        out[key] = index
    return out


def field_of(source: Source, row: Row, index: int, name: str) -> str:
    """A field of a row. Raises `BadTrace` if the row is too short."""
    if index >= len(row.fields):
        raise source.bad(row.line, len(row.fields) + 1, f"a field for column {index + 1} ({name})")
    return row.fields[index]


def _without_header(source: Source, rows: list[Row], options: dict[str, str]) -> Capacity:
    """Values in the first column; a second one counts as units if the first row has one there."""
    if "down" in options or "up" in options:
        raise source.bad(rows[0].line, 1, "a header, since a column is asked for by name", rows[0].fields[0])
    scale = UNITS[_unit_option(source, options)]
    with_units = len(rows[0].fields) == 2 and not is_number(rows[0].fields[1])
    rates = []
    for row in rows:
        if with_units:
            text = field_of(source, row, 1, "unit")
            known = unit(text)
            if known is None:
                raise source.bad(row.line, 2, f"a unit: {_SPELLINGS}", text)
            scale = UNITS[known]
        value = source.number(row.line, 1, row.fields[0], "a rate", most=1e12)
        rates.append(value * scale)
    return _curve(source, rows, [1.0] * len(rows), rates, 0)


def _unit_option(source: Source, options: dict[str, str]) -> str:
    text = options.get("unit", "mbit")
    known = unit(text)
    if known is None:
        raise source.bad(1, 1, "unit=bit, kbit, mbit or gbit as an option", text)
    return known


def _named(source: Source, header: Row, options: dict[str, str]) -> tuple[_Column | None, _Column | None]:
    """The columns down and up of a table with a header."""
    places = columns_of(source, header)
    asked: dict[Direction, str | None] = {"down": options.get("down"), "up": options.get("up")}
    if any(asked.values()):
        out = [
            None if name is None else _asked(source, header, places, name, options) for name in asked.values()
        ]
        return out[0], out[1]
    found: dict[Direction | None, _Column] = {}
    for name, index in places.items():
        if name in COLUMNS:
            way, known = COLUMNS[name]
            found.setdefault(
                way, _Column(index, header.fields[index], _unit_option(source, {"unit": known, **options}))
            )
    if not found:
        names = ", ".join(COLUMNS)
        expected = f"a column named one of {names}, or one named by ?down=NAME or ?up=NAME"
        raise source.bad(header.line, 1, expected, ",".join(header.fields))
    either = found.get(None)
    return found.get("down", either), found.get("up", either)


def _asked(
    source: Source, header: Row, places: dict[str, int], name: str, options: dict[str, str]
) -> _Column:
    index = places.get(name.strip().lower())
    if index is None:
        raise source.bad(header.line, 1, f"a column {name}", ",".join(header.fields))
    known = COLUMNS.get(name.strip().lower(), (None, "mbit"))[1]
    return _Column(index, name, _unit_option(source, {"unit": known, **options}))


def _capacity(source: Source, rows: list[Row], held: list[float], column: _Column) -> Capacity:
    scale = UNITS[column.unit]
    rates = []
    for row in rows:
        text = field_of(source, row, column.index, column.name)
        rates.append(
            source.number(row.line, column.index + 1, text, f"{column.name} in {column.unit}/s", 1e12) * scale
        )
    return _curve(source, rows, held, rates, column.index)


def _curve(source: Source, rows: list[Row], held: list[float], rates: list[float], index: int) -> Capacity:
    if not any(rates):
        raise source.bad(rows[-1].line, index + 1, "some capacity above 0 in this column", "0 in every row")
    return Capacity.steps(zip(held, rates, strict=True))


def _held(source: Source, rows: list[Row]) -> list[float]:
    """How long each row of a table with a header lasts. Raises `BadTrace` if there is none, or time goes back."""
    if len(rows) < 2:
        raise source.bad(rows[0].line + 1, 1, "a row of data after the header")
    places = columns_of(source, rows[0])
    name = next((name for name in TIMES if name in places), None)
    if name is None:
        return [1.0] * (len(rows) - 1)
    groups: list[tuple[float, int]] = []
    for row in rows[1:]:
        time = _time(source, row, places[name], name)
        if groups and time < groups[-1][0]:
            text = row.fields[places[name]]
            raise source.bad(row.line, places[name] + 1, "a time not before the line above", text)
        if groups and time == groups[-1][0]:
            groups[-1] = (time, groups[-1][1] + 1)
        else:
            groups.append((time, 1))
    return list(_shares(groups))


def _shares(groups: list[tuple[float, int]]) -> Iterator[float]:
    """The seconds of each row, from the stamps and how many rows have each."""
    times = [time for time, _ in groups]
    step = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 1.0
    for (time, count), end in zip(groups, [*times[1:], times[-1] + step], strict=True):
        yield from [(end - time) / count] * count


def _time(source: Source, row: Row, index: int, name: str) -> float:
    text = field_of(source, row, index, name).strip()
    if _STAMP.fullmatch(text):
        try:
            return (datetime.strptime(text, _STAMP_FORM) - _EPOCH) / timedelta(seconds=1)
        except ValueError as error:
            raise source.bad(row.line, index + 1, "a date and time that exist", text) from error
    return source.number(row.line, index + 1, text, "seconds or YYYY.MM.DD_HH.MM.SS", most=1e10)
