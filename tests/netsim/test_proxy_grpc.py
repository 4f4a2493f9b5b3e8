"""A real gRPC stream through the proxy: HTTP/2 is never corrupted, and an outage is survived."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Iterator
from concurrent import futures

import grpc

from outrider.netsim.faults import Outage, Reset
from outrider.netsim.settings import LinkSettings
from outrider.netsim.threaded import ThreadedProxy

METHOD = "/test.Echo/Stream"
PATIENCE_S = 60


def _echo(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    yield from requests


@contextlib.contextmanager
def echo_server() -> Iterator[int]:
    """A server with one bidirectional method over raw bytes; yields its port."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(_echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


class Stream:
    """One open call: send a message, get the next answer."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
        requests = iter(self._requests.get, None)
        self._answers = call(requests, timeout=PATIENCE_S, wait_for_ready=True)

    def send(self, message: bytes) -> None:
        self._requests.put(message)

    def get(self) -> bytes:
        return bytes(next(self._answers))

    def close(self) -> None:
        self._requests.put(None)


@contextlib.contextmanager
def rig(link: LinkSettings, seed: int = 0) -> Iterator[tuple[ThreadedProxy, grpc.Channel]]:
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.use_local_subchannel_pool", 1)]
    with echo_server() as port, ThreadedProxy(("127.0.0.1", port), link=link, seed=seed) as proxy:
        with grpc.insecure_channel(proxy.address, options=options) as channel:
            yield proxy, channel


def test_a_stream_survives_an_outage() -> None:
    """Messages sent before, during and after an outage come back intact and in order on the same stream."""
    with rig(LinkSettings.of(rtt_ms=10, jitter_ms=3, up_mbit=20, down_mbit=20)) as (proxy, channel):
        stream = Stream(channel)
        messages = [bytes([i]) * (i * 37 + 1) for i in range(60)]
        for message in messages[:20]:
            stream.send(message)
            assert stream.get() == message
        key = proxy.trigger(Outage())
        for message in messages[20:40]:
            stream.send(message)
        while proxy.stats.held_up == 0:
            pass
        proxy.end(key)
        for message in messages[40:]:
            stream.send(message)
        assert [stream.get() for _ in range(40)] == messages[20:]
        stream.close()
        assert (proxy.stats.connections, proxy.stats.resets) == (1, 0)


def test_a_reset_ends_the_stream_and_the_channel_connects_again() -> None:
    """A reset surfaces as UNAVAILABLE; the same channel then carries a new stream over a new connection."""
    with rig(LinkSettings.of(rtt_ms=4)) as (proxy, channel):
        stream = Stream(channel)
        stream.send(b"one")
        assert stream.get() == b"one"
        proxy.trigger(Reset())
        try:
            stream.get()
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
        stream.close()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert echoed_again(channel, b"two")
        assert proxy.stats.connections == 2


def echoed_again(channel: grpc.Channel, message: bytes) -> bool:
    """A new stream on the channel, which may not have noticed yet that its old connection is gone."""
    for _ in range(50):
        stream = Stream(channel)
        try:
            stream.send(message)
            return stream.get() == message
        except grpc.RpcError:
            time.sleep(0.05)
        finally:
            stream.close()
    return False


def test_many_messages_and_a_large_one_pass_a_poor_link() -> None:
    """Thousands of small messages and one of a megabyte cross a jittery, rated, lossy link unchanged."""
    link = LinkSettings.of(rtt_ms=6, jitter_ms=3, up_mbit=60, down_mbit=60, loss=0.001, burst=2)
    with rig(link, seed=4) as (_, channel):
        stream = Stream(channel)
        small = [i.to_bytes(4, "big") for i in range(3000)]
        large = bytes(range(256)) * 4096
        for message in [*small, large]:
            stream.send(message)
        assert [stream.get() for _ in small] == small
        assert stream.get() == large
        stream.close()
