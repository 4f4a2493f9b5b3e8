"""Downloads against a small server that cuts, lies and dawdles; and the cache they end in."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from outrider.client.cache import MAX_VERIFIERS, Cache, Known
from outrider.client.channel import ChannelSettings, open_channel
from outrider.client.fetch import MAX_BYTES, fetch
from outrider.shared.errors import (
    BundleError,
    ConfigError,
    InvalidField,
    ProtocolViolation,
    RoundTimeout,
)
from outrider.v1 import verifier_pb2 as pb
from outrider.v1 import verifier_pb2_grpc

CONTENT = bytes(range(8, 256)) * 1200
SHA = hashlib.sha256(CONTENT).digest()
Behaviour = Callable[[pb.FetchBundleRequest], AsyncIterator[pb.FetchBundleResponse | Exception]]


class Server(verifier_pb2_grpc.VerifierServicer):
    """Answers each FetchBundle as the next behaviour says; the last one is repeated."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self.behaviours = list(behaviours)
        self.offsets: list[int] = []

    async def Describe(self, request: Any, context: Any) -> Any:
        """Not asked for here."""
        raise NotImplementedError

    def Decode(self, request_iterator: Any, context: Any) -> Any:
        """Not asked for here."""
        raise NotImplementedError

    async def FetchBundle(self, request: pb.FetchBundleRequest, context: Any) -> None:  # type: ignore[override]
        """One download, or as much of it as the behaviour gives."""
        self.offsets.append(request.offset_bytes)
        behaviour = self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]
        async for piece in behaviour(request):
            if isinstance(piece, Exception):
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            await context.write(piece)


async def honest(request: pb.FetchBundleRequest, stop: int = len(CONTENT)) -> AsyncIterator[Any]:
    """What was asked for."""
    if request.offset_bytes > len(CONTENT):
        raise AssertionError("an offset beyond the file")
    for at in range(request.offset_bytes, stop, request.chunk_bytes):
        data = CONTENT[at : min(at + request.chunk_bytes, stop)]
        yield pb.FetchBundleResponse(offset_bytes=at, total_bytes=len(CONTENT), data=data)
    if request.offset_bytes == len(CONTENT):
        yield pb.FetchBundleResponse(offset_bytes=request.offset_bytes, total_bytes=len(CONTENT))


def cut_at(stop: int) -> Behaviour:
    """The link breaks after so many bytes."""

    async def behave(request: pb.FetchBundleRequest) -> AsyncIterator[Any]:
        async for piece in honest(request, stop):
            yield piece
        yield ConnectionError()

    return behave


def saying(*pieces: tuple[int, int, bytes]) -> Behaviour:
    """Exactly these (offset, total, data), then the end."""

    async def behave(request: pb.FetchBundleRequest) -> AsyncIterator[Any]:
        for offset, total, data in pieces:
            yield pb.FetchBundleResponse(offset_bytes=offset, total_bytes=total, data=data)

    return behave


async def silent(request: pb.FetchBundleRequest) -> AsyncIterator[Any]:
    """Nothing, for long."""
    await asyncio.sleep(30)
    yield ConnectionError()


async def dripping(request: pb.FetchBundleRequest) -> AsyncIterator[Any]:
    """A little now and then, for ever."""
    for at in range(0, len(CONTENT), 1024):
        await asyncio.sleep(0.02)
        yield pb.FetchBundleResponse(offset_bytes=at, total_bytes=len(CONTENT), data=CONTENT[at : at + 1024])


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[ChannelSettings]:
    """The server on a port of this machine."""
    running = grpc.aio.server()
    verifier_pb2_grpc.add_VerifierServicer_to_server(server, running)
    port = running.add_insecure_port("127.0.0.1:0")
    await running.start()
    try:
        yield ChannelSettings(server=f"127.0.0.1:{port}")
    finally:
        await running.stop(None)


def download(
    server: Server,
    cache: Cache,
    sha256: bytes = SHA,
    tries: int = 1,
    *,
    message_s: float = 20.0,
    total_s: float = 60.0,
) -> Path:
    """Fetch, each try on a new connection; only a broken link is tried again."""

    async def run() -> Path:
        async with serving(server) as settings:
            for attempt in range(tries):
                async with open_channel(settings) as channel:
                    try:
                        return await fetch(channel, sha256, cache, message_s=message_s, total_s=total_s)
                    except grpc.aio.AioRpcError:
                        if attempt == tries - 1:
                            raise
        raise AssertionError("no tries")

    return asyncio.run(run())


def test_a_file_arrives_and_is_not_fetched_twice(tmp_path: Path) -> None:
    """It lies whole under its digest, no partial file is left, and the second fetch asks nobody."""
    cache, server = Cache(tmp_path), Server(honest)
    path = download(server, cache)
    assert path.read_bytes() == CONTENT and path == cache.find_bundle(SHA)
    assert not cache.partial(SHA).exists()
    assert download(server, cache) == path and server.offsets == [0]
    assert cache.find_tokenizer(SHA) is None


def test_a_tokenizer_file_is_kept_as_one(tmp_path: Path) -> None:
    """JSON goes where tokenizers are looked for."""
    content = b'{"format":1}'
    sha = hashlib.sha256(content).digest()
    cache = Cache(tmp_path)
    path = download(Server(saying((0, len(content), content))), cache, sha)
    assert path == cache.find_tokenizer(sha) and cache.find_bundle(sha) is None


def test_a_download_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    """After two cuts the third connection asks for the rest only, and the whole is right."""
    cache, server = Cache(tmp_path), Server(cut_at(100_000), cut_at(200_000), honest)
    assert download(server, cache, tries=3).read_bytes() == CONTENT
    assert server.offsets == [0, 100_000, 200_000]


def test_a_download_cut_at_its_very_end_is_finished(tmp_path: Path) -> None:
    """With every byte here already, one empty piece completes it."""
    cache = Cache(tmp_path)
    cache.partial(SHA).parent.mkdir(parents=True)
    cache.partial(SHA).write_bytes(CONTENT)
    assert download(Server(honest), cache).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("another place", [(5, 9000, b"x" * 4000)]),
        ("a gap", [(0, 9000, b"x" * 4000), (5000, 9000, b"x" * 4000)]),
        ("again", [(0, 9000, b"x" * 4000), (0, 9000, b"x" * 4000)]),
        ("a total that grows", [(0, 9000, b"x" * 4000), (4000, 9001, b"x" * 4000)]),
        ("more than announced", [(0, 9000, b"x" * 9001)]),
        ("too large", [(0, MAX_BYTES + 1, b"x" * 4000)]),
        ("a huge total", [(0, 2**64 - 1, b"x" * 4000)]),
        ("a huge piece", [(0, 1 << 20, b"x" * 262_145)]),
        ("crumbs", [(0, 9000, b"x")]),
        ("nothing", [(0, 9000, b"")]),
        ("an early end", [(0, 9000, b"x" * 4000)]),
        ("no piece", []),
    ],
)
def test_a_lying_server_is_found_out(tmp_path: Path, name: str, pieces: list[tuple[int, int, bytes]]) -> None:
    """Pieces that are not what was asked for end the download, and the cache holds nothing under the digest."""
    cache = Cache(tmp_path)
    with pytest.raises(ProtocolViolation):
        download(Server(saying(*pieces)), cache)
    assert cache.find_bundle(SHA) is None and cache.latest_bundle() is None


def test_other_content_is_thrown_away(tmp_path: Path) -> None:
    """The right size with another digest is no file, and the next attempt begins at nothing."""
    cache = Cache(tmp_path)
    server = Server(saying((0, 2000, b"x" * 2000)), honest)
    with pytest.raises(BundleError, match="another digest"):
        download(server, cache)
    assert download(server, cache).read_bytes() == CONTENT and server.offsets == [0, 0]


@pytest.mark.parametrize(("behaviour", "message_s", "total_s"), [(silent, 0.1, 60.0), (dripping, 20.0, 0.2)])
def test_a_server_that_dawdles_is_left(
    tmp_path: Path, behaviour: Behaviour, message_s: float, total_s: float
) -> None:
    """No piece in time, or no end in time, is a timeout; what has come is kept."""
    cache = Cache(tmp_path)
    with pytest.raises(RoundTimeout):
        download(Server(behaviour), cache, message_s=message_s, total_s=total_s)
    assert cache.partial(SHA).exists() and cache.find_bundle(SHA) is None


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """Two downloads of one file at once do not write into each other: the later one is told."""

    async def run() -> tuple[Path | BaseException, Path | BaseException]:
        cache = Cache(tmp_path)
        async with serving(Server(dripping)) as settings, open_channel(settings) as channel:
            return await asyncio.gather(
                fetch(channel, SHA, cache), fetch(channel, SHA, cache), return_exceptions=True
            )

    one, other = asyncio.run(run())
    assert isinstance(one, Path) and one.read_bytes() == CONTENT
    assert isinstance(other, BundleError) and "another process" in str(other)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the folder should be is a setting that cannot work."""
    (tmp_path / "device").write_text("in the way")
    with pytest.raises(ConfigError, match="OUTRIDER_CACHE"):
        download(Server(honest), Cache(tmp_path))
    with pytest.raises(ConfigError, match="OUTRIDER_CACHE"):
        Cache(tmp_path).store("bundle", SHA, CONTENT)
    Cache(tmp_path).remember("a:1", "moa", bundle=SHA, tokenizer=SHA)


def test_the_cache_keeps_files_by_their_digest(tmp_path: Path) -> None:
    """What is stored is found; a wrong digest is refused; a digest that is no digest never becomes a path."""
    cache = Cache(tmp_path)
    assert cache.latest_bundle() is None and cache.find_bundle(SHA) is None
    path = cache.store("bundle", SHA, CONTENT)
    assert cache.find_bundle(SHA) == path == cache.latest_bundle()
    with pytest.raises(BundleError):
        cache.store("bundle", SHA, CONTENT + b"x")
    for wrong in (b"", b"../../../../etc/passwd", SHA + b"\0", SHA[:31]):
        with pytest.raises(InvalidField):
            cache.find_bundle(wrong)
    assert [child.name for child in path.parent.iterdir()] == [path.name]


def test_the_latest_bundle_is_the_one_used_last(tmp_path: Path) -> None:
    """Finding counts as use; files that are no bundles do not count."""
    cache = Cache(tmp_path)
    contents = [b"one", b"two", b"three"]
    digests = [hashlib.sha256(content).digest() for content in contents]
    paths = [cache.store("bundle", *pair) for pair in zip(digests, contents, strict=True)]
    for number, path in enumerate(paths):
        os.utime(path, (number, number))
    (paths[0].parent / "other.onnx").write_bytes(b"")
    (paths[0].parent / ("x" * 64 + ".onnx")).write_bytes(b"")
    assert cache.latest_bundle() == paths[2]
    assert cache.find_bundle(digests[0]) == paths[0] == cache.latest_bundle()


def test_each_kind_of_drafter_is_remembered_by_address(tmp_path: Path) -> None:
    """Without a kind, what was used last counts; the latest bundle of a kind is one that was remembered as such."""
    cache = Cache(tmp_path)
    paths = {kind: cache.store("bundle", hashlib.sha256(kind).digest(), kind) for kind in (b"moa", b"eagle2")}
    for kind in ("moa", "eagle2"):
        sha = hashlib.sha256(kind.encode()).digest()
        cache.remember("a:1", kind, bundle=sha, tokenizer=SHA)
        assert cache.known("a:1") == cache.known("a:1", kind) == Known(kind, sha, SHA)
        assert cache.latest_bundle(kind) == paths[kind.encode()]
    cache.remember("a:1", "moa", bundle=SHA, tokenizer=SHA)
    assert cache.known("a:1") == Known("moa", SHA, SHA)
    assert cache.known("a:1", "glide") is None and cache.known("b:1", "moa") is None
    assert cache.latest_bundle("glide") is None


def test_verifiers_are_remembered_and_the_oldest_forgotten(tmp_path: Path) -> None:
    """An address gives what it last used; the list is bounded; a damaged list is an empty one."""
    cache = Cache(tmp_path)
    assert cache.known("a:1") is None
    cache.remember("a:1", "moa", bundle=SHA, tokenizer=SHA[::-1])
    assert Cache(tmp_path).known("a:1") == Known("moa", SHA, SHA[::-1])
    for number in range(MAX_VERIFIERS):
        cache.remember(f"b:{number}", "moa", bundle=SHA, tokenizer=SHA)
    assert cache.known("a:1") is None and cache.known("b:0") is not None
    for damage in (b"", b"[]", b'{"b:0": ["zz", "zz"]}', b'{"b:0": {"moa": ["zz"]}}', b"\xff"):
        (cache.folder / "verifiers.json").write_bytes(damage)
        assert cache.known("b:0") is None
