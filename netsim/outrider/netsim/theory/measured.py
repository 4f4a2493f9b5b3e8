"""The theorems on two real models: laws along real texts, read from a file, and what they predict.

The file (``outrider-sim theory --pair FILE``, JSON lines, also ``.gz``) holds, for every position of every text, the
draft's sparse law *as drawn from* and the target's probabilities on the same tokens. That is all it takes: a token that
the draft never says has draft probability 0, so every quantity here is linear in the target on those tokens together,
and one number, the rest of the target's mass, stands for all of them without loss.

First line, about all texts::

    {"format": "outrider-laws", "version": 1, "bits": 16, "target": "name", "draft": "name", …}

Then one line a text::

    {"prompt": "id", "rule": null,
     "positions": [{"draft": [40000, 25536], "target": [0.5, 0.25], "at": 1, "rejected": null}, …]}

========= ========================================================================================================
bits      the draft's laws are counts / 2^bits, each count ≥ 1, summing to 2^bits
prompt    texts of one prompt are averaged before errors are taken over prompts
rule      null: a text the target wrote alone. Else ``{"epsilon": 0.1, "replace": "opt"}`` (or ``"uno"``): a text
          written by the ε-rule on this pair (ε = 0 with opt is speculative decoding), chains only
positions of the generated tokens, in order; both laws after all warping, given the text before them
draft     counts of the drafted tokens, any order, at least one
target    the target's probabilities of the same tokens, in the same order
at        which of them the text goes on with; -1: a token outside, which the draft cannot say
rejected  in a rule's text: whether a draft was rejected here; null: nothing was tested here (a bonus token)
========= ========================================================================================================

The first line may hold more (temperature, lengths, versions); it is not read. On texts of the target, with r = the
probability that a round starts here, given the text, Theorem 3's f / target probability becomes a recursion along the
text: r' = (r·root(x) + (1 - r)·[target - draft]+(x)) / target(x). Its mean over the target's texts is the theorem,
so the mean over texts estimates it without playing a single round; windows likewise. On texts of a rule,
1{rejected} - rejection has mean 0 given the text so far, which tests the real implementation.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory.pairs import Pair

Replace = Literal["opt", "uno"]

FORMAT, VERSION = "outrider-laws", 1
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class RuleUsed:
    """The ε-rule that wrote a text."""

    epsilon: float
    replace: Replace


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """One text with its laws; `rule` is None for a text of the target alone."""

    prompt: str
    rule: RuleUsed | None
    pair: Pair  # [tokens, drafted + 1]: the drafted tokens, and last all others; short rows are filled with zeros
    at: NDArray[np.int64]  # [tokens]: column the text goes on with
    tested: NDArray[np.bool_]  # [tokens]
    rejected: NDArray[np.bool_]  # [tokens]

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A file of laws."""

    target: str
    draft: str
    texts: tuple[Text, ...]

    def by_target(self) -> list[Text]:
        """The texts that the target wrote alone."""
        return [text for text in self.texts if text.rule is None]

    def by_rule(self) -> dict[RuleUsed, list[Text]]:
        """The texts of each rule, in order of ε."""
        rules = {text.rule for text in self.texts if text.rule is not None}
        ordered = sorted(rules, key=lambda rule: (rule.epsilon, rule.replace))
        return {rule: [text for text in self.texts if text.rule == rule] for rule in ordered}


def read(path: Path) -> Measured:
    """Read a file of laws. Raises `BadConfig`, with the line and the field, when it is not one."""
    try:
        with closing(_lines(path)) as lines:
            header, texts = _parse(path, lines)
    except OSError as error:
        raise BadConfig("pair", f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, EOFError, zlib.error) as error:
        raise BadConfig("pair", f"{path} is no text file of JSON lines: {error}") from error
    if not texts:
        raise BadConfig("pair", f"{path} holds no text after its first line")
    return Measured(str(header["target"]), str(header["draft"]), texts)


def _parse(path: Path, lines: Iterator[str]) -> tuple[dict[str, Any], tuple[Text, ...]]:
    first = next(lines, None)
    if first is None:
        raise _bad(path, 1, "the file is empty")
    header = _object(path, 1, first)
    bits = _header(path, header)
    texts = (_text(path, number, line, bits) for number, line in enumerate(lines, 2) if line.strip())
    return header, tuple(texts)


def _lines(path: Path) -> Generator[str, None, None]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as source:
            yield from source
    else:
        with path.open(encoding="utf-8") as source:
            yield from source


def _bad(path: Path, number: int, why: str) -> BadConfig:
    return BadConfig("pair", f"{path}, line {number}: {why}")


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _bad(path, number, f"not JSON ({error})") from error
    if not isinstance(found, dict):
        raise _bad(path, number, "expected one JSON object a line")
    return found


def _header(path: Path, header: dict[str, Any]) -> int:
    if header.get("format") != FORMAT or header.get("version") != VERSION:
        raise _bad(path, 1, f'expected "format": "{FORMAT}", "version": {VERSION}')
    for name in ("target", "draft"):
        if not isinstance(header.get(name), str):
            raise _bad(path, 1, f"{name}: expected a name")
    bits = header.get("bits")
    if type(bits) is not int or not 1 <= bits <= 32:
        raise _bad(path, 1, f"bits: expected 1 to 32, got {bits!r}")
    return bits


def _text(path: Path, number: int, line: str, bits: int) -> Text:
    found = _object(path, number, line)
    if unknown := set(found) - {"prompt", "rule", "positions"}:
        raise _bad(path, number, f"unknown: {', '.join(sorted(unknown))}")
    prompt, positions = found.get("prompt"), found.get("positions")
    if not isinstance(prompt, str):
        raise _bad(path, number, "prompt: expected a name")
    if not isinstance(positions, list) or not positions:
        raise _bad(path, number, "positions: expected a list, of one at least")
    try:
        rule = _rule(found.get("rule"))
    except ValueError as error:
        raise _bad(path, number, str(error)) from None
    read_positions = []
    for index, entry in enumerate(positions):
        try:
            read_positions.append(_position(entry, bits, of_rule=rule is not None))
        except ValueError as error:
            raise _bad(path, number, f"positions[{index}]: {error}") from None
    return _stack(prompt, rule, read_positions, bits)


def _rule(found: object) -> RuleUsed | None:
    if found is None:
        return None
    if not isinstance(found, dict) or set(found) != {"epsilon", "replace"}:
        raise ValueError("rule: expected null or epsilon and replace")
    if found["replace"] not in ("opt", "uno"):
        raise ValueError(f"rule.replace: expected opt or uno, got {found['replace']!r}")
    if not _number(found["epsilon"]) or found["epsilon"] < 0:
        raise ValueError(f"rule.epsilon: expected 0 or more, got {found['epsilon']!r}")
    return RuleUsed(float(found["epsilon"]), found["replace"])


def _number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class _Position:
    counts: list[int]
    target: list[float]  # the drafted tokens, then the rest
    at: int
    rejected: bool | None


def _position(entry: object, bits: int, *, of_rule: bool) -> _Position:
    if not isinstance(entry, dict) or set(entry) != {"draft", "target", "at", "rejected"}:
        raise ValueError("expected draft, target, at and rejected")
    counts, chances, at, rejected = entry["draft"], entry["target"], entry["at"], entry["rejected"]
    if not isinstance(counts, list) or not counts or any(type(c) is not int or c < 1 for c in counts):
        raise ValueError("draft: expected counts of 1 or more, one at least")
    if sum(counts) != 2**bits:
        raise ValueError(f"draft: the counts sum to {sum(counts)}, not to 2^{bits}")
    if not isinstance(chances, list) or len(chances) != len(counts):
        raise ValueError(f"target: expected {len(counts)} probabilities, one for each drafted token")
    if not all(_number(chance) and chance >= 0 for chance in chances) or sum(chances) > 1 + _ROUNDING:
        raise ValueError("target: expected probabilities that sum to at most 1")
    if type(at) is not int or not -1 <= at < len(counts):
        raise ValueError(f"at: expected -1 to {len(counts) - 1}, got {at!r}")
    if rejected is not None and (type(rejected) is not bool or not of_rule):
        raise ValueError("rejected: expected true, false or null; null in a text without rule")
    if rejected is False and at == -1:
        raise ValueError("rejected: false, but a token outside the draft's law cannot have been accepted")
    target = [*chances, max(0.0, 1 - sum(chances))]
    if not of_rule and target[at] == 0:
        raise ValueError("at: the target cannot have written a token of probability 0")
    return _Position(counts, target, at, rejected)


def _stack(prompt: str, rule: RuleUsed | None, positions: list[_Position], bits: int) -> Text:
    width = max(len(position.target) for position in positions)
    target, draft = np.zeros((len(positions), width)), np.zeros((len(positions), width))
    for row, position in enumerate(positions):
        drafted = len(position.counts)
        draft[row, :drafted] = position.counts
        target[row, :drafted] = position.target[:-1]
        target[row, -1] = position.target[-1]
    return Text(
        prompt,
        rule,
        Pair(target / target.sum(axis=-1, keepdims=True), draft / 2**bits),
        np.array([position.at % width for position in positions]),
        np.array([position.rejected is not None for position in positions]),
        np.array([bool(position.rejected) for position in positions]),
    )
