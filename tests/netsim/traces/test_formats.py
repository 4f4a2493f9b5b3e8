"""The loaders: tiny files worked out by hand, guesses, options, and where a bad file is bad."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.netsim.errors import BadConfig
from outrider.netsim.traces import BadTrace, Capacity, read
from outrider.netsim.traces.mahimahi import load
from outrider.netsim.traces.source import Source

IRISH = """Timestamp,Speed,DL_bitrate,UL_bitrate,State
2019.12.31_23.59.58,0,8000,100,D
2019.12.31_23.59.59,0,4000,0,D
2019.12.31_23.59.59,0,0,50,I
2020.01.01_00.00.01,0,2000,60,D
"""
JOINT = """operator,access_technology,download_mbps,upload_mbps,rtt_ms
a,4G,10,5,50
b,3G,2,1,200
a,4G,20,8,40
"""


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    return WriteFile(tmp_path)


class WriteFile:
    """Writes a trace and gives its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, content: str | bytes, name: str = "trace") -> str:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)


def down(text: str, seed: int = 0) -> Capacity:
    capacity = read(text, seed=seed).capacity("down")
    assert capacity is not None
    return capacity


def mbit(capacity: Capacity, *times: float) -> list[float]:
    return [round(capacity.bytes_per_s(t) / 125_000, 9) for t in times]


def test_mahimahi_by_hand(write: WriteFile) -> None:
    """A packet alone leaves at its chance; two chances, a gap, the repetition; both directions the same."""
    trace = read(write("2\n2\n5\n1000\n"))
    capacity = trace.capacity("up")
    assert trace.format == "mahimahi" and capacity is trace.capacity("down") and capacity is not None
    assert (capacity.period_s, capacity.bytes_per_period) == (1.0, 6000)
    ends = [capacity.departure(0, n * 1500) for n in range(1, 7)]
    assert ends == pytest.approx([0.0015, 0.002, 0.005, 1.0, 1.0015, 1.002], abs=1e-12)
    assert capacity.departure(0.002, 1) == pytest.approx(0.004 + 1 / 1_500_000)


def test_mahimahis_zero_is_the_end_of_the_round_before(write: WriteFile) -> None:
    """Chances at 0 ms count once a round, at its end."""
    capacity = down(write("0\n0\n3\n"))
    assert (capacity.period_s, capacity.bytes_per_period) == (0.003, 4500)
    assert capacity.departure(0, 4500) == pytest.approx(0.003)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=80).filter(any))
def test_mahimahi_counts_lines(stamps: list[int]) -> None:
    """At every millisecond the bytes so far are 1,500 a line, through gaps and repetitions."""
    stamps.sort()
    capacity = load(Source("t", tuple(map(str, stamps)))).capacity("down")
    assert capacity is not None
    period = stamps[-1]
    moved = [stamp or period for stamp in stamps]
    for ms in range(3 * period + 1):
        turns, phase = divmod(ms, period)
        lines = turns * len(moved) + sum(stamp <= phase for stamp in moved)
        assert capacity.bytes_by(ms / 1000) == pytest.approx(1500 * lines, abs=1e-6)


def test_seconds_by_hand(write: WriteFile) -> None:
    """Values hold over irregular steps, time starts at the first line, the last lasts the mean step."""
    capacity = down(write("10.0\t8\n10.5\t0\n13.0\t2.5\n", "ride"))
    assert capacity.period_s == 4.5
    assert mbit(capacity, 0, 0.49, 0.5, 2.9, 3, 4.4, 4.5) == [8, 8, 0, 0, 2.5, 2.5, 8]
    assert down(write("3 7\n")).period_s == 1


def test_bare_values_are_one_a_second(write: WriteFile) -> None:
    """Mbit/s a line, blank lines skipped, further numbers on the line left alone."""
    capacity = down(write("1.5\n\n0.0\r\n3\n\n"))
    assert capacity.period_s == 3
    assert mbit(capacity, 0, 1, 2, 3) == [1.5, 0, 3, 1.5]
    assert mbit(down(write("18.8,6,0,-88\n2,3,0,-90\n")), 0, 1) == [18.8, 2]
    assert mbit(down(f"csv:{write('5' + chr(10) + '4')}"), 0, 1) == [5, 4]


def test_every_lines_own_unit_counts(write: WriteFile) -> None:
    """Kilobits and bits among megabits, as iperf logs a weak link."""
    path = write("2.5,Mbits/sec\n800,Kbits/sec\n0,bits/sec\n\n96,bits/sec\n1,Gbits/sec\n")
    assert mbit(down(path), 0, 1, 2, 3, 4) == [2.5, 0.8, 0, 0.000096, 1000]


def test_named_columns_and_doubled_stamps(write: WriteFile) -> None:
    """kbit/s by direction; rows of the same second share the time until the next stamp."""
    trace = read(write(IRISH))
    up = trace.capacity("up")
    assert trace.format == "csv" and up is not None and not trace.joint
    assert down(trace.source).period_s == up.period_s == 4.5
    assert mbit(down(trace.source), 0, 0.9, 1, 1.9, 2, 3, 4.4) == [8, 8, 4, 4, 0, 2, 2]
    assert mbit(up, 0, 1, 2, 3) == [0.1, 0, 0.05, 0.06]


def test_columns_by_option(write: WriteFile) -> None:
    """Any column, its unit, one direction at a time; a header without a known name asks for it."""
    path = write("when,speed,cap\nx,1,900\ny,2,100\n")
    trace = read(f"{path}?down=cap&unit=kbit/s")
    assert mbit(down(f"{path}?down=cap&unit=kbit/s"), 0, 1, 2) == [0.9, 0.1, 0.9]
    assert trace.capacity("up") is None
    with pytest.raises(BadTrace, match=r"line 1, column 1: expected a column named one of .*\?down=NAME"):
        read(path)
    either = read(write("time,mbit\n0,1\n4,2\n"))
    assert either.up is either.down is not None and either.down.period_s == 8


def test_joint_rows_stay_together(write: WriteFile) -> None:
    """Down, up and round trip change at the same moments to values of one row; every row comes once a round."""
    trace = read(f"{write(JOINT)}?every=4s", seed=3)
    up, rtt = trace.capacity("up"), trace.rtt_ms
    assert trace.joint and up is not None and rtt is not None
    found = [
        (*mbit(down(f"{trace.source}?every=4s", 3), t), *mbit(up, t), rtt.at(t))
        for t in (0.1, 3.9, 4, 8, 11.9)
    ]
    assert found[0] == found[1] and found[3] == found[4]
    assert {found[0], found[2], found[3]} == {(10, 5, 50), (2, 1, 200), (20, 8, 40)}
    assert up.period_s == rtt.period_s == 12


def test_joint_rows_are_chosen_and_shuffled_by_the_seed(write: WriteFile) -> None:
    """A column's value chooses rows; the same seed gives the same order, another seed another."""
    rows = "".join(f"x,{'4G' if i % 2 else '3G'},{i + 1},1,{i + 10}\n" for i in range(40))
    path = write(JOINT.splitlines()[0] + "\n" + rows)
    chosen = f"{path}?access_technology=4g"
    orders = [read(chosen, seed=seed).rtt_ms for seed in (7, 7, 8)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] is not None and sorted(orders[0].values) == [float(i + 10) for i in range(1, 40, 2)]
    with pytest.raises(BadTrace, match="at least one row with access_technology=6G"):
        read(f"{path}?access_technology=6G")
    with pytest.raises(BadTrace, match="a column town"):
        read(f"{path}?town=Oslo")


def test_begun_later(write: WriteFile) -> None:
    """`from=` sets every format's clock on, all parts of a joint one together."""
    assert mbit(
        down(f"{write('0 1' + chr(10) + '1 2' + chr(10) + '2 3', 's')}?from=1.5s"), 0, 0.5, 1.5, 2.5
    ) == [2, 3, 1, 2]
    whole, later = (read(f"{write(JOINT, 'j')}?from={begin}", seed=1) for begin in ("0s", "10s"))
    assert later.rtt_ms is not None and whole.rtt_ms is not None
    assert (later.rtt_ms.at(1), *mbit(down(later.source + "?from=10s", 1), 1)) == (
        whole.rtt_ms.at(11),
        *mbit(down(whole.source, 1), 11),
    )


def test_gzip_is_transparent(write: WriteFile) -> None:
    """Packed files are told by content, whatever their name."""
    assert down(write(gzip.compress(b"1\n4\n"), "x.down")) == down(write("1\n4\n", "y"))


@pytest.mark.parametrize(
    ("content", "line", "column", "expected"),
    [
        ("", 1, 1, "at least one line"),
        ("\n \n", 1, 1, "at least one line"),
        ("hello world\n", 1, 1, "milliseconds, seconds<TAB>Mbit/s, or comma-separated"),
        ("1\n5\n4\n", 3, 1, "not below the line before"),
        ("1\n5\n6.5\n", 3, 1, "csv:PATH"),
        ("1\n-5\n", 2, 1, "whole number"),
        ("1\n99999999999999\n", 2, 1, "whole number"),
        ("0\n0\n", 2, 1, "above 0"),
        ("0 1\n1 2 3\n", 2, 3, "two fields"),
        ("0 1\n\n1\n", 3, 2, "two fields"),
        ("0 1\n1 fast\n", 2, 2, "Mbit/s"),
        ("0 1\n1 -2\n", 2, 2, "Mbit/s"),
        ("0 1\n1 nan\n", 2, 2, "Mbit/s"),
        ("0 1\n1 1e9\n", 2, 2, "Mbit/s"),
        ("1 1\n1 2\n", 2, 1, "above the line before"),
        ("0 0\n1 0\n", 2, 2, "above 0"),
        ("1.5\n2.5\nx\n", 3, 1, "a rate"),
        ("1.5,Mbits/sec\n2,Furlongs\n", 2, 2, "a unit: bits/sec"),
        ("1.5,Mbits/sec\n2\n", 2, 2, "column 2 (unit)"),
        ("0.0\n0\n", 2, 1, "above 0"),
        ("time,mbit\n", 2, 1, "a row of data"),
        ("time,mbit\n1,2\n0,3\n", 3, 1, "not before"),
        ("time,mbit\n1,2\n2\n", 3, 2, "column 2 (mbit)"),
        ("time,mbit\nnoon,2\n", 2, 1, "YYYY.MM.DD"),
        ("time,mbit\n2020.02.31_00.00.00,2\n", 2, 1, "that exist"),
        ("mbit,time,mbit\n1,2,3\n", 1, 3, "names that differ"),
        ("a,b\n1,2\n", 1, 1, "a column named one of"),
        ('1.5,"Mbits/sec\n', 1, 1, "comma-separated"),
        (JOINT.replace("200", "-"), 3, 5, "rtt_ms in milliseconds"),
        (JOINT.replace("20,8", "20,0"), 4, 4, "upload_mbps above 0"),
        (JOINT.replace(",200", ""), 3, 5, "column 5 (rtt_ms)"),
        (b"1\n2\n\xff\n", 3, 1, "UTF-8"),
        (gzip.compress(b"1\n2\n")[:-4], 1, 1, "a whole gzip file"),
    ],
)
def test_bad_files_are_refused_by_place(
    write: WriteFile, content: str | bytes, line: int, column: int, expected: str
) -> None:
    """The error has path, line, column and what was expected, in its fields and in its text."""
    path = write(content)
    with pytest.raises(BadTrace) as caught:
        read(path)
    error = caught.value
    assert (error.path, error.line, error.column) == (path, line, column)
    assert expected in error.expected
    assert f"{path}, line {line}, column {column}: expected {error.expected}" in str(error)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("/nonexistent/trace", "cannot read"),
        ("csv:", "path"),
        ("{}?speed=3", "knows the options from, not speed"),
        ("csv:{}?every=3s", "not every"),
        ("{}?from=3", "not a duration"),
        ("{}?from=3s&from=4s", "once each"),
        ("{}?loud", "option=value"),
        ("joint:{}?every=0s", "above 0"),
    ],
)
def test_bad_requests_are_refused(write: WriteFile, text: str, word: str) -> None:
    """A missing file or an option that is none is refused before anything is read into a link."""
    with pytest.raises(BadConfig, match=word):
        read(text.format(write("1\n2\n")))


def test_a_said_format_is_not_guessed(write: WriteFile) -> None:
    """Said to be of one format, a file of another is refused, and a colon in a path is no format."""
    with pytest.raises(BadTrace, match="two fields"):
        read(f"seconds:{write('1' + chr(10) + '2')}")
    with pytest.raises(BadTrace, match="a header with one each of"):
        read(f"joint:{write('1,2,3')}")
    assert read(write("1\n2\n", "odd:name?from=x")).format == "mahimahi"
