"""The link of a phase: a preset, figures, a preset with other figures, or traces; and its outages."""

from __future__ import annotations

from pathlib import Path

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import OutageProcess
from outrider.netsim.profiles import PROFILES, Profile
from outrider.netsim.scenario.source import Table, shown
from outrider.netsim.settings import Direction, LinkSettings
from outrider.netsim.traces import FORMATS, BadTrace, Trace, read

FIGURES = ("rtt_ms", "jitter_ms", "down_mbit", "up_mbit", "loss")
KEYS = ("preset", *FIGURES, "trace", "trace_up")
PRESETS = tuple(name for name, found in PROFILES.items() if not found.cut_for_good)
"""`flight` is no link of its own: it is a cut, which a scenario writes as `cut_at_token`."""
OUTAGES = "outages"
DOWN: Direction = "down"
UP: Direction = "up"


def read_link(table: Table, seed: int = 0) -> tuple[LinkSettings, str, Profile | None]:
    """A phase's link, its name for people, and the preset it comes from; `seed` orders what a trace draws.

    Raises `BadScenario`, and `BadTrace` where a trace file is bad.
    """
    value = table.raw("link")
    if isinstance(value, str):
        name = table.choice("link", PRESETS)
        return PROFILES[name].link, name, PROFILES[name]
    if not isinstance(value, dict):
        table.fail("link", f"expected a preset's name or a table of figures, got {shown(value)}")
    inner = table.table("link", KEYS)
    if not value:
        table.fail("link", f"expected at least one of {', '.join(KEYS)}")
    name = inner.choice("preset", PRESETS, None)
    preset = None if name is None else PROFILES[name]
    figures = {figure: inner.number(figure, None) for figure in FIGURES}
    base = LinkSettings() if preset is None else preset.link
    down, up = (_trace(inner, name, seed) for name in ("trace", "trace_up"))
    try:
        link = _following(inner, base, down, up).override(**figures)
    except BadConfig as error:
        inner.fail(_figure(inner, error.field), f"expected otherwise: {error.why}")
    words = [preset.name] if preset else []
    words += [f"{name}={Path(inner.raw(name)).name}" for name in ("trace", "trace_up") if name in inner]
    words += [f"{figure}={number:g}" for figure, number in figures.items() if number is not None]
    return link, " ".join(words), preset


def _trace(table: Table, name: str, seed: int) -> Trace | None:
    """The trace of `[format:]path[?options]`, its path relative to the scenario's file."""
    text = table.text(name, None)
    if text is None:
        return None
    rate = "down_mbit" if name == "trace" else "up_mbit"
    if rate in table:
        table.fail(rate, f"expected {name} or {rate}, not both: a trace gives the rate", key=True)
    form, colon, path = text.partition(":")
    if not (colon and form in FORMATS):
        form, colon, path = "", "", text
    try:
        return read(f"{form}{colon}{table.source.path.parent / path}", seed=seed)
    except BadTrace:
        raise  # it names the trace's own file and place
    except BadConfig as error:
        table.fail(name, f"expected [format:]path of a trace: {error.why}")


def _following(table: Table, link: LinkSettings, down: Trace | None, up: Trace | None) -> LinkSettings:
    for name, trace, direction in (("trace", down, DOWN), ("trace_up", up, UP)):
        if trace is not None and trace.capacity(direction) is None:
            table.fail(
                name, f"expected a trace with a column for this direction; name one: ?{direction}=COLUMN"
            )
    return link.following(down, up)


def _figure(table: Table, field: str) -> str:
    """The key that a refusal of `LaneSettings` is about."""
    if field == "rate_mbit":
        return next((name for name in ("down_mbit", "up_mbit") if table.raw(name, 1.0) <= 0), "down_mbit")
    return next(
        (name for name in (field, "rtt_ms" if field == "delay_ms" else field) if name in table), field
    )


def read_outages(table: Table, preset: Profile | None) -> OutageProcess | None:
    """A phase's random outages: "none", "preset", or a table of their own. Raises `BadScenario`."""
    value = table.raw(OUTAGES)
    if isinstance(value, str):
        if table.choice(OUTAGES, ("none", "preset")) == "none":
            return None
        if preset is None or preset.outages is None:
            whose = "this link is no preset" if preset is None else f"{preset.name} has none"
            table.fail(OUTAGES, f"expected gap, median and tail: {whose}, so it brings no outages")
        return preset.outages
    if not isinstance(value, dict):
        table.fail(OUTAGES, f'expected "none", "preset" or a table of gap, median, tail, got {shown(value)}')
    inner = table.table(OUTAGES, ("gap", "median", "tail"))
    gap, median, tail = (inner.seconds(name) for name in ("gap", "median", "tail"))
    for name, number in (("gap", gap), ("median", median), ("tail", tail)):
        if number == 0:
            inner.fail(name, "expected a duration above 0")
    if tail < median:
        inner.fail("tail", f"expected the 99th percentile, at least the median of {median:g} s")
    return OutageProcess(gap, median, tail)
