"""HumanEval: from a chat answer to a program, and from the program to a verdict.

The task: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", section 2.2. There a model continues the
prompt; an instructed model answers it, mostly with the whole function in a fenced block, so that is looked for first.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from outrider.cloud.evaluate.scoring.sandbox import Sandbox, Verdict

_FENCE = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CODE = re.compile(r"^(?:def \w|async def|class \w|@\w|import \w|from [\w.]+ import )", re.MULTILINE)
_DEFINITION = r"^(?:async\s+)?def\s+{}\s*\("


@dataclass(frozen=True, slots=True)
class CodeTask:
    """A function to be written, and its tests."""

    name: str
    prompt: str
    """Imports and helpers, then the function's head and docstring."""
    entry: str
    """The function."""
    tests: str
    """Source that defines ``check(candidate)``, which raises if the candidate is wrong."""

    @property
    def message(self) -> str:
        """What the model is asked."""
        return self.prompt

    @property
    def preamble(self) -> str:
        """What stands before the function: imports and helpers."""
        return self.prompt[: _definitions(self.prompt, self.entry)[-1]]


def _definitions(text: str, entry: str) -> list[int]:
    """Where ``entry`` is defined."""
    found = re.finditer(_DEFINITION.format(re.escape(entry)), text, re.MULTILINE)
    return [one.start() for one in found]


def defines(text: str, entry: str) -> bool:
    """Whether a text defines this function on its top level."""
    return bool(_definitions(text, entry))


def program(task: CodeTask, answer: str) -> str | None:
    """The program that an answer stands for; None if it holds none that could be loaded.

    Tried in turn: fenced blocks (the last one may be open, as where an answer was cut) that define the function, the
    answer from its first line of code on, and the answer as the function's body. What does not parse is left out line
    by line from the end, in cut and in whole answers alike.
    """
    for block in [*_FENCE.findall(answer), _from_code_on(answer)]:
        if defines(block, task.entry):
            found = _parsing(task.preamble, block, task.entry)
            if found is not None:
                return found
    if defines(answer, task.entry):
        return None
    blocks = _FENCE.findall(answer)
    body = blocks[0] if blocks else answer
    return _parsing(task.prompt.rstrip() + "\n", _indented(body), task.entry)


def _from_code_on(answer: str) -> str:
    """An answer without the prose before its code."""
    found = _CODE.search(answer)
    return answer[found.start() :] if found else answer


def _indented(body: str) -> str:
    """A body as it has to stand below a function's head."""
    lines = body.strip("\n").split("\n")
    if lines and lines[0][:1] not in ("", " ", "\t"):
        lines = ["    " + line for line in lines]
    return "\n".join(lines) + "\n"


def _parsing(head: str, code: str, entry: str) -> str | None:
    """``head`` and as many lines of ``code`` as parse and hold the function with a body of its own; None if none do."""
    lines = code.split("\n")
    for count in range(len(lines), 0, -1):
        text = head + "\n".join(lines[:count]) + "\n"
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return text if _has_body(tree, entry) else None
    return None


def _has_body(tree: ast.Module, entry: str) -> bool:
    """Whether the last definition of the function does more than stand there with a docstring."""
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == entry
    ]
    if not found:
        return False
    body = found[-1].body
    return len(body) > 1 or not (isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant))


class CodeScorer:
    """Verdicts on answers; the same program is run once."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._known: dict[tuple[str, str], Verdict] = {}

    def score(self, task: CodeTask, answer: str) -> Verdict:
        """Whether the answer's program passes the task's tests. Raises `SandboxFailed`."""
        text = program(task, answer)
        if text is None:
            return Verdict(False, "no program")
        key = (task.name, text)
        if key not in self._known:
            tests = f"{task.preamble}\n{task.tests}\n"
            self._known[key] = self.sandbox.run(text, task.entry, tests)
        return self._known[key]
