"""The whole service behind TLS, client certificates and tokens: who gets in, and whose sessions they see."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.cloud.listener import ListenerSettings
from outrider.shared.draft import Draft
from outrider.shared.frames import UNLIMITED, Attach
from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc
from tests.harness import running_verifier
from tests.raw_device import Held, RawDevice

PROMPT = (3, 1, 4, 1, 5)
TOKEN = "a-token-of-a-phone"


@dataclass(frozen=True)
class Pki:
    """One authority, a server, and two devices (certificate chain and key in PEM)."""

    listener: ListenerSettings
    authority: bytes
    devices: dict[str, tuple[bytes, bytes]]


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    """Fresh certificates; the server wants client certificates and tokens."""
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    (tmp_path / "cert").write_bytes(b"".join(pem.bytes() for pem in server.cert_chain_pems))
    (tmp_path / "key").write_bytes(server.private_key_pem.bytes())
    (tmp_path / "ca").write_bytes(authority.cert_pem.bytes())
    (tmp_path / "tokens").write_text(f"phone {TOKEN}\n")
    devices = {}
    for name in ("alice", "bob"):
        issued = authority.issue_cert(f"{name}.example", common_name=name)
        devices[name] = (issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes())
    listener = ListenerSettings(
        tls_cert=tmp_path / "cert", tls_key=tmp_path / "key", tls_client_ca=tmp_path / "ca"
    )
    return Pki(listener, authority.cert_pem.bytes(), devices)


@asynccontextmanager
async def device_of(pki: Pki, name: str, address: str, session: bytes) -> AsyncIterator[RawDevice]:
    """A stream over TLS under a device's certificate."""
    chain, key = pki.devices[name]
    credentials = grpc.ssl_channel_credentials(pki.authority, key, chain)
    async with grpc.aio.secure_channel(address, credentials) as channel:
        call = verifier_pb2_grpc.VerifierStub(channel).Decode()
        try:
            yield RawDevice(call, session, Held())
        finally:
            call.cancel()
            await call.code()


def test_sessions_belong_to_certificates(pki: Pki) -> None:
    """Over mutual TLS each common name has its own sessions, under whatever id, and gets the target's own text."""
    session = os.urandom(16)
    with running_verifier(listener=pki.listener) as verifier:

        async def run(name: str, epoch: int) -> Attach:
            async with device_of(pki, name, verifier.address, session) as device:
                opened = await device.open(
                    PROMPT, 8, epoch=epoch, run_ahead_until=UNLIMITED, draft=Draft.chain(())
                )
                assert (await device.stream())[len(PROMPT) :] == verifier.engine.generate(PROMPT, 8)
                return opened.attach

        attached = [asyncio.run(run(name, epoch)) for name, epoch in (("alice", 5), ("bob", 1), ("alice", 6))]
        assert attached == [Attach.NEW, Attach.NEW, Attach.LIVE]


def test_every_method_wants_the_token(tmp_path: Path) -> None:
    """With tokens, nothing is served without one: not Describe, Decode, FetchBundle, health, nor reflection."""
    (tmp_path / "tokens").write_text(f"phone {TOKEN}\n")
    listener = ListenerSettings(token_file=tmp_path / "tokens")
    with running_verifier(listener=listener, reflection=True) as verifier:

        async def codes(metadata: tuple[tuple[str, str], ...]) -> list[grpc.StatusCode]:
            async with grpc.aio.insecure_channel(verifier.address) as channel:
                stub = verifier_pb2_grpc.VerifierStub(channel)
                sha = verifier.loaded.description.fingerprints.tokenizer
                calls = [
                    stub.Describe(pb.DescribeRequest(), metadata=metadata, timeout=20),
                    health_pb2_grpc.HealthStub(channel).Check(
                        health_pb2.HealthCheckRequest(), metadata=metadata, timeout=20
                    ),
                ]
                streams: list[Any] = [
                    stub.FetchBundle(pb.FetchBundleRequest(sha256=sha), metadata=metadata, timeout=20),
                    stub.Decode(metadata=metadata, timeout=20),
                    channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(
                        metadata=metadata, timeout=20
                    ),
                ]
                for stream in streams[1:]:
                    await stream.done_writing()
                for stream in streams:
                    async for _ in ignoring(stream):
                        pass
                return [await call.code() for call in (*calls, *streams)]

        assert set(asyncio.run(codes(()))) == {grpc.StatusCode.UNAUTHENTICATED}
        assert set(asyncio.run(codes((("authorization", "Bearer nonsense"),)))) == {
            grpc.StatusCode.UNAUTHENTICATED
        }
        assert set(asyncio.run(codes((("authorization", f"Bearer {TOKEN}"),)))) == {grpc.StatusCode.OK}


async def ignoring(stream: AsyncIterator[object]) -> AsyncIterator[object]:
    """What a stream brings; its failure is told by its code."""
    try:
        async for message in stream:
            yield message
    except grpc.aio.AioRpcError:
        return
