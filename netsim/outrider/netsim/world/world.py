"""Runs one schedule: devices, replicas and the net on virtual time, and the checker over what happened."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

from outrider.client.conn import Conn
from outrider.client.machine import SessionMachine
from outrider.cloud.table import SessionTable
from outrider.netsim.world.checker import Checker, Violation
from outrider.netsim.world.device import Device
from outrider.netsim.world.history import History
from outrider.netsim.world.kernel import Kernel
from outrider.netsim.world.net import Net
from outrider.netsim.world.schedule import Fault, Schedule
from outrider.netsim.world.server import Replica
from outrider.netsim.world.toy import ToyTarget

PATIENCE_S = 150.0
"""How long after the last fault every turn must have ended."""
MOST_STEPS = 60_000


@dataclass(frozen=True, slots=True)
class Build:
    """The cores under test; mutants replace one of them."""

    machine: type[SessionMachine] = SessionMachine
    table: type[SessionTable] = SessionTable


@dataclass(slots=True)
class Result:
    """What came of one schedule."""

    schedule: Schedule
    violations: list[Violation]
    history: History
    seconds: float
    steps: int
    figures: dict[str, int] = field(default_factory=dict)


class World:
    """One run."""

    def __init__(self, schedule: Schedule, build: Build) -> None:
        self.schedule = schedule
        self.kernel = Kernel()
        self.history = History()
        rng = random.Random(f"outrider-run-{schedule.seed}")
        self.rng = rng
        target = ToyTarget(schedule.seed)
        self.target = target
        net_rng = random.Random(rng.randrange(2**32))
        self.net = Net(
            self.kernel,
            net_rng,
            schedule.latency_s,
            schedule.jitter_s,
            schedule.duplicate_rate,
            schedule.over_wire,
        )
        self.replicas = [
            Replica(n, schedule, self.kernel, self.net, self.history, build.table, target)
            for n in range(schedule.replicas)
        ]
        machine = _watched(build.machine, self)
        self.devices = [
            Device(
                n,
                plan,
                self.kernel,
                self.net,
                self.history,
                machine,
                target,
                self.replicas,
                random.Random(rng.randrange(2**32)),
                self.replicas[0].table.served.limits,
            )
            for n, plan in enumerate(schedule.devices)
        ]
        for number, fault in enumerate(schedule.faults):
            self.kernel.at(fault.at, partial(self._strike, number, fault))

    def run(self) -> Result:
        """Run to the end of all turns, or until patience is out."""
        last = max((fault.at + fault.duration for fault in self.schedule.faults), default=0.0)
        thinking = sum(turn.think_s for plan in self.schedule.devices for turn in plan.turns)
        try:
            finished = self.kernel.run(last + thinking + PATIENCE_S, self._all_done, MOST_STEPS)
        except Exception as error:  # whatever a core raises is a finding, not a crash of the simulator
            self.history.add(self.kernel.now, "world", "raised", error=f"{type(error).__name__}: {error}")
            finished = True
        if not finished:
            waiting = [device.name for device in self.devices if not device.done]
            why = f"not finished after {self.kernel.now:.1f} s and {self.kernel.steps} steps: {waiting}"
            self.history.add(self.kernel.now, "world", "hang", why=why)
        violations = Checker(self.schedule, self.target).check(self.history)
        return Result(
            self.schedule, violations, self.history, self.kernel.now, self.kernel.steps, self._figures()
        )

    def _all_done(self) -> bool:
        return all(device.done for device in self.devices)

    def _figures(self) -> dict[str, int]:
        counts = {"dials": 0, "tokens": 0, "provisional": 0, "revised": 0}
        for entry in self.history.entries:
            if entry.what == "dial":
                counts["dials"] += 1
            elif entry.what == "emit":
                counts["tokens"] += len(entry.data["ids"])
                counts["provisional"] += sum(label == "provisional" for label in entry.data["labels"])
            elif entry.what == "revise":
                counts["revised"] += entry.data["removed"]
        counts["shared_passes"] = sum(r.shared_passes + r.engine.shared_passes for r in self.replicas)
        return counts

    # ------------------------------------------------------------------------------------------------------ faults

    def _strike(self, number: int, fault: Fault) -> None:
        device = self.devices[fault.device % len(self.devices)]
        replica = self.replicas[fault.replica % len(self.replicas)]
        self.history.add(self.kernel.now, "world", "fault", number=number, fault=fault)
        now, until = self.kernel.now, self.kernel.now + fault.duration
        match fault.kind:
            case "cut":
                self._cut(device, 0.0, self.schedule.latency_s)
            case "half_open":
                late = self.rng.choice((0.5, 8.0, 60.0))
                self._cut(device, *((0.0, late) if self.rng.random() < 0.5 else (late, 0.0)))
            case "hold":
                device.link.held_until = max(device.link.held_until, until)
            case "swallow":
                device.link.swallowed_until = max(device.link.swallowed_until, until)
                self.kernel.at(until, partial(self._cut, device, 0.0, 0.0))
            case "spike":
                device.link.spike_until, device.link.spike_s = until, self.rng.choice((0.2, 1.0, 3.0))
            case "crash_device":
                device.crash(fault.duration)
            case "crash_server":
                replica.crash(fault.duration)
            case "switch":
                device.prefer = (device.prefer + 1) % len(self.replicas)
                self._cut(device, 0.0, self.schedule.latency_s)
            case "evict":
                replica.evict()
            case "drain":
                replica.drain(fault.duration)
            case "stall_server":
                replica.stalled_until = max(replica.stalled_until, until)
            case "pause_device":
                device.paused_until = max(device.paused_until, until)
            case "engine_failure":
                replica.engine.fail_next = self.rng.choice(("error", "no_room"))
            case "stop":
                device.stop("stop")
            case "user_stop":
                device.stop("cancelled")
            case "interrupt":
                device.interrupt()
            case "network_up":
                device.network_up()
            case _:
                raise ValueError(f"unknown fault {fault.kind!r} at {now}")

    def _cut(self, device: Device, device_notice_s: float, server_notice_s: float) -> None:
        for stream in list(device.streams.values()):
            if stream.device_alive or stream.server_alive:
                self.net.cut(stream, device_notice_s, server_notice_s)


def _watched(machine: type[SessionMachine], world: World) -> type[SessionMachine]:
    """The machine class, telling the history whenever it accuses a verifier."""

    class Watched(machine):  # type: ignore[misc, valid-type]
        def violation(self, conn: Conn, why: str) -> None:
            world.history.add(world.kernel.now, "world", "accused", why=why)
            super().violation(conn, why)

    return Watched


def run(schedule: Schedule, build: Build | None = None) -> Result:
    """Run one schedule."""
    return World(schedule, build or Build()).run()
