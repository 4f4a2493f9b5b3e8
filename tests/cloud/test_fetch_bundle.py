"""FetchBundle over real gRPC."""

from __future__ import annotations

import asyncio
import hashlib

import grpc
import pytest

from outrider.cloud.bundles import MAX_CHUNK_BYTES
from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc
from tests.harness import running_verifier
from tests.raw_device import channel_to, streamed
from tests.toy_verifier import BUNDLE, TOKENIZER

SHA = hashlib.sha256(BUNDLE).digest()


async def fetch(
    address: str, request: pb.FetchBundleRequest, pieces: int = 10**9
) -> list[pb.FetchBundleResponse]:
    """The first ``pieces`` answers; then the connection is dropped."""
    got: list[pb.FetchBundleResponse] = []
    async with channel_to(address) as channel:
        call = verifier_pb2_grpc.VerifierStub(channel).FetchBundle(request, timeout=30)
        async for piece in call:
            got.append(piece)
            if len(got) == pieces:
                break
    return got


def test_a_bundle_arrives_whole_and_in_order() -> None:
    """Offsets ascend without gaps, the total is told in every piece, and the bytes are those of the digest."""
    with running_verifier() as verifier:
        pieces = asyncio.run(fetch(verifier.address, pb.FetchBundleRequest(sha256=SHA)))
    content = b""
    for piece in pieces:
        assert piece.offset_bytes == len(content) and piece.total_bytes == len(BUNDLE)
        content += piece.data
    assert content == BUNDLE and len(pieces) == -(-len(BUNDLE) // 65_536)


@pytest.mark.parametrize("offset", [0, 1, 65_536, len(BUNDLE) - 1, len(BUNDLE)])
def test_a_broken_download_continues_at_any_byte(offset: int) -> None:
    """From an offset on, only the rest is sent; at the very end one empty piece says so."""
    with running_verifier() as verifier:
        request = pb.FetchBundleRequest(sha256=SHA, offset_bytes=offset, chunk_bytes=50_000)
        pieces = asyncio.run(fetch(verifier.address, request))
    assert b"".join(piece.data for piece in pieces) == BUNDLE[offset:] and pieces


def test_a_download_cut_twice_is_completed() -> None:
    """Pieces of three connections, each dropped in the middle, join to the file."""
    with running_verifier() as verifier:
        content = b""
        while len(content) < len(BUNDLE):
            request = pb.FetchBundleRequest(sha256=SHA, offset_bytes=len(content), chunk_bytes=20_000)
            content += b"".join(p.data for p in asyncio.run(fetch(verifier.address, request, pieces=4)))
    assert hashlib.sha256(content).digest() == SHA


def test_the_tokenizer_file_has_the_fingerprint_as_its_name() -> None:
    """What Describe calls the tokenizer's fingerprint fetches the tokenizer file."""
    with running_verifier() as verifier:
        sha = verifier.loaded.description.fingerprints.tokenizer
        pieces = asyncio.run(fetch(verifier.address, pb.FetchBundleRequest(sha256=sha)))
    assert b"".join(piece.data for piece in pieces) == TOKENIZER


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        (pb.FetchBundleRequest(), grpc.StatusCode.INVALID_ARGUMENT, "sha256"),
        (pb.FetchBundleRequest(sha256=b"x" * 31), grpc.StatusCode.INVALID_ARGUMENT, "sha256"),
        (pb.FetchBundleRequest(sha256=b"../" * 11), grpc.StatusCode.INVALID_ARGUMENT, "sha256"),
        (pb.FetchBundleRequest(sha256=SHA.hex().encode()), grpc.StatusCode.INVALID_ARGUMENT, "sha256"),
        (pb.FetchBundleRequest(sha256=b"x" * 32), grpc.StatusCode.NOT_FOUND, "sha256"),
        (
            pb.FetchBundleRequest(sha256=SHA, offset_bytes=len(BUNDLE) + 1),
            grpc.StatusCode.INVALID_ARGUMENT,
            "offset_bytes",
        ),
        (
            pb.FetchBundleRequest(sha256=SHA, offset_bytes=2**64 - 1),
            grpc.StatusCode.INVALID_ARGUMENT,
            "offset_bytes",
        ),
        (
            pb.FetchBundleRequest(sha256=SHA, chunk_bytes=MAX_CHUNK_BYTES + 1),
            grpc.StatusCode.INVALID_ARGUMENT,
            "chunk_bytes",
        ),
    ],
)
def test_bad_requests_name_their_field(
    request_: pb.FetchBundleRequest, code: grpc.StatusCode, field: str
) -> None:
    """Wrong digests, offsets and sizes are refused by name; the server goes on serving."""
    with running_verifier() as verifier:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            asyncio.run(fetch(verifier.address, request_))
        assert caught.value.code() is code and field in (caught.value.details() or "")
        assert asyncio.run(streamed(verifier.address, (1, 2), 5)) == verifier.engine.generate((1, 2), 5)
