"""Runs a generated program against its tests, each in a jail of its own (`jail.py`), and says whether it passed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.shared.errors import OutriderError

NOBODY = 65534
JAIL = Path(__file__).with_name("jail.py")
STRENGTHS = (
    ("nobody", "spaces", "files"),
    ("spaces", "files"),
    ("nobody", "spaces"),
    ("spaces",),
    ("nobody",),
    (),
)
"""Sets of walls, strongest first; the first that this machine allows is used."""
MEANING = {
    "nobody": "the user nobody (needed only where root starts it)",
    "spaces": "network, process, IPC and user namespaces: no network at all, and nothing outlives a run",
    "files": "a mount namespace: everything read-only, a private memory disk to work in",
}
_END_S = 5.0
_LONGEST = 65536


class SandboxFailed(OutriderError):
    """The sandbox itself does not work here; says nothing about any program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one program may use."""

    cpu_s: int = 5
    """On the processor."""
    wall_s: float = 30.0
    """Program and tests together; generous, as a busy machine is not the program's fault."""
    memory_mib: int = 512
    """Address space."""
    file_kib: int = 1024
    """A file."""
    disk_kib: int = 4096
    """All files together, where there is the wall `files`."""

    def words(self) -> dict[str, int]:
        """As the jail reads them."""
        return {
            "cpu_s": self.cpu_s,
            "memory_bytes": self.memory_mib << 20,
            "file_bytes": self.file_kib << 10,
            "disk_bytes": self.disk_kib << 10,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests said."""

    passed: bool
    why: str = ""
    """Why not."""


class Sandbox:
    """A place where generated programs may run."""

    def __init__(self, limits: Limits | None = None, walls: Sequence[str] | None = None) -> None:
        """With the strongest walls that can be had, or those given, one of `STRENGTHS`.

        Raises `SandboxFailed` if they do not stand, ValueError for any other set of walls.
        """
        if walls is not None and tuple(walls) not in STRENGTHS:
            raise ValueError(f"expected one of {STRENGTHS}: {tuple(walls)}")
        self.limits = limits or Limits()
        found = self._strongest() if walls is None else tuple(walls)
        self.walls: tuple[str, ...] = found
        """Names of `MEANING`."""
        self._check()

    @property
    def strong(self) -> bool:
        """Whether the kernel keeps programs from the network; else modules are only taken away."""
        return "spaces" in self.walls

    def describe(self) -> str:
        """The walls in words, for the record."""
        if not self.strong:
            return (
                "WEAK: limits and a hard time-out, but the network is only hidden (no user namespaces here)"
            )
        return "; ".join(MEANING[name] for name in self.walls)

    def run(self, code: str, entry: str, tests: str) -> Verdict:
        """Load ``code``, whose function ``entry`` is given to ``check`` of ``tests`` as plain values in and out.

        ``tests`` is run as a module too, in another jail, where ``entry`` means that function. Raises `SandboxFailed`.
        """
        deadline = time.monotonic() + self.limits.wall_s
        calls, values = os.pipe(), os.pipe()
        with ExitStack() as stack:
            try:
                answer = self._start("answer", code=code, entry=entry, read=calls[0], write=values[1])
                stack.callback(answer.end)
                judge = self._start("tests", code=tests, entry=entry, read=values[0], write=calls[1])
                stack.callback(judge.end)
            finally:
                for fd in (*calls, *values):
                    os.close(fd)
            if not (answer.up(deadline) and judge.up(deadline)):
                return Verdict(False, "time")
            return judge.verdict(deadline)

    def _start(self, role: str, walls: Sequence[str] | None = None, **task: Any) -> _Jail:
        chosen = self.walls if walls is None else walls
        return _Jail({"role": role, "walls": list(chosen), "limits": self.limits.words(), **task})

    def _strongest(self) -> tuple[str, ...]:
        root = os.geteuid() == 0
        for walls in STRENGTHS:
            if "nobody" in walls and not root:
                continue
            jail = self._start("look", walls)
            try:
                jail.up(time.monotonic() + self.limits.wall_s)
                return walls
            except SandboxFailed:
                continue
            finally:
                jail.end()
        raise SandboxFailed("no program can be started in the sandbox", remedy="it needs a POSIX system")

    def _check(self) -> None:
        """A right program passes and a wrong one does not; else no verdict means anything."""
        right = "import collections, hashlib, math, re, typing\ndef twice(x):\n    return x + x\n"
        tests = "def check(candidate):\n    assert candidate([1.5]) == [1.5, 1.5] and twice('a') == 'aa'\n"
        found = self.run(right, "twice", tests), self.run(right.replace("x + x", "x"), "twice", tests)
        if [one.passed for one in found] != [True, False]:
            why = f"its self-test failed with walls {self.walls}: {found[0].why or found[1].why}"
            raise SandboxFailed(why, remedy="can every user read this Python's standard library?")


class _Jail:
    """One process with a role, in a session and a private folder of its own."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="outrider-jail-")
        home = self._folder.name
        if "nobody" in task["walls"] and "files" not in task["walls"]:
            os.chown(home, NOBODY, NOBODY)
        self._said, say = os.pipe()
        lifeline, self._lifeline = os.pipe()
        task |= {"home": home, "say": say, "lifeline": lifeline}
        with tempfile.TemporaryFile() as stream:
            stream.write(json.dumps(task).encode())
            stream.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(JAIL)],
                stdin=stream,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=home,
                env={"HOME": home},
                pass_fds=[task[name] for name in ("say", "lifeline", "read", "write") if name in task],
                start_new_session=True,
            )
        os.close(say)
        os.close(lifeline)
        self._lines = b""

    def up(self, deadline: float) -> bool:
        """Whether the walls stand in time. Raises `SandboxFailed` if they cannot."""
        line = self._line(deadline)
        if line is None:
            return False
        if line.get("walls") != "up":
            raise SandboxFailed(str(line.get("broken", "a sandboxed process ended before it began")))
        return True

    def verdict(self, deadline: float) -> Verdict:
        """What the tests say, or that they did not."""
        line = self._line(deadline)
        if line is None:
            return Verdict(False, "time")
        return Verdict(line.get("passed") is True, str(line.get("why", "the tests ended without a verdict")))

    def _line(self, deadline: float) -> dict[str, Any] | None:
        """The next line: {} if there is none any more, None if it takes too long."""
        while b"\n" not in self._lines and len(self._lines) < _LONGEST:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._said], [], [], left)[0]:
                return None
            more = os.read(self._said, _LONGEST)
            if not more:
                return {}
            self._lines += more
        line, _, self._lines = self._lines.partition(b"\n")
        try:
            found = json.loads(line)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def end(self) -> None:
        """End whatever is left of it: the child by the lifeline, the group by force, then the folder."""
        os.close(self._lifeline)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            pass
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._said)
        self._folder.cleanup()
