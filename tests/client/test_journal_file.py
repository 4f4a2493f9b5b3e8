"""The journal on disk: what was written is read back, a torn end is cut off, damage is refused."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.client.journal_file import JournalFile, read_journal
from outrider.shared.errors import ConfigError

RECORDS: list[dict[str, object]] = [
    {"kind": "session", "id": "00ff"},
    {"kind": "commit", "ids": [1, 2, 3]},
    {"kind": "note", "text": "a line\nwith \u2028 breaks"},
]


def write(path: Path, records: list[dict[str, object]]) -> None:
    """A journal with these records."""
    journal = JournalFile(path)
    for record in records:
        journal.append(record)
    journal.flush()
    journal.close()


def test_records_come_back_and_nobody_else_reads_them(tmp_path: Path) -> None:
    """All records in order, across two openings, in a file only its owner may read."""
    path = tmp_path / "journal"
    write(path, RECORDS[:2])
    write(path, RECORDS[2:])
    assert read_journal(path) == RECORDS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10_000))
def test_a_torn_end_is_cut_off_and_appending_goes_on(tmp_path: Path, cut: int) -> None:
    """Cut at any byte: whole records before the cut survive, and new ones follow them cleanly."""
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    write(path, RECORDS)
    whole = path.read_bytes()
    cut %= len(whole) + 1
    os.truncate(path, cut)
    kept = read_journal(path)
    lines = whole[:cut].count(b"\n")
    assert kept[:lines] == RECORDS[:lines] and len(kept) <= lines + 1
    write(path, [{"kind": "later"}])
    assert read_journal(path) == [*kept, {"kind": "later"}]


@pytest.mark.parametrize("how", ["flip", "remove", "swap"])
def test_damage_before_the_end_is_refused(tmp_path: Path, how: str) -> None:
    """A record in the middle that is not what was written is named by its line."""
    path = tmp_path / "journal"
    write(path, RECORDS)
    lines = path.read_bytes().split(b"\n")
    middle = {
        "flip": lines[1].replace(b"commit", b"comnit"),
        "remove": b"",
        "swap": lines[1][:9] + json.dumps([1]).encode(),
    }
    path.write_bytes(b"\n".join([lines[0], middle[how], *lines[2:]]))
    with pytest.raises(ConfigError, match="line 2"):
        read_journal(path)


def test_places_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """A folder instead of a file, or a file that is not there, is a setting that cannot work."""
    with pytest.raises(ConfigError, match="--journal"):
        JournalFile(tmp_path)
    with pytest.raises(ConfigError, match="--resume"):
        read_journal(tmp_path / "missing")
