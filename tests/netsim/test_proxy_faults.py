"""Each kind of fault on real loopback sockets: what passes, what does not, and how both ends see it end."""

from __future__ import annotations

import asyncio
import socket

import pytest

from outrider.netsim.faults import Blackhole, Cut, HalfOpen, Outage, Refuse, Reset, Schedule
from outrider.netsim.pipe import CutThen
from outrider.netsim.proxy import Proxy
from outrider.netsim.settings import Direction
from tests.netsim.rig import EchoServer, client, echo, ending, rest, rig, until


def test_an_outage_holds_and_resumes() -> None:
    """Nothing passes while it is on, both sockets stay up, and afterwards the same connection goes on intact."""

    async def run() -> None:
        async with rig() as (server, proxy), client(proxy) as pair:
            assert await echo(pair, b"before") == b"before"
            key = proxy.trigger(Outage())
            pair[1].write(b"during")
            await until(lambda: proxy.stats.held_up == 6)
            await asyncio.sleep(0.05)
            assert bytes(server.received[0]) == b"before"
            assert [f["fault"] for f in proxy.open_faults] == ["outage"]
            proxy.end(key)
            assert await pair[0].readexactly(6) == b"during"
            assert (proxy.stats.connections, proxy.stats.resets) == (1, 0)

    asyncio.run(run())


def test_a_connection_made_in_an_outage_works_after_it() -> None:
    """The handshake hangs with the link: the upstream hears of the client only when the link is back."""

    async def run() -> None:
        async with rig() as (server, proxy):
            key = proxy.trigger(Outage())
            async with client(proxy) as pair:
                pair[1].write(b"hello")
                await asyncio.sleep(0.05)
                assert server.received == []
                proxy.end(key)
                assert await pair[0].readexactly(5) == b"hello"

    asyncio.run(run())


def test_a_blackhole_swallows_and_ends_in_a_reset() -> None:
    """Both sockets stay up with nothing passing, closes included, until the end resets both; new ones then work."""

    async def run() -> None:
        async with rig() as (server, proxy), client(proxy) as pair, client(proxy) as closing:
            assert await echo(pair, b"before") == b"before"
            assert await echo(closing, b"before") == b"before"
            key = proxy.trigger(Blackhole())
            pair[1].write(b"lost")
            closing[1].write_eof()
            await until(lambda: proxy.stats.swallowed_up == 4)
            await asyncio.sleep(0.05)
            assert (server.ended, proxy.stats.open) == (["", ""], 2)
            proxy.end(key)
            assert [await ending(pair[0]), await ending(closing[0])] == ["reset", "reset"]
            await until(lambda: server.ended == ["reset", "reset"])
            assert [bytes(r) for r in server.received] == [b"before", b"before"]
            async with client(proxy) as again:
                assert await echo(again, b"after") == b"after"

    asyncio.run(run())


def test_a_blackhole_takes_new_connections_too() -> None:
    """A connection made during a blackhole reaches nobody and is reset at its end."""

    async def run() -> None:
        async with rig() as (server, proxy):
            key = proxy.trigger(Blackhole("up"))
            async with client(proxy) as pair:
                await until(lambda: proxy.stats.connections == 1)
                proxy.end(key)
                assert await ending(pair[0]) == "reset"
            assert server.received == []

    asyncio.run(run())


@pytest.mark.parametrize("direction", ["up", "down", None])
def test_half_open_keeps_both_sockets_until_its_end(direction: Direction | None) -> None:
    """Present connections forward nothing in the direction and stay up; new ones work; the end resets the old."""

    async def run() -> None:
        async with rig() as (server, proxy), client(proxy) as pair:
            assert await echo(pair, b"before") == b"before"
            key = proxy.trigger(HalfOpen(direction))
            pair[1].write(b"more")
            async with client(proxy) as fresh:
                assert await echo(fresh, b"new") == b"new"
            stuck = "held_down" if direction == "down" else "held_up"
            await until(lambda: getattr(proxy.stats, stuck) == 4)
            got = b"beforemore" if direction == "down" else b"before"
            assert (bytes(server.received[0]), server.ended[0]) == (got, "")
            proxy.end(key)
            assert await ending(pair[0]) == "reset"
            await until(lambda: server.ended[0] == "reset")

    asyncio.run(run())


def test_a_reset_tears_down_everything_at_once() -> None:
    """Both ends of every connection see a reset; a new connection works."""

    async def run() -> None:
        async with rig() as (server, proxy), client(proxy) as one, client(proxy) as two:
            await echo(one, b"1")
            await echo(two, b"2")
            proxy.trigger(Reset())
            assert [await ending(one[0]), await ending(two[0])] == ["reset", "reset"]
            await until(lambda: server.ended == ["reset", "reset"])
            async with client(proxy) as three:
                assert await echo(three, b"3") == b"3"
            assert proxy.stats.resets == 2

    asyncio.run(run())


def test_a_reset_does_not_wait_for_a_slow_reader() -> None:
    """With megabytes stuck on their way to a client that reads nothing, a reset still reaches both ends."""

    async def run() -> None:
        async with rig() as (server, proxy):
            loop = asyncio.get_running_loop()
            with socket.socket() as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, proxy.host_port)
                sending = loop.create_task(loop.sock_sendall(sock, bytes(30_000_000)))
                await until(lambda: proxy.stats.held_down > 1_000_000)
                proxy.trigger(Reset())
                with pytest.raises(ConnectionError):
                    await sending
                await until(lambda: server.ended == ["reset"])

    asyncio.run(run())


def test_refusing_spares_present_connections_and_keeps_the_port() -> None:
    """New connections are refused, present ones go on, and afterwards the same port listens again."""

    async def run() -> None:
        async with rig() as (_, proxy), client(proxy) as pair:
            await echo(pair, b"1")
            key = proxy.trigger(Refuse())
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*proxy.host_port)
            assert await echo(pair, b"2") == b"2"
            proxy.end(key)
            while True:
                try:
                    async with client(proxy) as again:
                        assert await echo(again, b"3") == b"3"
                    break
                except ConnectionRefusedError:
                    await asyncio.sleep(0.005)

    asyncio.run(run())


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("then", ["hold", "reset"])
def test_a_cut_at_every_byte(direction: Direction, then: CutThen) -> None:
    """For every offset of a message exactly so many bytes arrive; then both ends are reset, for a hold at its end."""
    message = b"0123456789abcdef"

    async def at(server: EchoServer, proxy: Proxy, nbytes: int) -> None:
        number, before = len(server.received), getattr(proxy.stats, "bytes_" + direction)
        async with client(proxy) as pair:
            key = proxy.trigger(Cut(direction, nbytes, then))
            pair[1].write(message)
            if then == "hold":
                await until(lambda: getattr(proxy.stats, "bytes_" + direction) - before == nbytes)
                await until(lambda: getattr(proxy.stats, "held_" + direction) == len(message) - nbytes)
                assert proxy.stats.open == 1
                proxy.end(key)
            got, end = await rest(pair[0])
            await until(lambda: len(server.ended) > number and server.ended[number] != "")
        assert (end, server.ended[number], proxy.stats.open) == ("reset", "reset", 0)
        assert getattr(proxy.stats, "bytes_" + direction) - before == nbytes
        if direction == "down":
            assert (got, bytes(server.received[number])) == (message[:nbytes], message)
        else:
            assert message[:nbytes].startswith(got) and bytes(server.received[number]) == message[:nbytes]

    async def run() -> None:
        async with rig() as (server, proxy):
            for nbytes in range(len(message) + 1):
                await at(server, proxy, nbytes)

    asyncio.run(run())


def test_scripted_faults_strike_by_time_and_by_token() -> None:
    """A schedule in the proxy begins at its time and at its token, and the log tells both."""

    async def run() -> None:
        script = Schedule().at(0.01, Outage("up"), 0.01).at_token(3, Reset())
        async with rig(faults=script) as (_, proxy), client(proxy) as pair:
            assert await echo(pair, b"x") == b"x"
            await until(lambda: "fault-end" in proxy.state.events())
            proxy.on_token(2)
            assert await echo(pair, b"y") == b"y"
            proxy.on_token(3)
            assert await ending(pair[0]) == "reset"
            begun = [r["fault"] for r in proxy.state.records if r["event"] == "fault-begin"]
            assert begun == ["outage", "reset"]

    asyncio.run(run())
