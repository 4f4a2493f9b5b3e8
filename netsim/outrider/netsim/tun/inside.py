"""First process of the namespace: makes its end of the link, hands the descriptor out, becomes the command."""

from __future__ import annotations

import os
import socket
import sys

from outrider.netsim.errors import BadConfig
from outrider.netsim.tun.device import ip, open_tun, set_up

NAME = "link0"


def main(arguments: list[str]) -> int:
    """`FD ADDRESS COMMAND …`: only returns if something failed, with its exit code."""
    handle, address, *command = arguments
    try:
        ip("link", "set", "lo", "up")
        fd, name = open_tun(NAME)
        set_up(name, address)
        with socket.socket(fileno=int(handle)) as out:
            socket.send_fds(out, [b"t"], [fd])
        os.close(fd)
    except BadConfig as error:
        print(error, file=sys.stderr)
        return 78
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
