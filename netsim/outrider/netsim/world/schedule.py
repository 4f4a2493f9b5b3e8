"""One seed = one schedule: who talks to whom over what, what the user does, and which faults happen when."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from outrider.client.machine_settings import Offline, Reconcile
from outrider.client.plan import Plan
from outrider.shared.frames import UNLIMITED
from outrider.shared.sampling import Sampling

FAULT_KINDS = (
    "cut",
    "half_open",
    "hold",
    "swallow",
    "spike",
    "crash_device",
    "crash_server",
    "switch",
    "evict",
    "drain",
    "stall_server",
    "pause_device",
    "engine_failure",
    "stop",
    "user_stop",
    "interrupt",
    "network_up",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens at ``at`` seconds, for ``duration`` seconds where that means anything."""

    at: float
    kind: str
    device: int = 0
    replica: int = 0
    duration: float = 0.0


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What the user asks for in one turn."""

    append_ids: tuple[int, ...]
    max_new: int
    sampling: Sampling
    knows_stop_ids: bool
    back: float
    """Share of the text to take back before appending: 0 continues, 1 starts over."""
    think_s: float


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One device and its user."""

    turns: tuple[TurnPlan, ...]
    plan: Plan
    offline: Offline
    reconcile: Reconcile
    error_rate: float
    bundle_at: float | None
    """When a drafter is ready; None = never."""
    rows: bool
    node_s: float
    journal_s: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything about one run."""

    seed: int
    devices: tuple[DevicePlan, ...]
    faults: tuple[Fault, ...]
    replicas: int
    latency_s: float
    jitter_s: float
    duplicate_rate: float
    context: int
    kv_tokens: int
    prefill_chunk: int
    pass_s: float
    inline_bytes: int
    """Longest context that travels inside Open."""
    over_wire: bool
    """Whether frames go through protobuf bytes."""
    kept: tuple[int, ...] | None = field(default=None)
    """Numbers of the faults that were kept when shrinking; None = all."""

    def keep(self, numbers: tuple[int, ...]) -> Schedule:
        """The same run with only these faults."""
        return replace(self, faults=tuple(self.faults[n] for n in numbers), kept=numbers)


def make_schedule(seed: int) -> Schedule:
    """The schedule of a seed."""
    rng = random.Random(f"outrider-world-{seed}")
    devices = tuple(_device(rng) for _ in range(rng.choice((1, 1, 1, 2))))
    replicas = rng.choice((1, 1, 2))
    number = rng.choice((0, 1, 1, 2, 2, 3, 4, 6))
    faults = (_fault(rng, len(devices), replicas) for _ in range(number))
    return Schedule(
        seed=seed,
        devices=devices,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        replicas=replicas,
        latency_s=rng.choice((0.001, 0.01, 0.03, 0.1, 0.25)),
        jitter_s=rng.choice((0.0, 0.005, 0.05, 0.3)),
        duplicate_rate=rng.choice((0.0, 0.0, 0.05, 0.3)),
        context=rng.choice((4096, 4096, 4096, 48, 64)),
        kv_tokens=rng.choice((10_000, 10_000, 96)),
        prefill_chunk=rng.choice((128, 8)),
        pass_s=rng.choice((0.002, 0.01, 0.04)),
        inline_bytes=rng.choice((8192, 0, 64)),
        over_wire=seed % 20 == 0,
    )


def _device(rng: random.Random) -> DevicePlan:
    depth = rng.choice((0, 1, 2, 4, 6, 12))
    tree = rng.random() < 0.3
    plan = Plan(
        max_depth=depth,
        max_nodes=depth * 2 if tree else depth,
        tree=tree,
        run_ahead=rng.choice((0, 0, 3, 16, UNLIMITED)) if depth else rng.choice((0, UNLIMITED, UNLIMITED)),
        rounds=rng.choice((1, 1, 2, 4)),
    )
    return DevicePlan(
        turns=tuple(_turn(rng, number) for number in range(rng.choice((1, 1, 2, 3)))),
        plan=plan,
        offline=rng.choice((Offline.AUTO, Offline.AUTO, Offline.AUTO, Offline.NEVER)),
        reconcile=rng.choice(
            (Reconcile.REVISE, Reconcile.REVISE, Reconcile.REVISE, Reconcile.KEEP, Reconcile.PAUSE)
        ),
        error_rate=rng.choice((0.0, 0.1, 0.3, 0.6, 1.0)),
        bundle_at=rng.choice((0.0, 0.0, 0.0, 0.4, 2.0, None)),
        rows=rng.random() < 0.7,
        node_s=rng.choice((0.0005, 0.004)),
        journal_s=rng.choice((0.0, 0.002, 0.05)),
    )


def _turn(rng: random.Random, number: int) -> TurnPlan:
    temperature = rng.choice((0.0, 0.0, 0.8))
    return TurnPlan(
        append_ids=tuple(rng.randrange(1, 97) for _ in range(rng.randint(1, 20))),
        max_new=rng.randint(1, 32),
        sampling=Sampling(temperature=temperature, seed=rng.randrange(2**32) if temperature else 0),
        knows_stop_ids=rng.random() < 0.6,
        back=rng.choice((0.0, 0.0, 0.0, 0.5, 1.0)) if number else 0.0,
        think_s=rng.choice((0.0, 0.05, 1.0, 40.0)),
    )


def _fault(rng: random.Random, devices: int, replicas: int) -> Fault:
    return Fault(
        at=round(rng.uniform(0.0, rng.choice((0.3, 1.0, 3.0, 6.0))), 4),
        kind=rng.choice(FAULT_KINDS),
        device=rng.randrange(devices),
        replica=rng.randrange(replicas),
        duration=round(rng.choice((0.05, 0.5, 2.0, 5.0, 20.0)) * rng.uniform(0.5, 1.5), 4),
    )
