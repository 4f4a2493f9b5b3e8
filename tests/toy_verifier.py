"""Everything a verifier serves, made of a toy target: for tests that need a server and no model."""

from __future__ import annotations

import hashlib
from functools import partial

from outrider.cloud.bundles import BundleStore
from outrider.cloud.describe import describe, features
from outrider.cloud.serve import Loaded
from outrider.cloud.table import SessionTable
from outrider.cloud.table_state import RowSource, Served, TableSettings
from outrider.shared.frames import BundleInfo, CostCurve, Fingerprints, Limits, Numerics
from outrider.shared.sampling import Sampling
from tests.toy_engine import PLANE, ToyEngine, ToyRows

BUNDLE = b"toy bundle " * 20_000
TOKENIZER = b'{"format":1,"tokenizer":"toy"}'
LAW = hashlib.sha256(b"toy law").digest()
KV_BYTES_PER_TOKEN = 4

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
COUPLED = Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=11)
WITH_BUNDLE = Fingerprints(bundle=hashlib.sha256(BUNDLE).digest())
"""What devices in the tests of the service ask for."""


def toy_loaded(
    engine: ToyEngine | None = None,
    *,
    settings: TableSettings | None = None,
    limits: Limits | None = None,
    kv_budget_bytes: int = 1 << 20,
    padding: str = "off",
    stop_ids: tuple[int, ...] = (),
    tokenizer_file: bytes = TOKENIZER,
) -> Loaded:
    """A toy target with rows, a bundle and a tokenizer file, ready to serve."""
    engine = engine or ToyEngine()
    store = BundleStore()
    bundle, tokenizer = store.add_bytes(BUNDLE), store.add_bytes(tokenizer_file)
    served = Served(
        limits=limits or Limits(max_context_tokens=2048),
        vocabulary=engine.vocabulary,
        fingerprints=Fingerprints(LAW, tokenizer.sha256, bundle.sha256),
        stop_ids=frozenset(stop_ids),
        features=features(rows=True, padding=padding),
        sources=(RowSource(bundle.sha256, (PLANE,)),),
        cost=CostCurve((1, 8, 64), (1000, 1100, 1500), 128, 50),
        numerics=Numerics(True, 1e-4),
        replica=b"toytoyto",
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        kv_budget_bytes=kv_budget_bytes,
    )
    info = BundleInfo(bundle.sha256, bundle.size_bytes, "toy", engine.vocabulary, 1, (PLANE,))
    return Loaded(
        engine=engine,
        table=partial(SessionTable, served, settings or TableSettings()),
        description=describe(served, target_name="toy", dtype="float64", bundles=(info,)),
        rows=ToyRows(engine),
        bundles=store,
        kv_limit_bytes=kv_budget_bytes,
    )
