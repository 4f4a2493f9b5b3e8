"""TUN devices: a file descriptor that reads and writes IP packets, and its address."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess

from outrider.netsim.errors import BadConfig

_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_REQUEST = struct.Struct("16sH22x")
MTU = 1500
TOOLS = ("ip", "unshare")


def open_tun(pattern: str) -> tuple[int, str]:
    """A new device by a name such as `outrider%d`: its descriptor, not blocking, and its name.

    The device goes when the descriptor is closed. Raises `BadConfig` without the device file or the right to make one.
    """
    try:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        raise _refusal(error) from error
    try:
        answer = fcntl.ioctl(fd, _TUNSETIFF, _REQUEST.pack(pattern.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        os.close(fd)
        raise _refusal(error) from error
    return fd, _REQUEST.unpack(answer)[0].rstrip(b"\0").decode()


def set_up(name: str, address: str) -> None:
    """Give a device its address, e.g. `10.213.0.1/30`, and start it. Raises `BadConfig` if `ip` refuses."""
    ip("addr", "add", address, "dev", name)
    ip("link", "set", name, "mtu", str(MTU), "up")


def ip(*arguments: str) -> None:
    """Run `ip`. Raises `BadConfig` with what it says if it fails."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadConfig("tun", f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def check_tools() -> None:
    """Raises `BadConfig` naming the tools that are missing."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise BadConfig(
            "tun",
            f"expected {' and '.join(missing)} on the path (packages iproute2, util-linux); use proxy instead",
        )


def _refusal(error: OSError) -> BadConfig:
    return BadConfig(
        "tun",
        f"expected the right to make a TUN device (root, /dev/net/tun): {error.strerror}; use proxy instead",
    )
