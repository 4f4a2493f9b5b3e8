"""The files FetchBundle serves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from outrider.cloud.bundles import MAX_CHUNK_BYTES, BundleStore, chunk_size
from outrider.shared.errors import BundleError, InvalidField


def test_a_file_is_found_by_its_digest_and_read_piecewise(tmp_path: Path) -> None:
    """Path and memory alike: any offset, never more than there is."""
    content = bytes(range(256)) * 3
    (tmp_path / "x").write_bytes(content)
    for served in (BundleStore().add_path(tmp_path / "x"), BundleStore().add_bytes(content)):
        assert served.sha256 == hashlib.sha256(content).digest() and served.size_bytes == len(content)
        assert served.read(0, 100) + served.read(100, 10_000) == content
        assert served.read(len(content), 10) == b""


@pytest.mark.parametrize("digest", [b"", b"../../etc/passwd", b"0" * 31, b"0" * 33, b"0" * 64])
def test_only_exact_digests_are_looked_up(digest: bytes) -> None:
    """Anything but 32 bytes is refused by field before it is used for anything."""
    with pytest.raises(InvalidField) as caught:
        BundleStore().find(digest)
    assert caught.value.field == "sha256"


def test_an_unknown_digest_finds_nothing(tmp_path: Path) -> None:
    """A digest is no path: one that spells a file's name finds nothing."""
    (tmp_path / ("a" * 32)).write_bytes(b"secret")
    assert BundleStore().find(b"a" * 32) is None


def test_chunks_are_bounded() -> None:
    """0 means the default; above the limit is refused."""
    assert chunk_size(0) == 65_536 and chunk_size(7) == 7 and chunk_size(MAX_CHUNK_BYTES) == MAX_CHUNK_BYTES
    with pytest.raises(InvalidField):
        chunk_size(MAX_CHUNK_BYTES + 1)


def test_a_file_that_changed_is_an_error_not_other_bytes(tmp_path: Path) -> None:
    """A file cut or removed under the server is refused: a device would otherwise wait for bytes that never come."""
    path = tmp_path / "x"
    path.write_bytes(bytes(100))
    served = BundleStore().add_path(path)
    path.write_bytes(bytes(50))
    with pytest.raises(BundleError):
        served.read(40, 60)
    path.unlink()
    with pytest.raises(BundleError):
        served.read(0, 10)
    with pytest.raises(BundleError):
        BundleStore().add_path(path)
