"""Does the proxy give what is asked of it? `python benchmarks/proxy.py [--json]`

Asks for one-way delays of 10, 25 and 60 ms and rates of 1, 10 and 50 Mbit/s, up and down, and prints what was measured
beside it, and follows a trace with a gap. Goal: within 5 % or 2 ms of the delay, within 5 % of the rate and of the gap;
0.2 ms or less for a round trip through a link without delay. Both ends share one clock, so one-way times are true ones.
About 40 s.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import ending
from machine import machine

from outrider.netsim.settings import LinkSettings
from outrider.netsim.threaded import ThreadedProxy
from outrider.netsim.traces import Capacity, Trace

DELAYS_MS = (10.0, 25.0, 60.0)
RATES_MBIT = (1.0, 10.0, 50.0)
PROBES = 60
OVERHEAD_PROBES = 3000
TRANSFER_S = 3.0
GAP_S = 0.5
TRACE = Capacity.steps([(0.5, 8), (GAP_S, 0), (0.5, 2)])
TRACE_PERIODS = 2
STAMP = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: asked, measured, and whether it is within the goal."""

    what: str
    direction: str
    unit: str
    asked: float
    measured: float
    p99: float | None
    within_goal: bool


@contextmanager
def pair(link: LinkSettings, *, direct: bool = False) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets, device and cloud, with the proxy between them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if direct:
            device = socket.create_connection(server.getsockname())
            yield from _with_nodelay(device, server.accept()[0])
        else:
            with ThreadedProxy(server.getsockname(), link=link) as proxy:
                device = socket.create_connection(proxy.host_port)
                yield from _with_nodelay(device, server.accept()[0])


def _with_nodelay(
    device: socket.socket, cloud: socket.socket
) -> Iterator[tuple[socket.socket, socket.socket]]:
    with device, cloud:
        for sock in (device, cloud):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield device, cloud


def ends(direction: str, device: socket.socket, cloud: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Sender and receiver of a direction."""
    return (device, cloud) if direction == "up" else (cloud, device)


def one_way_ms(link: LinkSettings, direction: str) -> list[float]:
    """Milliseconds from send to receipt of small messages, one at a time."""
    times = []
    with pair(link) as (device, cloud):
        sender, receiver = ends(direction, device, cloud)
        for _ in range(PROBES + 1):  # the first also waits for the handshake
            sender.sendall(STAMP.pack(time.perf_counter()))
            (sent,) = STAMP.unpack(receiver.recv(STAMP.size, socket.MSG_WAITALL))
            times.append((time.perf_counter() - sent) * 1000)
            time.sleep(0.003)
    return times[1:]


def rate_mbit(link: LinkSettings, direction: str, mbit: float) -> float:
    """Goodput of a transfer that takes a few seconds at the asked rate, without its first piece."""
    total = int(mbit * 1e6 / 8 * TRANSFER_S)
    with pair(link) as (device, cloud):
        sender, receiver = ends(direction, device, cloud)
        thread = threading.Thread(target=sender.sendall, args=(bytes(total),))
        thread.start()
        got = first = len(receiver.recv(65536))
        start = time.perf_counter()
        while got < total:
            got += len(receiver.recv(65536))
        elapsed = time.perf_counter() - start
        thread.join()
    return (total - first) * 8 / 1e6 / elapsed


def trace_mbit_and_gap_s(direction: str) -> tuple[float, float]:
    """Goodput over whole periods of the trace, whatever its phase at the start, and the longest silence in it."""
    trace = Trace(source="benchmark", format="seconds", down=TRACE, up=TRACE)
    total = int(TRACE.bytes_per_period * TRACE_PERIODS)
    with pair(LinkSettings.of(rtt_ms=20).following(trace, trace)) as (device, cloud):
        sender, receiver = ends(direction, device, cloud)
        thread = threading.Thread(target=sender.sendall, args=(bytes(total + 65536),))
        thread.start()
        receiver.recv(65536)
        start = last = time.perf_counter()
        gap, got = 0.0, 0
        while got < total:
            got += len(receiver.recv(4096))
            now = time.perf_counter()
            gap, last = max(gap, now - last), now
        thread.join()
    return got * 8 / 1e6 / (last - start), gap


def round_trips_ms(*, direct: bool) -> list[float]:
    """Round trips of 100 bytes over loopback, with a free link's proxy between or without."""
    times = []
    with pair(LinkSettings(), direct=direct) as (device, cloud):

        def echo() -> None:
            while data := cloud.recv(4096):
                cloud.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        for _ in range(OVERHEAD_PROBES):
            start = time.perf_counter()
            device.sendall(bytes(100))
            device.recv(100, socket.MSG_WAITALL)
            times.append((time.perf_counter() - start) * 1000)
        device.shutdown(socket.SHUT_WR)
        thread.join()
    return times


def p99(values: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(values, n=100)[98]


def rows() -> Iterator[Row]:
    """Every figure, as it is measured."""
    direct, proxied = round_trips_ms(direct=True), round_trips_ms(direct=False)
    added = statistics.median(proxied) - statistics.median(direct)
    yield Row("overhead", "both", "ms", 0.0, added, p99(proxied), added <= 0.2)
    for delay in DELAYS_MS:
        for direction in ("up", "down"):
            times = one_way_ms(LinkSettings.of(rtt_ms=2 * delay), direction)
            median = statistics.median(times)
            good = abs(median - delay) <= max(2.0, 0.05 * delay)
            yield Row("delay", direction, "ms", delay, median, p99(times), good)
    for rate in RATES_MBIT:
        for direction in ("up", "down"):
            link = LinkSettings.of(rtt_ms=20, up_mbit=rate, down_mbit=rate)
            got = rate_mbit(link, direction, rate)
            yield Row("rate", direction, "Mbit/s", rate, got, None, abs(got - rate) <= 0.05 * rate)
    for direction in ("up", "down"):
        got, gap = trace_mbit_and_gap_s(direction)
        mean = TRACE.mean_mbit
        yield Row("trace", direction, "Mbit/s", mean, got, None, abs(got - mean) <= 0.05 * mean)
        yield Row("gap", direction, "ms", 1000 * GAP_S, 1000 * gap, None, abs(gap - GAP_S) <= 0.05 * GAP_S)


def main() -> None:
    """Print the table; with `--json` a last line with the same figures and the machine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    arguments = parser.parse_args()
    found = []
    print(f"{'what':10}{'way':6}{'asked':>9}{'measured':>10}{'p99':>9}  unit    goal")
    for row in rows():
        found.append(row)
        tail = "" if row.p99 is None else f"{row.p99:.2f}"
        verdict = "met" if row.within_goal else "MISSED"
        print(
            f"{row.what:10}{row.direction:6}{row.asked:9.2f}{row.measured:10.3f}{tail:>9}  {row.unit:8}{verdict}",
            flush=True,
        )
    if arguments.json:
        print(json.dumps({"rows": [asdict(row) for row in found], "machine": machine(command=sys.argv)}))


if __name__ == "__main__":
    ending.run(main)
