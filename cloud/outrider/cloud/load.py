"""From settings to a target ready to serve: loaded, checked, measured, with its bundle and tokenizer at hand."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from outrider.cloud.bundles import BundleStore
from outrider.cloud.config import ServeConfig
from outrider.cloud.describe import RULES, describe, features, measure_cost
from outrider.cloud.drafters import ServedDrafter, open_drafter
from outrider.cloud.engine import Engine
from outrider.cloud.logs import event
from outrider.cloud.oracle import end_ids
from outrider.cloud.selfcheck import open_engine
from outrider.cloud.serve import Loaded
from outrider.cloud.table import SessionTable
from outrider.cloud.table_state import Served, TableSettings
from outrider.cloud.target import Target, load_target
from outrider.cloud.worker import Worker
from outrider.shared.frames import Fingerprints, Limits, Numerics
from outrider.shared.sampling import NEAR_TIE
from outrider.shared.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

MOST_CONTEXT = 8192
"""Longest sequence served unless the operator asks for more, in tokens."""


def load(config: ServeConfig) -> Loaded:
    """Load, check and measure; one log line a phase. Raises ConfigError for what cannot be served."""
    with _phase("target", target=config.target, dtype=config.dtype, threads=config.threads):
        target = load_target(
            config.target, config.dtype, config.threads, report=lambda line: event(_log, logging.INFO, line)
        )
    worker, numerics = _open(config, target)
    store = BundleStore()
    tokenizer = Tokenizer.from_folder(target.folder)
    store.add_bytes(tokenizer.artefact)
    drafter = None
    if config.drafter is not None:
        with _phase("drafter", drafter=config.drafter.name):
            drafter = open_drafter(config.drafter, config.bundle, worker.engine, store)
    with _phase("cost"):
        cost = measure_cost(worker, target.vocabulary)
    served = Served(
        limits=Limits(max_context_tokens=_longest(config, target)),
        vocabulary=target.vocabulary,
        fingerprints=Fingerprints(target.law, tokenizer.sha256, drafter.info.sha256 if drafter else b""),
        stop_ids=frozenset(end_ids(target, tokenizer)),
        rules=RULES,
        features=features(rows=drafter is not None, padding=config.padding),
        planes=drafter.planes if drafter else (),
        cost=cost,
        numerics=numerics,
        replica=os.urandom(8),
        kv_bytes_per_token=target.kv_shape.position_bytes,
        kv_budget_bytes=config.kv_budget_bytes,
    )
    settings = TableSettings(
        max_sessions=config.max_sessions, max_sessions_per_principal=min(config.max_sessions, 256)
    )
    _tell(served, drafter)
    return Loaded(
        engine=worker,
        table=partial(SessionTable, served, settings),
        description=describe(
            served,
            target_name=target.name,
            dtype=target.dtype,
            bundles=(drafter.info,) if drafter else (),
        ),
        rows=drafter.rows if drafter else None,
        bundles=store,
        kv_limit_bytes=config.kv_budget_bytes,
    )


def _open(config: ServeConfig, target: Target) -> tuple[Worker, Numerics]:
    """The engine and what its self-check found; without the check nothing is promised."""
    if not config.selfcheck:
        return Worker(Engine(target, config.kv_budget_bytes)), Numerics(False, NEAR_TIE)
    with _phase("selfcheck"):
        engine, found = open_engine(target, config.kv_budget_bytes)
    event(
        _log,
        logging.INFO if found.bit_exact else logging.WARNING,
        "self-check done" if found.bit_exact else "results depend on what is computed beside them",
        width_invariant=found.bit_exact,
        near_tie_gap=found.near_tie_bound,
    )
    return Worker(engine, found.near_tie_bound), Numerics(found.bit_exact, found.near_tie_bound)


def _longest(config: ServeConfig, target: Target) -> int:
    return min(config.max_context or MOST_CONTEXT, target.max_context)


def _tell(served: Served, drafter: ServedDrafter | None) -> None:
    event(
        _log,
        logging.INFO,
        "serving",
        law=served.fingerprints.law.hex()[:16],
        tokenizer=served.fingerprints.tokenizer.hex()[:16],
        bundle=served.fingerprints.bundle.hex()[:16],
        planes=len(served.planes),
        size_bytes=drafter.info.size_bytes if drafter else 0,
        kv_budget_bytes=served.kv_budget_bytes,
        max_context=served.limits.max_context_tokens,
        prefill_us_per_token=served.cost.prefill_us_per_token,
        costs_us=" ".join(map(str, served.cost.costs_us)),
        widths=" ".join(map(str, served.cost.widths)),
    )


@contextmanager
def _phase(name: str, **fields: str | int) -> Iterator[None]:
    """Log how long a phase of the start-up took."""
    started = time.perf_counter()
    yield
    seconds = round(time.perf_counter() - started, 3)
    event(_log, logging.INFO, "phase done", phase=name, seconds=seconds, **fields)
