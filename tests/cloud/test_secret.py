"""The coins' secret: drawn anew, or from a file that only verifiers can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cloud.config import ServeConfig
from outrider.cloud.secret import coin_secret
from outrider.shared.coins import turn_key
from outrider.shared.errors import ConfigError

GOOD = "00112233445566778899aabbccddeeff"


def write(path: Path, content: bytes, mode: int = 0o600) -> Path:
    """A file of that mode."""
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_without_a_file_every_process_has_its_own() -> None:
    """32 bytes, never the same."""
    one, other = coin_secret(None), coin_secret(None)
    assert len(one) == len(other) == 32 and one != other


@pytest.mark.parametrize("size", [16, 32, 64])
@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_replicas_read_the_same_secret(tmp_path: Path, size: int, mode: int) -> None:
    """In capitals or not, with or without the line's end, also for a group; every size makes a key of coins."""
    secret = bytes(range(size))
    files = [
        write(tmp_path / name, text.encode(), mode)
        for name, text in (
            ("a", secret.hex()),
            ("b", secret.hex().upper() + "\n"),
            ("c", f" {secret.hex()}\r\n"),
        )
    ]
    assert {coin_secret(path) for path in files} == {secret}
    assert len(turn_key(secret, b"session", 1)) == 32


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"", 0o600, "0 bytes"),
        (b"0011", 0o600, "2 bytes"),
        (GOOD[:30].encode(), 0o600, "15 bytes"),
        ((GOOD * 4 + "ff").encode(), 0o600, "65 bytes"),
        (GOOD[:31].encode(), 0o600, "hexadecimal"),
        (b"correct horse battery staple", 0o600, "hexadecimal"),
        (GOOD.encode("utf-16"), 0o600, "hexadecimal"),
        (bytes(range(200, 232)), 0o600, "hexadecimal"),
        (GOOD.encode(), 0o644, "everybody"),
        (GOOD.encode(), 0o602, "everybody"),
    ],
)
def test_a_bad_file_is_refused_before_anything_is_loaded(
    tmp_path: Path, content: bytes, mode: int, says: str
) -> None:
    """By the option's name and with what is wrong; what is in it is not told."""
    path = write(tmp_path / "coins", content, mode)
    with pytest.raises(ConfigError, match=says) as refused:
        ServeConfig(coin_secret_file=path).check()
    assert refused.value.setting == "--coin-secret-file"
    assert GOOD[:8] not in str(refused.value) and "horse" not in str(refused.value)


@pytest.mark.parametrize("name", ["absent", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    """Neither is a folder one."""
    with pytest.raises(ConfigError, match="--coin-secret-file"):
        coin_secret(tmp_path / name)
