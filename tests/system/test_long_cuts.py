"""A session cut after every single byte, in both directions, in plain text and under TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
import trustme

from outrider.client.drafters.noisy import NoisyDrafter
from outrider.cloud.listener import ListenerSettings
from outrider.netsim.faults import Cut
from outrider.netsim.threaded import ThreadedProxy
from tests.device import Answer, Device, chain
from tests.harness import running_verifier
from tests.system.conftest import Target

COUNT = 12
SPARE = 64
"""Handshakes differ by some bytes from one connection to the next."""
Direction = Literal["up", "down"]


@contextmanager
def served(target: Target, folder: Path, tls: bool) -> Iterator[tuple[int, Path | None]]:
    """A verifier's port, and its authority under TLS."""
    listener, authority = ListenerSettings(), None
    if tls:
        made = trustme.CA()
        issued = made.issue_cert("127.0.0.1")
        authority = folder / "ca"
        authority.write_bytes(made.cert_pem.bytes())
        (folder / "cert").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        (folder / "key").write_bytes(issued.private_key_pem.bytes())
        listener = ListenerSettings(tls_cert=folder / "cert", tls_key=folder / "key")
    with running_verifier(target_dir=target.folder, listener=listener) as verifier:
        yield verifier.port, authority


@pytest.mark.parametrize(
    "step", [401, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(14_400)])]
)
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_cut_at_every_byte_changes_nothing(
    target: Target, tmp_path: Path, tls: bool, direction: Direction, step: int
) -> None:
    """However many bytes came through before the reset, handshake included, the text is the target's own."""
    prompt = target.prompt("cut")
    alone = target.alone(prompt, COUNT)
    with served(target, tmp_path, tls) as (port, authority):

        def ask(proxy: ThreadedProxy) -> Answer:
            drafter = NoisyDrafter((*prompt, *alone), 0.2, 8, target.vocabulary)
            device = Device(
                address=proxy.address,
                tokenizer=target.tokenizer,
                drafter=drafter,
                plan=chain(4),
                tls_ca=authority,
            )
            return device.ask(prompt, COUNT)

        with ThreadedProxy(("127.0.0.1", port)) as proxy:
            assert ask(proxy).ids == alone
            stats = proxy.stats
        total = stats.bytes_up if direction == "up" else stats.bytes_down
        offsets, cut = range(0, total + SPARE, step), 0
        for offset in offsets:
            with ThreadedProxy(("127.0.0.1", port)) as proxy:
                proxy.trigger(Cut(direction, offset, "reset"))
                answer = ask(proxy)
                cut += proxy.stats.connections > 1
            assert answer.ids == alone, offset
            assert answer.finished is not None and answer.finished.verified
        assert cut >= len(offsets) // 3
