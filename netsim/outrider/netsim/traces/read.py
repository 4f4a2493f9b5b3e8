"""`read`: a trace from a path, its format said or guessed.

    [FORMAT:]PATH[?OPTION=VALUE[&OPTION=VALUE …]]

Options of every format: `from=60s` begins that far into the trace. `csv` takes `down`, `up`, `unit`; `joint` takes
`every=10s`, and every column's name to choose rows.
"""

from __future__ import annotations

from pathlib import Path

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults.parse import duration
from outrider.netsim.settings import LinkSettings
from outrider.netsim.traces import joint, mahimahi, per_second, seconds
from outrider.netsim.traces.source import Source, is_number
from outrider.netsim.traces.trace import Trace

FORMATS = ("mahimahi", "seconds", "csv", "joint")
"""The names a format may be said by."""


def read(text: str, *, seed: int = 0) -> Trace:
    """The trace of `[format:]path[?options]`; `.gz` content is unpacked. `seed` orders what a format draws.

    Raises `BadTrace` with path, line, column and what was expected; `BadConfig` for a file that cannot be read, and for
    options the format does not know. The guess: whole numbers alone on their lines are mahimahi's, two numbers with a
    blank between are seconds, a header with rates both ways and a round trip is joint, the rest is CSV.
    """
    name, path, options = split(text)
    source = Source.open(path)
    form = name or guess(source)
    begin = duration("trace", options.pop("from", "0s"))
    if form == "joint":
        every_s = duration("trace", options.pop("every", f"{joint.EVERY_S:g}s"))
        if every_s <= 0:
            raise BadConfig("trace", f"{path}: expected every= above 0 s")
        trace = joint.load(source, options, every_s=every_s, seed=seed)
    elif form == "csv":
        _refuse_unknown(path, form, options, per_second.OPTIONS)
        trace = per_second.load(source, options)
    else:
        _refuse_unknown(path, form, options, frozenset())
        trace = mahimahi.load(source) if form == "mahimahi" else seconds.load(source)
    return trace.shifted(begin)


def follow(link: LinkSettings, trace: str | None, trace_up: str | None, seed: int) -> LinkSettings:
    """The link following the traces named, each as `read` takes it, or itself. Raises `BadConfig`, `BadTrace`."""
    down = None if trace is None else read(trace, seed=seed)
    up = None if trace_up is None else read(trace_up, seed=seed)
    return link.following(down, up)


def split(text: str) -> tuple[str | None, str, dict[str, str]]:
    """Format, path and options of a trace's text. Raises `BadConfig` for what is no option, or given twice."""
    head, colon, tail = text.partition(":")
    name = head if colon and head in FORMATS else None
    path = tail if name is not None else text
    if path and Path(path).exists():
        return name, path, {}
    path, _, query = path.partition("?")
    if not path:
        raise BadConfig("trace", f"expected [format:]path, formats {', '.join(FORMATS)}; got {text!r}")
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not (key and equals) or key in options:
            raise BadConfig("trace", f"{path}: expected option=value once each, with & between, got {part!r}")
        options[key] = value
    return name, path, options


def guess(source: Source) -> str:
    """The format by the first line's form. Raises `BadTrace` for an empty file or a form that is none of them."""
    line, first = next(source.filled())
    fields = first.split()
    if len(fields) == 1 and fields[0].isdecimal():
        return "mahimahi"
    if len(fields) == 2 and all(map(is_number, fields)):
        return "seconds"
    if "," in first or (len(fields) == 1 and (is_number(first) or fields[0].lower() in per_second.COLUMNS)):
        return "joint" if joint.is_joint(first.split(",")) else "csv"
    expected = "milliseconds, seconds<TAB>Mbit/s, or comma-separated values; or the format before the path"
    raise source.bad(line, 1, expected, first.strip())


def _refuse_unknown(path: str, form: str, options: dict[str, str], known: frozenset[str]) -> None:
    unknown = sorted(set(options) - known)
    if unknown:
        names = ", ".join(sorted({"from", *known}))
        raise BadConfig("trace", f"{path}: {form} knows the options {names}, not {', '.join(unknown)}")
