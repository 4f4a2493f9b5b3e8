"""From settings to a target ready to serve: loaded, checked, measured, with its bundle and tokenizer at hand."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from outrider.cloud.bundles import BundleStore
from outrider.cloud.config import ServeConfig
from outrider.cloud.describe import describe, features, measure_cost
from outrider.cloud.drafters import RowsByBundle, ServedDrafter, open_drafters
from outrider.cloud.engine import Engine
from outrider.cloud.judging import open_rules
from outrider.cloud.logs import event
from outrider.cloud.oracle import end_ids
from outrider.cloud.secret import coin_secret
from outrider.cloud.selfcheck import open_engine
from outrider.cloud.serve import Loaded
from outrider.cloud.table import SessionTable
from outrider.cloud.table_state import Served, TableSettings
from outrider.cloud.target import Target, load_target
from outrider.cloud.worker import Worker
from outrider.shared.frames import BundleInfo, Fingerprints, Limits, Numerics
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
    drafters: tuple[ServedDrafter, ...] = ()
    if config.drafters:
        with _phase("drafter", drafter=" ".join(folder.name for folder in config.drafters)):
            drafters = open_drafters(config.drafters, config.bundle, worker.engine, store)
    return assemble(config, worker, numerics, tokenizer, drafters, store)


def assemble(
    config: ServeConfig,
    worker: Worker,
    numerics: Numerics,
    tokenizer: Tokenizer,
    drafters: Sequence[ServedDrafter],
    store: BundleStore,
) -> Loaded:
    """Measure what a pass costs and put everything together; the first of ``drafters`` is the recommended one."""
    target = worker.engine.target
    infos = tuple(drafter.info for drafter in drafters)
    stop_ids = frozenset(end_ids(target, tokenizer))
    rules = open_rules(config, worker, stop_ids | tokenizer.special_ids)
    with _phase("cost"):
        cost = measure_cost(worker, target.vocabulary)
    served = Served(
        limits=Limits(max_context_tokens=_longest(config, target)),
        vocabulary=target.vocabulary,
        fingerprints=Fingerprints(target.law, tokenizer.sha256, infos[0].sha256 if infos else b""),
        stop_ids=stop_ids,
        rules=rules,
        features=features(rows=any(info.planes for info in infos), padding=config.padding, rules=rules),
        sources=tuple(drafter.source for drafter in drafters if drafter.info.planes),
        cost=cost,
        numerics=numerics,
        replica=os.urandom(8),
        kv_bytes_per_token=target.kv_shape.position_bytes,
        final_bytes_per_token=target.kv_shape.final_bytes,
        kv_budget_bytes=config.kv_budget_bytes,
        coin_secret=coin_secret(config.coin_secret_file),
    )
    settings = TableSettings(
        max_sessions=config.max_sessions, max_sessions_per_principal=min(config.max_sessions, 256)
    )
    _tell(served, infos)
    return Loaded(
        engine=worker,
        table=partial(SessionTable, served, settings),
        description=describe(served, target_name=target.name, dtype=target.dtype, bundles=infos),
        rows=RowsByBundle({drafter.info.sha256: drafter.rows for drafter in drafters}) if drafters else None,
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


def _tell(served: Served, bundles: Sequence[BundleInfo]) -> None:
    event(
        _log,
        logging.INFO,
        "serving",
        law=served.fingerprints.law.hex()[:16],
        tokenizer=served.fingerprints.tokenizer.hex()[:16],
        bundle=served.fingerprints.bundle.hex()[:16],
        rules=" ".join(served.rules.names),
        drafter=" ".join(info.drafter_kind for info in bundles),
        planes=" ".join(str(len(info.planes)) for info in bundles),
        size_bytes=sum(info.size_bytes for info in bundles),
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
