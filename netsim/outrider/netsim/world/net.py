"""Streams between devices and replicas: ordered within a stream, free between streams, and cut anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from outrider.netsim.world.kernel import Kernel
from outrider.shared.errors import LinkDown, OutriderError
from outrider.shared.frames import Commit, DownFrame, DraftFrame, Opened, Ping, Rows, Steer, TurnEnd, UpFrame
from outrider.shared.wire import UpChecks, down_from_wire, down_to_wire, up_from_wire, up_to_wire
from outrider.v1 import verifier_pb2 as pb

REPEATABLE = (DraftFrame, Steer, Ping, Commit, TurnEnd, Rows)
"""Frames that may arrive twice without harm, by the protocol's second rule."""


class DeviceEnd(Protocol):
    """What a stream tells its device."""

    def connected(self, stream: Stream) -> None:
        """The stream is open."""

    def received(self, stream: Stream, frame: DownFrame) -> None:
        """A frame has come."""

    def closed(self, stream: Stream, error: OutriderError | None) -> None:
        """The stream has ended."""


class ServerEnd(Protocol):
    """What a stream tells its replica."""

    def received_up(self, stream: Stream, frame: UpFrame) -> None:
        """A frame has come."""

    def lost(self, stream: Stream) -> None:
        """The stream has ended."""

    def up_checks(self, stream: Stream) -> UpChecks:
        """What the edge checks frames against."""
        ...


@dataclass(slots=True)
class Link:
    """The state of one device's radio: until when bytes are held or swallowed, and how much later they come."""

    held_until: float = 0.0
    swallowed_until: float = 0.0
    spike_until: float = 0.0
    spike_s: float = 0.0


@dataclass(slots=True, eq=False)
class Stream:
    """One Decode call of one device to one replica."""

    number: int
    device: DeviceEnd
    server: ServerEnd
    link: Link
    conn: int = 0
    epoch: int = 0
    up_at: float = 0.0
    down_at: float = 0.0
    device_alive: bool = True
    server_alive: bool = True
    opened: bool = False
    bulk_sent: int = 0
    granted: Opened | None = None


class Net:
    """Delivers frames with latency, jitter, holds, losses by cut, and repeats of what may be repeated."""

    def __init__(
        self,
        kernel: Kernel,
        rng: random.Random,
        latency_s: float,
        jitter_s: float,
        repeats: float,
        over_wire: bool,
    ) -> None:
        self.kernel = kernel
        self.rng = rng
        self.latency_s = latency_s
        self.jitter_s = jitter_s
        self.repeats = repeats
        self.over_wire = over_wire
        self.streams: list[Stream] = []

    def open(self, device: DeviceEnd, server: ServerEnd, link: Link, reachable: Callable[[], bool]) -> Stream:
        """Start a connection; it is up after a round trip if the replica is there then."""
        stream = Stream(len(self.streams) + 1, device, server, link)
        self.streams.append(stream)

        def arrive() -> None:
            if not stream.device_alive or self.kernel.now < link.swallowed_until:
                return  # nobody answers; the device's own patience ends it
            if reachable():
                stream.opened = True
                device.connected(stream)
            else:
                self._close_device(stream, LinkDown("refused"))

        self.kernel.at(self._arrival(link, self.kernel.now + self.latency_s), arrive)
        return stream

    def up(self, stream: Stream, frame: UpFrame) -> None:
        """Device to replica."""
        if not stream.device_alive:
            return
        if self.over_wire:
            frame = up_from_wire(
                pb.DecodeRequest.FromString(up_to_wire(frame).SerializeToString()),
                stream.server.up_checks(stream),
            )
        if self.kernel.now < stream.link.swallowed_until:
            return
        stream.up_at = max(stream.up_at, self._arrival(stream.link, self.kernel.now))
        for _ in range(self._copies(frame)):
            self.kernel.at(stream.up_at, lambda: self._deliver_up(stream, frame))

    def down(self, stream: Stream, frame: DownFrame) -> None:
        """Replica to device."""
        if not stream.server_alive:
            return
        if self.over_wire:
            frame = down_from_wire(pb.DecodeResponse.FromString(down_to_wire(frame).SerializeToString()))
        if self.kernel.now < stream.link.swallowed_until:
            return
        stream.down_at = max(stream.down_at, self._arrival(stream.link, self.kernel.now))
        for _ in range(self._copies(frame)):
            self.kernel.at(stream.down_at, lambda: self._deliver_down(stream, frame))

    def end_by_server(self, stream: Stream, error: OutriderError | None) -> None:
        """The replica ends the stream after what it has written."""
        if stream.server_alive:
            stream.server_alive = False
            stream.down_at = max(stream.down_at, self._arrival(stream.link, self.kernel.now))
            self.kernel.at(stream.down_at, lambda: self._close_device(stream, error))

    def hang_up(self, stream: Stream, cancel: bool) -> None:
        """The device leaves: at once, or after what it has written."""
        if not stream.device_alive:
            return
        stream.device_alive = False
        at = self._arrival(stream.link, self.kernel.now)
        self.kernel.at(at if cancel else max(at, stream.up_at), lambda: self._lose_server(stream))

    def cut(self, stream: Stream, device_notice_s: float, server_notice_s: float) -> None:
        """Reset: what is under way is gone; each end notices after its own delay."""
        device_knew, server_knew = stream.device_alive, stream.server_alive
        stream.link = Link(swallowed_until=float("inf"))
        stream.up_at = stream.down_at = float("inf")
        if device_knew:
            self.kernel.after(device_notice_s, lambda: self._close_device(stream, LinkDown("reset")))
        if server_knew:
            self.kernel.after(server_notice_s, lambda: self._lose_server(stream))

    def _deliver_up(self, stream: Stream, frame: UpFrame) -> None:
        if stream.server_alive and stream.up_at != float("inf"):
            stream.server.received_up(stream, frame)

    def _deliver_down(self, stream: Stream, frame: DownFrame) -> None:
        if stream.device_alive and stream.down_at != float("inf"):
            stream.device.received(stream, frame)

    def _close_device(self, stream: Stream, error: OutriderError | None) -> None:
        if stream.device_alive:
            stream.device_alive = False
            stream.device.closed(stream, error)
            self._lose_server(stream)

    def _lose_server(self, stream: Stream) -> None:
        if stream.server_alive:
            stream.server_alive = False
            stream.server.lost(stream)

    def _arrival(self, link: Link, start: float) -> float:
        at = max(start, link.held_until) + self.latency_s + self.rng.random() * self.jitter_s
        return at + (link.spike_s if start < link.spike_until else 0.0)

    def _copies(self, frame: UpFrame | DownFrame) -> int:
        repeat = self.repeats and isinstance(frame, REPEATABLE) and self.rng.random() < self.repeats
        return 2 if repeat and not (isinstance(frame, Rows) and frame.bulk) else 1
