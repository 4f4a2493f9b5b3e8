"""The inside of the sandbox: a script of the standard library alone, started by `sandbox.py`, one process a role.

It reads what to do from standard input (JSON), has a child of itself put up the walls and play the role, and ends
the child when the starter lets go of the lifeline. Roles: ``answer`` is the generated program, which is called;
``tests`` calls it, from a jail of its own, and says on ``say`` what came of it; ``look`` only puts up the walls.
The program never shares a process with its tests, so nothing that it does to its own interpreter (equality
redefined, an early exit, "passed" on its output) reaches the verdict: plain values are all that crosses.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.util
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

NOBODY = 65534
HIDDEN = ("/run", "/var/run", "/tmp", "/var/tmp", "/dev/shm")
"""Where other programs leave sockets and files; empty inside."""
AWAY = "/mnt"
"""Where the standard library is shown if only root can reach its own place."""
NETWORK = ("socket", "_socket", "ctypes", "_ctypes", "ssl", "_ssl")
"""Modules that are taken away where the kernel cannot take the network away."""
MAX_REPLY = 1 << 20
"""Bytes of one value on its way from the program to its tests."""

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
_SYS_MOUNT_SETATTR = 442
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_ATTR_RDONLY = 1
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_CAPABILITY_VERSION_3 = 0x20080522


# ---------------------------------------------------------------------------------------------------------- the walls


def _libc(name: str, *arguments: Any) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def mount_space() -> str:
    """Which mount namespace this process is in; "" where there are none."""
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""


STARTED_IN = mount_space()


def leave_root() -> None:
    """Become nobody: the limit on processes does not bind root. Raises OSError where that is not allowed."""
    if not _open_to_all(sys.base_prefix):
        _move_python(AWAY)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    _libc("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self stays root's, and the id maps are there


def _open_to_all(path: str) -> bool:
    """Whether every user can get there."""
    path = os.path.realpath(path)
    while os.stat(path).st_mode & 0o001:
        if path == "/":
            return True
        path = os.path.dirname(path)
    return False


def _move_python(to: str) -> None:
    """Show the standard library at another place too, in a mount namespace of its own, and import from there."""
    _libc("unshare", _NEWNS)
    _libc("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    _libc("mount", os.fsencode(sys.base_prefix), os.fsencode(to), None, _MS_BIND, None)
    prefix = sys.base_prefix

    def moved(paths: Iterable[str]) -> list[str]:
        return [to + path[len(prefix) :] if path.startswith(prefix) else path for path in paths]

    sys.path[:] = moved(sys.path)
    for module in list(sys.modules.values()):
        if isinstance(getattr(module, "__path__", None), list):  # what a package imports of itself later
            module.__path__ = moved(module.__path__)


def new_spaces(files: bool) -> None:
    """User, network, process and IPC namespaces of its own; with ``files`` also one of mounts. Children are inside."""
    user, group = os.geteuid(), os.getegid()
    _libc("unshare", _NEWUSER | _NEWNET | _NEWPID | _NEWIPC | (_NEWNS if files else 0))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as stream:
            stream.write(text)


def own_files(home: str, size: int) -> None:
    """Everything read-only, `HIDDEN` empty, and ``home`` a fresh memory disk of ``size`` bytes.

    Raises PermissionError outside a mount namespace of its own, where this would hide the machine's own files.
    """
    if mount_space() == STARTED_IN:
        raise PermissionError("no mount namespace of its own")
    _libc("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    python = [os.path.realpath(path) for path in (sys.executable, sys.prefix, sys.base_prefix)]
    hidden = {os.path.realpath(path) for path in HIDDEN if os.path.isdir(path)}
    for path in sorted(hidden):
        if not any(one.startswith(path + "/") for one in python):
            _tmpfs(path, 65536)
    os.makedirs(home, exist_ok=True)  # it may have been in one of them
    all_read_only = ctypes.byref((ctypes.c_uint64 * 4)(_ATTR_RDONLY))
    _libc("syscall", _SYS_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, all_read_only, 32)
    _tmpfs(home, size)


def _tmpfs(path: str, size: int) -> None:
    options = f"size={size},nr_inodes=64,mode=0700".encode()
    _libc("mount", b"tmpfs", os.fsencode(path), b"tmpfs", _MS_NOSUID | _MS_NODEV, options)


def no_powers() -> None:
    """No capabilities, in the namespaces of its own either, and none to be had."""
    _libc("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _libc("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def set_limits(limits: dict[str, int]) -> None:
    """Hard limits: time on the processor, memory, sizes of files, no further process or thread, no core."""
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: limits["cpu_s"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: 32,
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_NPROC: 0,
    }
    for which, most in bounds.items():
        resource.setrlimit(which, (most, most))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing too much is an error, not an end


# ----------------------------------------------------------------------------------------------------- what may cross


class Opaque:
    """What came in place of a value that is not plain: equal to nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


def pack(value: Any) -> Any:
    """A plain value as JSON, exactly; anything else as something that equals nothing.

    Sub-classes of plain types (Counter, named tuples) become plain.
    """
    if value is None or value is True or value is False:
        return value
    for kind, tag, of in _PACKERS:
        if isinstance(value, kind):
            return [tag, of(value)]
    return ["?", None]


def unpack(packed: Any) -> Any:
    """The value that was packed."""
    if packed is None or isinstance(packed, bool):
        return packed
    tag, value = packed
    return _UNPACKERS[tag](value)


_PACKERS: tuple[tuple[type, str, Any], ...] = (
    (int, "i", lambda v: format(int.__add__(v, 0), "x")),
    (float, "f", lambda v: float.hex(v)),
    (str, "s", lambda v: str.__str__(v)),
    (bytes, "b", lambda v: bytes.hex(v)),
    (complex, "c", lambda v: [float.hex(v.real), float.hex(v.imag)]),
    (list, "l", lambda v: [pack(one) for one in list.__iter__(v)]),
    (tuple, "t", lambda v: [pack(one) for one in tuple.__iter__(v)]),
    (set, "e", lambda v: [pack(one) for one in set.__iter__(v)]),
    (frozenset, "z", lambda v: [pack(one) for one in frozenset.__iter__(v)]),
    (dict, "d", lambda v: [[pack(key), pack(one)] for key, one in dict.items(v)]),
)
_UNPACKERS: dict[str, Any] = {
    "i": lambda v: int(v, 16),
    "f": float.fromhex,
    "s": str,
    "b": bytes.fromhex,
    "c": lambda v: complex(float.fromhex(v[0]), float.fromhex(v[1])),
    "l": lambda v: [unpack(one) for one in v],
    "t": lambda v: tuple(unpack(one) for one in v),
    "e": lambda v: {unpack(one) for one in v},
    "z": lambda v: frozenset(unpack(one) for one in v),
    "d": lambda v: {unpack(key): unpack(one) for key, one in v},
    "?": lambda _: Opaque(),
}


# ---------------------------------------------------------------------------------------------------------- the roles


class _Source(importlib.abc.InspectLoader):
    """Imports a module from its text. The one place where text becomes a program, behind the walls."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, fullname: str) -> str:
        """The text."""
        del fullname
        return self.text


def load(name: str, text: str) -> ModuleType:
    """A module made of ``text``; raises whatever running it raises."""
    loader = _Source(text)
    spec = importlib.util.spec_from_loader(name, loader)
    if spec is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def play_answer(task: dict[str, Any]) -> None:
    """Load the program and answer calls until there are no more."""
    calls = os.fdopen(task["read"], "rb")

    def reply(kind: str, value: Any) -> None:
        line = json.dumps([kind, value]).encode() + b"\n"
        while line:
            line = line[os.write(task["write"], line) :]

    try:
        function = getattr(load("answer", task["code"]), task["entry"])
    except BaseException as error:  # sys.exit() in the text is a wrong answer like any other
        reply("raised", told(error))
        return
    reply("value", None)
    for call in calls:
        arguments, named = json.loads(call)
        try:
            value = pack(function(*unpack(arguments), **unpack(named)))
        except BaseException as error:
            reply("raised", told(error))
        else:
            reply("value", value)


class Failed(Exception):
    """The program did not return a value."""


class Remote:
    """The program's function as its tests see it."""

    def __init__(self, read: int, write: int) -> None:
        self._replies = os.fdopen(read, "rb")
        self._write = write

    def wait(self) -> Any:
        """The next value. Raises `Failed` where the program raised, ended, or said too much."""
        line = self._replies.readline(MAX_REPLY)
        if not line.endswith(b"\n"):
            raise Failed("a value too large" if line else "the program ended, by itself or by a limit")
        try:
            kind, value = json.loads(line)
            value = unpack(value) if kind == "value" else str(value)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Failed("no value") from error
        if kind != "value":
            raise Failed(value)
        return value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        line = json.dumps([pack(arguments), pack(named)]).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._write, line) :]
        except OSError as error:
            raise Failed("the program ended, by itself or by a limit") from error
        return self.wait()


def play_tests(task: dict[str, Any]) -> dict[str, Any]:
    """Run the tests on the program behind the pipes: passed or not, and why not."""
    remote = Remote(task["read"], task["write"])
    try:
        remote.wait()
        module = load("tests", task["code"])
        setattr(module, task["entry"], remote)
        module.check(remote)
    except BaseException as error:
        return {"passed": False, "why": str(error) if isinstance(error, Failed) else told(error)}
    return {"passed": True, "why": ""}


def told(error: BaseException) -> str:
    """An error in a line."""
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:
        return "an error that cannot be told"


# ------------------------------------------------------------------------------------------------------ the two of us


def say(task: dict[str, Any], what: dict[str, Any]) -> None:
    """One line to the starter."""
    os.write(task["say"], json.dumps(what).encode() + b"\n")


def put_up(walls: list[str], home: str, limits: dict[str, int]) -> None:
    """The walls that are not inherited. Raises OSError or ValueError where one cannot be had."""
    if "files" in walls:
        own_files(home, limits["disk_bytes"])
    os.chdir(home)
    if "spaces" in walls:
        no_powers()
    else:
        sys.modules.update(dict.fromkeys(NETWORK))  # type: ignore[arg-type]  # None: importing it fails
    set_limits(limits)


def inside(task: dict[str, Any]) -> None:
    """The child: put up what is left of the walls, then play."""
    try:
        put_up(task["walls"], task["home"], task["limits"])
    except (OSError, ValueError) as error:
        say(task, {"broken": told(error)})
        return
    say(task, {"walls": "up"})
    if task["role"] == "tests":
        say(task, play_tests(task))
    else:
        os.close(task["say"])  # the program has nothing to say to the starter
        if task["role"] == "answer":
            play_answer(task)


def main() -> None:
    """Fork the child behind the walls that a child inherits, wait for its end or the starter's, and end it."""
    task = json.load(sys.stdin)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    ended, alive = os.pipe()
    try:
        if "nobody" in task["walls"]:
            leave_root()
        if "spaces" in task["walls"]:
            new_spaces("files" in task["walls"])
        child = os.fork()
    except OSError as error:
        say(task, {"broken": told(error)})
        return
    if child == 0:
        for fd in (ended, task["lifeline"]):
            os.close(fd)
        try:
            inside(task)
        finally:
            os._exit(0)
    for fd in (alive, *(task[name] for name in ("say", "read", "write") if name in task)):
        os.close(fd)
    select.select([ended, task["lifeline"]], [], [])
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
