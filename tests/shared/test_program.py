"""How the programs end: one line per known error, and the exit code that scripts rely on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHARED = str(Path(__file__).resolve().parents[2] / "shared")

PROGRAM = """
import typer
from outrider.shared import errors, program
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
@app.command()
def main(text: str = "") -> None:
    {body}
program.run(app, "outrider-test")
"""


def end(body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program with one command whose body is given."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body), *arguments],
        env={"PYTHONPATH": SHARED},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("print('text')", 0, ""),
        ("raise errors.LinkDown('no route')", 69, "no route"),
        ("raise errors.Overloaded('full')", 75, "full"),
        ("raise errors.Unauthenticated('who?')", 77, "who?"),
        ("raise errors.FingerprintMismatch('law')", 78, "law"),
        ("raise errors.ConfigError('--server', 'no')", 78, "--server: no"),
        ("raise errors.InvalidField('sampling.top_p', 'above 1')", 2, "sampling.top_p: above 1"),
        ("raise errors.ProtocolViolation('x')", 1, "x"),
        ("raise KeyboardInterrupt", 130, ""),
        ("raise ModuleNotFoundError('x', name='torch.nn')", 78, "outrider[cloud]"),
        ("raise BrokenPipeError", 1, ""),
    ],
)
def test_each_end_has_its_code_and_at_most_one_line(body: str, code: int, said: str) -> None:
    """Known errors end with their exit code and one line on stderr; nothing shows a traceback."""
    done = end(body)
    assert done.returncode == code, done.stderr
    assert said in done.stderr and done.stderr.count("\n") <= 1


def test_wrong_usage_is_two_and_a_bug_keeps_its_traceback() -> None:
    """An unknown option ends with 2; an error of no known kind shows where it came from."""
    assert end("pass", "--no-such-option").returncode == 2
    done = end("raise ZeroDivisionError('a bug')")
    assert done.returncode == 1 and "Traceback" in done.stderr and "a bug" in done.stderr
