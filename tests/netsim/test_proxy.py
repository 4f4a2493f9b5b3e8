"""The proxy over real loopback sockets: small amounts, no timed assertion; every wait has a generous bound."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Outage, Reset, Schedule
from outrider.netsim.proxy import Proxy
from outrider.netsim.settings import LaneSettings, LinkSettings
from outrider.netsim.threaded import ThreadedProxy
from tests.netsim.rig import PATIENCE_S, EchoServer, client, echo, ending, rest, rig, until


def test_bytes_pass_both_ways_and_closes_follow() -> None:
    """An echo through the proxy is intact, counted, and a half-close reaches the other end behind the bytes."""

    async def run() -> None:
        async with rig(LinkSettings.of(rtt_ms=4)) as (server, proxy), client(proxy) as pair:
            data = bytes(range(256)) * 400
            pair[1].write(data)
            pair[1].write_eof()  # the other direction goes on: the whole echo comes after this
            assert await rest(pair[0]) == (data, "end")
            await until(lambda: proxy.stats.open == 0)
            assert server.ended == ["end"]
            stats = proxy.stats
            assert (stats.bytes_up, stats.bytes_down, stats.connections, stats.resets) == (
                102_400,
                102_400,
                1,
                0,
            )

    asyncio.run(run())


def test_thousands_of_small_packets_stay_in_order() -> None:
    """Many tiny writes over a jittering, lossy, rated link come back as the same stream."""

    async def run() -> None:
        # Losses are kept out of the way of the test's duration: a lost tail costs 200 ms.
        link = LinkSettings.of(rtt_ms=4, jitter_ms=2, up_mbit=50, down_mbit=50, loss=0.0005)
        async with rig(link, seed=5) as (_, proxy), client(proxy) as (reader, writer):
            sent = b"".join(i.to_bytes(3, "big") * 7 for i in range(4000))

            async def write() -> None:
                for start in range(0, len(sent), 21):
                    writer.write(sent[start : start + 21])
                    if start % 210 == 0:
                        await writer.drain()
                        await asyncio.sleep(0)

            task = asyncio.create_task(write())
            assert await reader.readexactly(len(sent)) == sent
            await task

    asyncio.run(run())


def test_a_full_queue_stops_reading() -> None:
    """While the link stands still the proxy takes in one queue's worth and no more; afterwards everything arrives."""

    async def run() -> None:
        lane = LaneSettings(rate_mbit=80, queue_bytes=100_000)
        async with rig(LinkSettings(up=lane)) as (_, proxy), client(proxy) as (reader, writer):
            assert await echo((reader, writer), b"x") == b"x"
            key = proxy.trigger(Outage())
            sent = bytes(2_000_000)
            writer.write(sent)
            await until(lambda: proxy.stats.held_up >= 95_000)
            await asyncio.sleep(0.1)
            assert proxy.stats.held_up <= 105_000
            proxy.end(key)
            assert await reader.readexactly(len(sent)) == sent

    asyncio.run(run())


def test_an_unreachable_upstream_resets_the_client() -> None:
    """With nobody behind the proxy a client is reset, and the log says which upstream and why."""

    async def run() -> None:
        async with EchoServer() as server:
            gone = server.address
        async with asyncio.timeout(PATIENCE_S), Proxy(gone) as proxy, client(proxy) as pair:
            assert await ending(pair[0]) == "reset"
            why = [r["why"] for r in proxy.state.records if r["event"] == "unreachable"]
            assert str(gone[1]) in why[0]

    asyncio.run(run())


def test_a_client_reset_travels_to_the_server() -> None:
    """A client that dies without a close is seen by the server as a reset, not as an orderly end."""

    async def run() -> None:
        async with rig() as (server, proxy):
            reader, writer = await asyncio.open_connection(*proxy.host_port)
            await echo((reader, writer), b"x")
            writer.write(b"more")
            await until(lambda: proxy.stats.bytes_down == 5)
            writer.transport.abort()  # unread bytes make this a reset
            await until(lambda: server.ended != [""])
            await until(lambda: proxy.stats.open == 0)

    asyncio.run(run())


def test_a_taken_port_is_refused_with_its_name() -> None:
    """Listening where somebody listens already names the address and the reason."""

    async def run() -> None:
        async with EchoServer() as server:
            with pytest.raises(
                BadConfig, match=f"listen: cannot listen on 127.0.0.1:{server.address[1]}: .*in use"
            ):
                async with Proxy(server.address, listen=server.address):
                    pass

    asyncio.run(run())


def test_the_log_is_json_lines_with_both_clocks(tmp_path: Path) -> None:
    """Each line has the monotonic and the wall time, and the whole story in order."""
    path = tmp_path / "log.jsonl"

    async def run() -> None:
        with path.open("w", encoding="utf-8") as sink:
            async with EchoServer() as server, Proxy(server.address, log=sink) as proxy:
                async with client(proxy) as pair:
                    await echo(pair, b"x")
                    proxy.trigger(Reset())
            assert path.read_text(encoding="utf-8") == proxy.state.jsonl()

    asyncio.run(run())
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [r["event"] for r in records] == [
        "listening",
        "connected",
        "fault-begin",
        "reset",
        "closed",
        "stopped",
    ]
    assert all({"t", "wall"} <= set(r) for r in records)
    assert [r["t"] for r in records] == sorted(r["t"] for r in records)


def test_the_threaded_proxy_serves_synchronous_callers() -> None:
    """The same proxy from outside any event loop: faults take effect before the call returns, errors come back."""

    async def use(proxy: ThreadedProxy) -> None:
        reader, writer = await asyncio.open_connection(*proxy.host_port)
        assert await echo((reader, writer), b"x") == b"x"
        key = proxy.trigger(Outage())
        assert [f["fault"] for f in proxy.open_faults] == ["outage"]
        with pytest.raises(BadConfig):
            proxy.trigger(Reset(), for_s=1)
        proxy.end(key)
        proxy.on_token(1)
        assert await ending(reader) == "reset"
        writer.close()

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), EchoServer() as server:
            with ThreadedProxy(server.address, faults=Schedule().at_token(1, Reset())) as proxy:
                await use(proxy)
                assert proxy.stats.open == 0
            assert (proxy.stats.bytes_up, proxy.stats.connections, proxy.stats.resets) == (1, 1, 1)

    asyncio.run(run())


def test_a_threaded_proxy_that_cannot_start_says_why() -> None:
    """A taken port raises in the caller's thread and leaves no thread behind."""

    async def run() -> None:
        async with EchoServer() as server:
            with pytest.raises(BadConfig), ThreadedProxy(server.address, listen=server.address):
                pass

    asyncio.run(run())
