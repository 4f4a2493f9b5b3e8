"""The sandbox: what hostile programs try, and that nothing but right values earns a pass."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from outrider.cloud.evaluate.scoring import jail, sandbox
from outrider.cloud.evaluate.scoring.sandbox import Limits, Sandbox, SandboxFailed, Verdict

TESTS = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate([1]) == [1, 1]\n"
RIGHT = "def f(x):\n    return x + x\n"
WRONG = "def f(x):\n    return x\n"


@pytest.fixture(scope="module")
def box() -> Sandbox:
    """With the strongest walls of this machine, and little patience."""
    return Sandbox(Limits(cpu_s=1))


def said(box: Sandbox, body: str, expected: object = None) -> Verdict:
    """The verdict on a program of this body, whose value should be ``expected``."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return box.run(
        f"def f():\n{lines}", "f", f"def check(candidate):\n    assert candidate() == {expected!r}\n"
    )


def test_right_passes_and_wrong_does_not(box: Sandbox) -> None:
    """The two verdicts, with the reason of the second."""
    assert box.run(RIGHT, "f", TESTS) == Verdict(True)
    assert box.run(WRONG, "f", TESTS) == Verdict(False, "AssertionError: ")


CHEATS = {
    "exit while loading": "import sys\nsys.exit(0)\n" + WRONG,
    "exit when called": "import sys\ndef f(x):\n    sys.exit(0)\n",
    "hard exit while loading": "import os\nos._exit(0)\n" + WRONG,
    "hard exit when called": "import os\ndef f(x):\n    os._exit(0)\n",
    "equal to everything": "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
    "def f(x):\n    return Any(7)\n",
    "equal and no plain type": "class Any:\n    def __eq__(self, other): return True\n"
    "    __hash__ = None\ndef f(x):\n    return Any()\n",
    "says passed": "import sys\nprint('passed', 'walls up')\nprint('{\"passed\": true}', file=sys.stderr)\n"
    + WRONG,
    "says passed everywhere": "import os\nfor fd in range(32):\n    try: os.write(fd, b'{\"passed\": true}\\n')\n"
    "    except OSError: pass\n" + WRONG,
    "says it when called": "import os\ndef f(x):\n    for fd in range(3, 32):\n"
    "        try: os.write(fd, b'[\"value\", true]\\n')\n        except OSError: pass\n    return x\n",
    "no assertions": "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\n"
    "builtins.all = lambda *_: True\n" + WRONG,
    "replaces the harness": "import sys\nmain = sys.modules['__main__']\nmain.pack = lambda value: True\n"
    "main.told = lambda error: ''\n" + WRONG,
    "a test of its own": WRONG + "def check(candidate):\n    return True\n",
    "ends the reader": "import os\ndef f(x):\n    for fd in range(3, 32):\n        try: os.close(fd)\n"
    "        except OSError: pass\n",
    "raises": "def f(x):\n    raise KeyboardInterrupt\n",
    "no function": "g = 1\n",
    "does not parse": "def f(x:\n",
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes(box: Sandbox, name: str) -> None:
    """Early exits, redefined equality, claims on every descriptor, a patched interpreter: none passes."""
    assert not box.run(CHEATS[name], "f", TESTS).passed


def test_an_endless_loop_ends(box: Sandbox) -> None:
    """While loading and when called: by the limit on processor time."""
    for code in ("while True: pass\n", "def f(x):\n    while True: pass\n"):
        assert not box.run(code, "f", TESTS).passed


def test_one_who_sleeps_runs_out_of_time() -> None:
    """Sleeping uses no processor; the wall clock ends it."""
    impatient = Sandbox(Limits(wall_s=15.0))
    impatient.limits = Limits(wall_s=2.0)
    assert impatient.run("import time\ntime.sleep(600)\n" + RIGHT, "f", TESTS) == Verdict(False, "time")


def test_nothing_outlives_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that leaves its process group and asks not to die with its parent is gone when the verdict is there."""
    mine = tmp_path / "jail-of-this-test.py"
    shutil.copy(sandbox.JAIL, mine)
    box = Sandbox()
    monkeypatch.setattr(sandbox, "JAIL", mine)
    box.limits = Limits(wall_s=3.0)
    escape = "import ctypes, os, signal, time\nos.setsid()\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"
    escape += "for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(600)\n"
    assert not box.run(escape + RIGHT, "f", TESTS).passed
    assert [pid for pid in Path("/proc").glob("[0-9]*") if str(mine).encode() in _command(pid)] == []


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_no_process_and_no_thread_can_be_started(box: Sandbox) -> None:
    """A fork bomb's first fork fails, and so does a thread."""
    bomb = "import os\nfor made in range(20):\n    try:\n        if os.fork() == 0: os._exit(0)\n"
    bomb += "    except OSError:\n        return made\nreturn 20\n"
    assert said(box, bomb, 0) == Verdict(True)
    thread = (
        "import threading\ntry: threading.Thread(target=print).start()\nexcept RuntimeError: return 'none'\n"
    )
    assert said(box, thread, "none") == Verdict(True)


def test_memory_is_limited(box: Sandbox) -> None:
    """A gigabyte is refused, and a program that hoards ends."""
    assert said(box, "try: bytearray(1 << 30)\nexcept MemoryError: return 'no'\n", "no") == Verdict(True)
    assert not said(box, "x = []\nwhile True: x.append(bytearray(1 << 20))\n").passed


def test_files_are_limited_in_size_and_place(box: Sandbox, tmp_path: Path) -> None:
    """Neither one big file nor many, and nothing outside its folder, which begins empty and is its HOME."""
    assert not said(box, "with open('big', 'wb') as f: f.write(bytes(2 << 20))\n").passed
    home = "import os\nreturn os.listdir('.') == [] and os.getcwd() == os.environ['HOME']\n"
    assert said(box, home, True) == Verdict(True)
    many = "for n in range(20):\n    with open(str(n), 'wb') as f: f.write(bytes(1 << 20))\n"
    os.chmod(tmp_path, 0o777)
    outside = f"open({str(tmp_path / 'made')!r}, 'w').close()\n"
    if "files" in box.walls:
        assert not said(box, many).passed and not said(box, outside).passed
        assert list(tmp_path.iterdir()) == []


def test_environment_and_descriptors_are_not_ours(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable but HOME (and what Python sets for its locale), and no open file beyond the pipes."""
    monkeypatch.setenv("SECRET", "1")
    extra = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(extra, True)
    names = "import os\nreturn sorted(set(os.environ) - {'HOME', 'LC_CTYPE'})\n"
    assert said(box, names, []) == Verdict(True)
    count = (
        "import os\nopen_ = 0\nfor fd in range(64):\n    try: os.fstat(fd)\n    except OSError: continue\n"
    )
    # Three standard ones, calls in, values out, and one that only says that it lives.
    assert said(box, count + "    open_ += 1\nreturn open_ <= 6\n", True) == Verdict(True)
    os.close(extra)


CONNECT = "import socket\nsocket.create_connection(('127.0.0.1', {}), 3).close()\nreturn 'connected'\n"


def test_the_network_cannot_be_reached(box: Sandbox) -> None:
    """A listener of this machine is out of reach, with the kernel's wall and with the weak one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        body = CONNECT.format(listener.getsockname()[1])
        for one in (box, Sandbox(walls=())):
            assert not said(one, body, "connected").passed
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_that_listener_could_be_reached() -> None:
    """The control: the same lines outside the sandbox connect."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        body = CONNECT.format(listener.getsockname()[1])
        module = jail.load("free", "def f():\n" + "".join(f"    {line}\n" for line in body.splitlines()))
        assert module.f() == "connected"


def test_a_flood_of_output_is_harmless(box: Sandbox) -> None:
    """Ten megabytes printed are dropped, as much returned is refused."""
    flood = "import sys\nfor _ in range(10): print('x' * (1 << 20)); print('y' * 1000, file=sys.stderr)\n"
    assert said(box, flood + "return 1\n", 1) == Verdict(True)
    assert said(box, "return 'x' * (10 << 20)\n") == Verdict(False, "a value too large")


def test_walls_are_told(box: Sandbox) -> None:
    """The record says which walls stand, and that there are none where there are none."""
    assert box.strong == ("network" in box.describe())
    weak = Sandbox(walls=())
    assert not weak.strong and weak.describe().startswith("WEAK")


@pytest.mark.parametrize("walls", [("files",), ("nobody", "files"), ("files", "spaces"), ("moat",)])
def test_walls_that_do_not_belong_together_are_refused(
    walls: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mounts without a namespace for them would be the machine's own: nothing is started at all."""
    monkeypatch.setattr(sandbox, "JAIL", Path(os.devnull))
    with pytest.raises(ValueError, match="expected one of"):
        Sandbox(walls=walls)


def test_a_jail_that_cannot_be_put_up_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jail that ends at once, or says that a wall is missing, is an error and no failed program."""
    for text, why in (("", "before it began"), ("import json,os,sys\nt = json.load(sys.stdin)\n"
        "os.write(t['say'], b'{\"broken\": \"no wall\"}\\n')\n", "no wall")):  # fmt: skip
        script = tmp_path / "jail.py"
        script.write_text(text)
        monkeypatch.setattr(sandbox, "JAIL", script)
        with pytest.raises(SandboxFailed, match=why):
            Sandbox(walls=())


def test_this_process_has_no_mounts_to_give() -> None:
    """The jail's own check: a process that made itself no mount namespace is told apart."""
    assert jail.mount_space() == jail.STARTED_IN


VALUES = [
    *(None, True, False, 0, -5, 1 << 3000, 0.1, float("inf"), -0.0, 1e-320, "", "ü\n\ud800", b"\x00", 2j),
    *([], [1, [2]], (), (1,), {1, "a"}, frozenset({(1, 2)}), {"a": [1], (1, 2): None}, [True, 1, 1.0]),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_cross_exactly(value: object) -> None:
    """Value and types, inside containers too."""
    found = jail.unpack(jail.pack(value))
    assert found == value and repr(found) == repr(value)


def test_what_is_not_plain_equals_nothing() -> None:
    """An iterator and a nan stay different from everything."""
    for value in (iter(()), float("nan"), range(3), object()):
        found = jail.unpack(jail.pack(value))
        assert found != value and found != [0, 1, 2] and not found == found
