"""Nothing a device sends shows up in logs, metrics, or what other devices and operators get to see."""

from __future__ import annotations

import asyncio
import io
import os
from pathlib import Path

import grpc
import pytest

from outrider.cloud.listener import ListenerSettings
from outrider.shared.draft import Draft
from outrider.shared.frames import UNLIMITED
from tests.harness import running_verifier
from tests.hostile_messages import HOSTILE_TEXT, hostile_messages
from tests.raw_device import connected
from tests.toy_engine import ToyEngine

CANARY_IDS = (917_341, 662_903, 845_127)
TOKEN = "canary-token-5c1e"


def test_ids_tokens_and_names_stay_out_of_logs_and_metrics(debug_log: io.StringIO, tmp_path: Path) -> None:
    """Prompts of rare ids, a failing engine, refused frames with text in them, wrong and right tokens: no trace."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"phone {TOKEN}\n")
    engine = ToyEngine(vocabulary=1_000_000)
    session = os.urandom(16)
    with running_verifier(engine=engine, listener=ListenerSettings(token_file=tokens)) as verifier:

        async def run() -> None:
            async with connected(verifier.address, session, token=TOKEN) as device:
                await device.open(CANARY_IDS, 6, run_ahead_until=UNLIMITED, draft=Draft.chain(()))
                await device.stream()
            async with connected(verifier.address, token=TOKEN) as device:
                await device.open(CANARY_IDS, 6)
                engine.fail_next = RuntimeError(f"canary text {CANARY_IDS}")
                with pytest.raises(grpc.aio.AioRpcError):
                    await device.propose(CANARY_IDS)
            for message in hostile_messages():
                async with connected(verifier.address, token=TOKEN) as device:
                    await device.send_raw(message)
                    await device.drained()
            async with connected(verifier.address, token="wrong-canary") as device:
                await device.drained()

        asyncio.run(run())
        seen = debug_log.getvalue() + verifier.metrics.text()
    assert '"event": "engine failure"' in seen and '"event": "frame refused"' in seen
    for secret in (*map(str, CANARY_IDS), TOKEN, "canary", HOSTILE_TEXT, session.hex(), "phone"):
        assert secret not in seen, secret
