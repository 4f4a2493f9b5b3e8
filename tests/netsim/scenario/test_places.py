"""Where keys and values of a TOML text stand."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.netsim.scenario.places import Path, Place, Places

TEXT = '''# a comment with [brackets] and "quotes"
seed = 7
a.b . "c d" = 'x # no comment' # a comment

[device]
  rule = """two
lines ""\\""" more"""
mode = "auto"
[[phases]]
link = { preset = "4g-good", rtt_ms = 70, deep = { x = [1, 2] } }
faults = [
    { kind = "reset", at = "1s" }, # first
    { kind = "refuse" },
]
[phases.outages]
gap = "1s"
[[phases]]
name = 'last'
'''

WHERE: list[tuple[Path, tuple[int, int], tuple[int, int]]] = [
    (("seed",), (2, 1), (2, 8)),
    (("a",), (3, 1), (3, 1)),
    (("a", "b"), (3, 3), (3, 3)),
    (("a", "b", "c d"), (3, 7), (3, 15)),
    (("device",), (5, 2), (5, 2)),
    (("device", "rule"), (6, 3), (6, 10)),
    (("device", "mode"), (8, 1), (8, 8)),
    (("phases",), (9, 3), (9, 3)),
    (("phases", 0), (9, 3), (9, 3)),
    (("phases", 0, "link"), (10, 1), (10, 8)),
    (("phases", 0, "link", "preset"), (10, 10), (10, 19)),
    (("phases", 0, "link", "rtt_ms"), (10, 30), (10, 39)),
    (("phases", 0, "link", "deep", "x", 1), (10, 60), (10, 60)),
    (("phases", 0, "faults", 0), (12, 5), (12, 5)),
    (("phases", 0, "faults", 1, "kind"), (13, 7), (13, 14)),
    (("phases", 0, "outages", "gap"), (16, 1), (16, 7)),
    (("phases", 1), (17, 3), (17, 3)),
    (("phases", 1, "name"), (18, 1), (18, 8)),
]


@pytest.mark.parametrize(("path", "key", "value"), WHERE, ids=lambda each: str(each))
def test_every_key_and_value_has_its_place(path: Path, key: tuple[int, int], value: tuple[int, int]) -> None:
    """Headers, dotted and quoted keys, strings of all kinds, arrays and inline tables."""
    places = Places(TEXT)
    assert (places.key(path), places.value(path)) == (Place(*key), Place(*value))


def test_what_is_not_there_stands_where_it_would_have_been() -> None:
    """A missing key has the place of its table; of the top table, the beginning."""
    places = Places(TEXT)
    assert places.key(("phases", 1, "link")) == Place(17, 3)
    assert places.key(("nothing", "here")) == Place(1, 1)


def literal(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[ " + " , ".join(literal(each) for each in value) + " ]"
    if isinstance(value, dict):
        return "{ " + " , ".join(f"{name} = {literal(each)}" for name, each in value.items()) + " }"
    return str(value)


NAMES = st.sampled_from(("a", "b", "long-name", "x_1"))
SCALARS = st.one_of(st.integers(), st.booleans(), st.text("ab#[]{}=,\"\\' .", max_size=6))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)


@given(
    content=st.dictionaries(NAMES, VALUES, max_size=4),
    tables=st.lists(st.dictionaries(NAMES, VALUES), max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_the_text_at_every_value_is_that_value(content: dict[str, Any], tables: list[dict[str, Any]]) -> None:
    """Whatever a text holds: at the place of each value stands that value, at that of each key that key."""
    lines = [f"{name}\t=  {literal(value)}  # {name} = 1" for name, value in content.items()]
    for table in tables:
        lines += ["", "  [[many]]", *(f"  {name} = {literal(value)}" for name, value in table.items())]
    text = "\n".join(lines)
    assert tomllib.loads(text) == content | ({"many": tables} if tables else {})
    places, rows = Places(text), text.split("\n")

    def check(path: Path, value: Any) -> None:
        at = places.value(path)
        assert rows[at.line - 1][at.column - 1 :].startswith(literal(value))
        if isinstance(path[-1], str):
            key = places.key(path)
            assert rows[key.line - 1][key.column - 1 :].startswith(path[-1])
        inner = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for name, each in inner:
            check((*path, name), each)

    for name, value in content.items():
        check((name,), value)
    for index, table in enumerate(tables):
        for name, value in table.items():
            check(("many", index, name), value)
