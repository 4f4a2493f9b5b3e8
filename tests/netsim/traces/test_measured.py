"""Real traces, every file of every kind: read, summed, and compared with an independent count."""

from __future__ import annotations

import csv
import gzip
import statistics
from collections import Counter
from pathlib import Path

import pytest

from outrider.netsim.link import Link
from outrider.netsim.profiles import profile
from outrider.netsim.traces import Trace, read

pytestmark = pytest.mark.data
MBIT = 125_000


@pytest.fixture
def folder(shared_data: Path) -> Path:
    return shared_data / "traces"


def data_files(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    assert found, f"no {pattern} in {folder}"
    return found


def lines(path: Path) -> list[str]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    return [line for line in text.splitlines() if line.strip()]


def mbit_by_second(trace: Trace, count: int) -> list[float]:
    assert trace.down is not None
    return [trace.down.between(second, second + 1) / MBIT for second in range(count)]


def test_mahimahi(folder: Path) -> None:
    """Every second's bytes are 1,500 a line stamped in it (0 is the end's), and the long gap of a drive is one."""
    for path in data_files(folder, "mahimahi/*.gz"):
        trace = read(str(path))
        stamps = [int(line) for line in lines(path)]
        assert trace.format == "mahimahi" and trace.down is not None
        assert trace.down.period_s == stamps[-1] / 1000
        assert trace.down.bytes_per_period == 1500 * len(stamps)
        counts = Counter(((stamp or stamps[-1]) - 1) // 1000 for stamp in stamps)
        seconds = stamps[-1] // 1000
        got = mbit_by_second(trace, seconds)
        assert got == pytest.approx([counts[s] * 1500 / MBIT for s in range(seconds)], abs=1e-6)
        widest, begin = max((b - a, a) for a, b in zip(stamps, stamps[1:], strict=False))
        stuck = trace.down.departure(begin / 1000, 1)
        assert stuck - begin / 1000 == pytest.approx((widest - 1) / 1000, abs=1e-3)
        if path.name == "ATT-LTE-driving.up.gz":
            assert 77 < widest / 1000 < 79


def test_one_value_a_second(folder: Path) -> None:
    """New York's files: every line one second, in its own unit; the share of time out is the published one."""
    for path in data_files(folder, "nyu-mets/*.csv"):
        scale = {"Mbits/sec": 1.0, "Kbits/sec": 1e-3, "bits/sec": 1e-6}
        rows = [line.split(",") for line in lines(path)]
        expected = [float(value) * scale[unit] for value, unit in rows]
        trace = read(str(path))
        assert trace.format == "csv"
        assert mbit_by_second(trace, len(rows)) == pytest.approx(expected, abs=1e-6)
    out = {}
    for name in ("7Train1.csv", "QTrain.csv", "Long_Island_Rail_Road.csv", "multivariate-subway7.txt.gz"):
        trace = read(str(folder / "nyu-mets" / name))
        assert trace.down is not None
        rates = [trace.down.bytes_per_s(s + 0.5) / MBIT for s in range(round(trace.down.period_s))]
        out[name] = sum(rate < 0.1 for rate in rates) / len(rates)
    assert list(out.values()) == pytest.approx([0.010, 0.057, 0.103, 0.285], abs=0.002)


def test_columns_by_name(folder: Path) -> None:
    """Ireland's files: both columns in kbit/s, as long as the clock says, the mean near the mean of the rows."""
    for path in data_files(folder, "ucc-5g/*.gz"):
        trace = read(str(path))
        rows = list(csv.DictReader(lines(path)))
        assert trace.format == "csv" and trace.down is not None and trace.up is not None
        assert trace.down.period_s == trace.up.period_s == pytest.approx(len(rows), rel=0.15)
        for capacity, column in ((trace.down, "DL_bitrate"), (trace.up, "UL_bitrate")):
            plain = statistics.mean(float(row[column]) / 1000 for row in rows)
            assert capacity.mean_mbit == pytest.approx(plain, rel=0.15)


def test_joint_samples(folder: Path) -> None:
    """Norway and Sweden: every row once, three values of one row at any time, medians as published."""
    path = folder / "errant" / "speed_test_sample.csv"
    rows = list(csv.DictReader(lines(path)))
    trace = read(f"{path}?every=5s", seed=7)
    down, up, rtt = trace.down, trace.up, trace.rtt_ms
    assert trace.joint and down is not None and up is not None and rtt is not None
    found = []
    for i in range(len(rows)):
        time = 5 * i + 2.5
        found.append((rtt.at(time), down.bytes_per_s(time) / MBIT, up.bytes_per_s(time) / MBIT))
    wanted = [tuple(float(row[c]) for c in ("rtt_ms", "download_mbps", "upload_mbps")) for row in rows]
    for one, other in zip(sorted(found), sorted(wanted), strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    lte = read(f"{path}?access_technology=4G")
    assert lte.rtt_ms is not None and lte.rtt_ms.median == pytest.approx(85, abs=1)


def test_seconds(folder: Path) -> None:
    """Oslo's files: each value holds until the next line."""
    for path in data_files(folder, "hsdpa/cooked_3gp/*"):
        pairs = [tuple(map(float, line.split())) for line in lines(path)]
        trace = read(str(path))
        assert trace.format == "seconds" and trace.down is not None
        for (time, value), (after, _) in zip(pairs, pairs[1:], strict=False):
            middle = (time + after) / 2 - pairs[0][0]
            assert trace.down.bytes_per_s(middle) / MBIT == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    "name",
    ["mahimahi/ATT-LTE-driving-2016.down.gz", "nyu-mets/QTrain.csv", "errant/speed_test_sample.csv",
     "hsdpa/cooked_3gp/norway_train_1", "ucc-5g/driving-B_2019.12.14_10.16.30.csv.gz"],
)  # fmt: skip
def test_a_link_follows_it(folder: Path, name: str) -> None:
    """A link that asks for more than there is gets what the trace has, and keeps order, in every format."""
    trace = read(str(folder / name), seed=1)
    lane = Link(profile("4g-medium").link.override(loss=0).following(trace), 1).lanes()["down"]
    assert trace.down is not None
    now, sent = 0.0, 0
    while now < 60:
        now = lane.room_at(now, 6000)
        lane.admit(now, 6000)
        sent += 6000
    assert sent - lane.backlog_bytes(now) == pytest.approx(trace.down.between(0, now), rel=1e-6, abs=1)
