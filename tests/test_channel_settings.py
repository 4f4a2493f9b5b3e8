"""Settings of both ends of a connection: what is safe by default, and what is refused before a byte is sent."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.client.channel import ChannelSettings, open_channel
from outrider.cloud.listener import ListenerSettings, listen
from outrider.shared.errors import ConfigError
from outrider.shared.transport import is_loopback, read_tokens, split_address

TOKEN = "correct-horse-battery-staple"


def write(path: Path, text: str) -> Path:
    """A file only its owner can read."""
    path.write_text(text)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return path


def client_errors(tmp_path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Settings of the device that cannot work, and the option the message must name."""
    own, two = write(tmp_path / "own", TOKEN), write(tmp_path / "two", "a 1\nb 2\n")
    yield {"server": "no-port"}, "--server"
    yield {"server": "host:99999"}, "--server"
    yield {"server": "::1:50051"}, "--server"
    yield {"server": "10.0.0.1:5", "insecure": True, "token_file": own}, "--token-file"
    yield {"server": "127.0.0.1:5", "token_file": two}, "--token-file"
    yield {"server": "127.0.0.1:5", "token_file": tmp_path / "absent"}, "--token-file"
    yield {"server": "127.0.0.1:5", "tls_cert": own}, "--tls-key"
    yield {"server": "127.0.0.1:5", "tls_key": own}, "--tls-cert"
    yield {"server": "127.0.0.1:5", "tls_ca": tmp_path / "absent"}, "--tls-ca"
    yield {"server": "10.0.0.1:5", "tls": True, "insecure": True}, "--insecure"


def server_errors(tmp_path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Settings of the verifier that cannot work, and the option the message must name."""
    tokens = write(tmp_path / "own", TOKEN)
    yield {"listen": "0.0.0.0:0"}, "--insecure"
    yield {"listen": "[::]:0"}, "--insecure"
    yield {"listen": "nowhere"}, "--listen"
    yield {"listen": "0.0.0.0:0", "insecure": True, "token_file": tokens}, "--token-file"
    yield {"listen": "127.0.0.1:0", "tls_cert": tokens}, "--tls-key"
    yield {"listen": "127.0.0.1:0", "tls_key": tokens}, "--tls-cert"
    yield {"listen": "127.0.0.1:0", "tls_client_ca": tokens}, "--tls-client-ca"
    yield {"listen": "127.0.0.1:0", "tls_cert": tmp_path / "absent", "tls_key": tokens}, "--tls-cert"
    yield {"listen": "127.0.0.1:0", "token_file": write(tmp_path / "none", "# nobody\n")}, "holds no token"


def test_settings_that_cannot_work_name_the_option(tmp_path: Path) -> None:
    """Unsafe or incomplete settings are refused on both sides before a byte is sent, without quoting a secret."""

    async def run() -> None:
        for settings, named in client_errors(tmp_path):
            with pytest.raises(ConfigError, match=named) as caught:
                open_channel(ChannelSettings(**settings))
            assert TOKEN not in str(caught.value)
        for settings, named in server_errors(tmp_path):
            with pytest.raises(ConfigError, match=named) as caught:
                listen(ListenerSettings(**settings))
            assert TOKEN not in str(caught.value)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("server", "secure"),
    [
        ("127.0.0.1:1", False),
        ("localhost:1", False),
        ("[::1]:1", False),
        ("10.0.0.1:1", True),
        ("example.org:443", True),
    ],
)
def test_only_loopback_is_plain_by_default(server: str, secure: bool) -> None:
    """TLS is the default for every address another machine can have."""
    assert ChannelSettings(server=server).secure is secure
    assert not ChannelSettings(server=server, insecure=True).secure
    assert is_loopback(server) is not secure


def test_addresses() -> None:
    """host:port and [v6]:port are split; 0.0.0.0 is not loopback."""
    assert split_address("example.org:443") == ("example.org", 443)
    assert split_address("[::1]:50051") == ("::1", 50051)
    assert not is_loopback("0.0.0.0:1") and not is_loopback("[::]:1") and is_loopback("127.8.8.8:1")


def test_token_files(tmp_path: Path) -> None:
    """Names, bare tokens and comments are read; doubtful lines are refused by number, never quoted."""
    assert read_tokens(write(tmp_path / "a", "x secret-x\nbare # note\n")) == {
        "x": "secret-x",
        "default": "bare",
    }
    for text in ("a secret-1\na secret-2\n", "a secret-1 more\n", "a secr\u00e9t-1\n"):
        with pytest.raises(ConfigError, match="line") as caught:
            read_tokens(write(tmp_path / "b", text))
        assert "secr" not in str(caught.value)
