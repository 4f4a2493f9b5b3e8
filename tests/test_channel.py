"""Both ends of a connection: who gets in, under which name, and what everyone else is told."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from outrider.client.channel import Channel, ChannelSettings, open_channel
from outrider.cloud.listener import ANONYMOUS, Gate, Listener, ListenerSettings, listen
from outrider.shared.errors import (
    ConfigError,
    ConnectTimeout,
    LinkDown,
    OutriderError,
    ProtocolMismatch,
    Unauthenticated,
)
from outrider.shared.transport import MAX_MESSAGE_BYTES, error_of
from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc

TOKEN = "correct-horse-battery-staple"


class Whoami(verifier_pb2_grpc.VerifierServicer):
    """Tells each caller its principal, through all three kinds of call."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeResponse:
        return pb.DescribeResponse(target_name=self._gate.principal(context))

    async def Decode(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.DecodeResponse]:
        async for request in request_iterator:
            yield pb.DecodeResponse(
                pong=pb.Pong(nonce=request.ping.nonce), padding=self._gate.principal(context).encode()
            )

    async def FetchBundle(
        self, request: pb.FetchBundleRequest, context: Any
    ) -> AsyncIterator[pb.FetchBundleResponse]:
        yield pb.FetchBundleResponse(data=bytes(request.chunk_bytes))


@dataclass(frozen=True)
class Pki:
    """PEM files of one authority, a server, a device, and of everything that is wrong about them."""

    ca: Path
    cert: Path
    key: Path
    device_cert: Path
    device_key: Path
    other_ca: Path
    other_name_cert: Path
    other_name_key: Path
    stranger_cert: Path
    stranger_key: Path
    expired_cert: Path
    expired_key: Path


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Certificates made for this run."""
    folder = tmp_path_factory.mktemp("pki")
    ca, other = trustme.CA(), trustme.CA()

    def save(name: str, *blobs: trustme.Blob) -> Path:
        path = folder / name
        path.write_bytes(b"".join(blob.bytes() for blob in blobs))
        return path

    def pair(name: str, issued: trustme.LeafCert) -> tuple[Path, Path]:
        return save(f"{name}.pem", *issued.cert_chain_pems), save(f"{name}.key", issued.private_key_pem)

    return Pki(
        save("ca.pem", ca.cert_pem),
        *pair("server", ca.issue_cert("127.0.0.1", "localhost")),
        *pair("device", ca.issue_cert("device.example", common_name="device-7")),
        save("other-ca.pem", other.cert_pem),
        *pair("other-name", ca.issue_cert("elsewhere.example")),
        *pair("stranger", other.issue_cert("stranger.example", common_name="stranger")),
        *pair("expired", ca.issue_cert("127.0.0.1", not_after=datetime(2020, 1, 1, tzinfo=UTC))),
    )


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """The operator's file with two tokens."""
    return write(tmp_path / "tokens", f"# who may draft\nphone {TOKEN}\n\nlaptop another-token # spare\n")


def write(path: Path, text: str) -> Path:
    """A file only its owner can read."""
    path.write_text(text)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return path


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Listener]:
    """A listener on a free loopback port with the whoami and health services."""
    listener = listen(ListenerSettings(listen="127.0.0.1:0", **settings))
    verifier_pb2_grpc.add_VerifierServicer_to_server(Whoami(listener.gate), listener.server)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), listener.server)
    await listener.server.start()
    try:
        yield listener
    finally:
        await listener.server.stop(None)


async def three_answers(channel: Channel) -> set[str]:
    """The principal as unary and bidirectional calls see it, after a server stream that must work too."""
    described = await channel.verifier.Describe(pb.DescribeRequest(), metadata=channel.metadata, timeout=20)
    call = channel.verifier.Decode(metadata=channel.metadata, timeout=20)
    await call.write(pb.DecodeRequest(ping=pb.Ping(nonce=5)))
    answer = await call.read()
    assert isinstance(answer, pb.DecodeResponse) and answer.pong.nonce == 5
    await call.done_writing()
    fetched = channel.verifier.FetchBundle(
        pb.FetchBundleRequest(chunk_bytes=1000), metadata=channel.metadata, timeout=20
    )
    assert [len(piece.data) async for piece in fetched] == [1000]
    return {described.target_name, answer.padding.decode()}


def visit(client: dict[str, Any], **server: Any) -> set[str]:
    """Serve with one set of settings, call with another; the principals seen."""

    async def run() -> set[str]:
        async with (
            serving(**server) as listener,
            open_channel(ChannelSettings(server=f"127.0.0.1:{listener.port}", **client)) as channel,
        ):
            return await three_answers(channel)

    return asyncio.run(run())


def refusal(client: dict[str, Any], **server: Any) -> OutriderError:
    """As `visit`, for a call that must fail; the error it is turned into."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        visit(client, **server)
    return error_of(caught.value)


def test_plain_loopback_needs_no_credentials() -> None:
    """On loopback a device and a verifier with no settings find each other in plain text, anonymously."""
    assert visit({}) == {ANONYMOUS}


def test_tls_with_a_private_authority(pki: Pki) -> None:
    """With --tls-ca the device accepts the verifier's certificate."""
    assert visit({"tls_ca": pki.ca}, tls_cert=pki.cert, tls_key=pki.key) == {ANONYMOUS}


def test_mutual_tls_names_the_device(pki: Pki) -> None:
    """A client certificate of the right authority gets in, under its common name."""
    device = {"tls_ca": pki.ca, "tls_cert": pki.device_cert, "tls_key": pki.device_key}
    assert visit(device, tls_cert=pki.cert, tls_key=pki.key, tls_client_ca=pki.ca) == {"cert:device-7"}


@pytest.mark.parametrize("tls", [False, True], ids=["loopback", "tls"])
def test_a_token_gets_in_under_its_name(pki: Pki, token_file: Path, tmp_path: Path, tls: bool) -> None:
    """The device's token is sent with every call and the verifier knows the caller by the token's name."""
    own = write(tmp_path / "own", TOKEN + "\n")
    client, server = ({"tls_ca": pki.ca}, {"tls_cert": pki.cert, "tls_key": pki.key}) if tls else ({}, {})
    assert visit({"token_file": own, **client}, token_file=token_file, **server) == {"token:phone"}


@pytest.mark.parametrize("wrong", ["missing", "unknown", "prefix"])
def test_without_a_known_token_every_call_is_unauthenticated(
    token_file: Path, tmp_path: Path, wrong: str
) -> None:
    """A missing, unknown or shortened token is refused, and the refusal surfaces with what to do."""
    text = {"unknown": "not-the-token", "prefix": TOKEN[:-1]}.get(wrong)
    client = {} if text is None else {"token_file": write(tmp_path / "own", text)}
    error = refusal(client, token_file=token_file)
    assert isinstance(error, Unauthenticated) and "token" in str(error)


def raw(channel: grpc.aio.Channel, path: str) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    """A call by its path, of bytes."""
    return channel.unary_unary(path)


def test_every_method_is_denied_without_a_token(token_file: Path) -> None:
    """Health, unknown methods and all kinds of call answer UNAUTHENTICATED: nothing is served by omission."""

    async def run() -> list[grpc.StatusCode]:
        codes = []
        async with (
            serving(token_file=token_file) as listener,
            grpc.aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel,
        ):
            stub = verifier_pb2_grpc.VerifierStub(channel)
            calls = [
                stub.Describe(pb.DescribeRequest(), timeout=20),
                stub.FetchBundle(pb.FetchBundleRequest(), timeout=20).read(),
                stub.Decode(timeout=20).read(),
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20),
                raw(channel, "/no.such.Service/Method")(b"", timeout=20),
                raw(channel, "/outrider.v1.Verifier/Nothing")(b"", timeout=20),
            ]
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                codes.append(caught.value.code())
        return codes

    assert asyncio.run(run()) == [grpc.StatusCode.UNAUTHENTICATED] * 6


@pytest.mark.parametrize(
    "wrong",
    ["authority", "name", "expired", "no client certificate", "stranger", "plain text", "tls to plain"],
)
def test_a_connection_that_is_not_secure_is_not_made(pki: Pki, wrong: str) -> None:
    """Wrong authority or name, a missing or foreign client certificate, TLS on one side only: no call gets through."""
    tls = {"tls_cert": pki.cert, "tls_key": pki.key}
    client, server = {
        "authority": ({"tls_ca": pki.other_ca}, tls),
        "expired": ({"tls_ca": pki.ca}, {"tls_cert": pki.expired_cert, "tls_key": pki.expired_key}),
        "name": ({"tls_ca": pki.ca}, {"tls_cert": pki.other_name_cert, "tls_key": pki.other_name_key}),
        "no client certificate": ({"tls_ca": pki.ca}, {**tls, "tls_client_ca": pki.ca}),
        "stranger": (
            {"tls_ca": pki.ca, "tls_cert": pki.stranger_cert, "tls_key": pki.stranger_key},
            {**tls, "tls_client_ca": pki.ca},
        ),
        "plain text": ({}, tls),
        "tls to plain": ({"tls_ca": pki.ca}, {}),
    }[wrong]
    error = refusal(client, **server)
    assert isinstance(error, LinkDown)
    if wrong in ("authority", "name", "expired"):
        assert "--tls-ca" in error.remedy


def test_tls_uses_the_systems_authorities_unless_told_otherwise(pki: Pki) -> None:
    """--tls alone does not trust a private authority."""
    assert isinstance(refusal({"tls": True}, tls_cert=pki.cert, tls_key=pki.key), LinkDown)


def test_an_oversize_message_is_refused_before_it_is_read() -> None:
    """A message above the limit fails its call; the connection and the server live on."""

    async def run() -> set[str]:
        async with (
            serving() as listener,
            open_channel(
                ChannelSettings(
                    server=f"127.0.0.1:{listener.port}", extra_options=(("grpc.max_send_message_length", -1),)
                )
            ) as channel,
        ):
            call = channel.verifier.Decode(timeout=20)
            await call.write(pb.DecodeRequest(padding=bytes(MAX_MESSAGE_BYTES + 1)))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return await three_answers(channel)

    assert asyncio.run(run()) == {ANONYMOUS}


def test_another_service_at_the_address_is_a_mismatch() -> None:
    """An address that serves something else says so, instead of looking like an outage."""

    async def run() -> OutriderError:
        listener = listen(ListenerSettings(listen="127.0.0.1:0"))
        await listener.server.start()
        try:
            async with open_channel(ChannelSettings(server=f"127.0.0.1:{listener.port}")) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.verifier.Describe(pb.DescribeRequest(), timeout=20)
                return error_of(caught.value)
        finally:
            await listener.server.stop(None)

    error = asyncio.run(run())
    assert isinstance(error, ProtocolMismatch) and "Outrider" in error.remedy


def test_nobody_there_is_told_at_once_and_waiting_is_bounded() -> None:
    """A refused connection fails the call as a link error, and `ready` gives up after the time given."""

    async def run() -> tuple[OutriderError, OutriderError]:
        async with open_channel(ChannelSettings(server="127.0.0.1:1")) as channel:
            with pytest.raises(ConnectTimeout) as waited:
                await channel.ready(0.05)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.verifier.Describe(pb.DescribeRequest(), timeout=20)
            return error_of(caught.value), waited.value

    failed, waited = asyncio.run(run())
    assert isinstance(failed, LinkDown) and "127.0.0.1:1" in str(waited)


def test_two_listeners_do_not_share_a_port() -> None:
    """A port in use is a clear error, not a second verifier that gets half of the devices."""

    async def run() -> None:
        async with serving() as first:
            with pytest.raises(ConfigError, match="in use"):
                listen(ListenerSettings(listen=f"127.0.0.1:{first.port}"))

    asyncio.run(run())


def test_tokens_are_never_logged(token_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither side writes a token to its log at any level, whether the call is let in or not."""
    caplog.set_level(logging.DEBUG)
    own = write(tmp_path / "own", TOKEN)
    visit({"token_file": own}, token_file=token_file)
    error = refusal({"token_file": write(tmp_path / "wrong", "a-wrong-token")}, token_file=token_file)
    settings = ChannelSettings(server="127.0.0.1:1", token_file=own)
    for text in (caplog.text, str(error), repr(settings)):
        assert TOKEN not in text and "a-wrong-token" not in text
