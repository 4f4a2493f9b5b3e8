"""Labels as JSON lines: a header that says how they were made, then one row per prompt."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outrider.cloud.judge.families import Split
from outrider.cloud.judge.features import CandidateStates, State, States
from outrider.cloud.judge.measures import Measures
from outrider.cloud.judge.mine import Label, Mined, Source
from outrider.cloud.judge.rowfile import RowFile, whole_lines
from outrider.shared.errors import ConfigError

FORMAT = 1
_STATES = ("candidate", "previous")


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt's labels, read back."""

    index: int
    family: str
    template: str
    split: Split
    prompt: str
    """SHA-256 of the user's message, hex."""
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Labels:
    """A file's content."""

    header: Mapping[str, Any]
    rows: tuple[Row, ...]
    """By index."""
    digest: str
    """SHA-256 over header and rows in that order, hex: the same wherever writing was interrupted."""


class LabelFile:
    """Appends rows; goes on where an earlier run of the same settings stopped."""

    def __init__(self, path: Path, header: Mapping[str, Any], option: str = "--out") -> None:
        """Raises ConfigError (``option``) naming what differs if the file was begun with other settings."""
        self._file = RowFile(path, {"format": FORMAT, **header}, option)
        self.done = {int(row["index"]) for row in self._file.rows}
        """Indices of prompts that need no more mining."""

    def add(self, mined: Mined) -> None:
        """Write one prompt's row through to the file."""
        self._file.add(_row(mined))
        self.done.add(mined.index)


def read_labels(path: Path, option: str = "LABELS") -> Labels:
    """All rows of a file. Raises ConfigError (``option``) naming the line that is none."""
    try:
        lines = whole_lines(path)
    except OSError as error:
        raise ConfigError(option, f"{path} cannot be read: {error.strerror}") from error
    if not lines:
        raise ConfigError(option, f"{path} is empty")
    rows: list[tuple[int, str, Row]] = []
    header: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
            if number == 1:
                header = content
                if header["format"] != FORMAT:
                    raise ValueError(f"format {header['format']}, expected {FORMAT}")
            else:
                row = _read_row(content)
                rows.append((row.index, line, row))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(option, f"{path.name}:{number}: {error}") from error
    rows.sort(key=lambda one: one[0])
    digest = hashlib.sha256("\n".join([lines[0], *(line for _, line, _ in rows)]).encode()).hexdigest()
    return Labels(header, tuple(row for _, _, row in rows), digest)


def _row(mined: Mined) -> dict[str, Any]:
    task = mined.task
    return {
        "index": mined.index,
        "family": task.family,
        "template": task.template,
        "split": task.split,
        "prompt": hashlib.sha256(task.prompt.encode()).hexdigest(),
        "answer": mined.answer,
        "reference": mined.reference,
        "right": task.answer,
        "written": mined.written,
        "labels": [_label(label) for label in mined.labels],
    }


def _label(label: Label) -> dict[str, Any]:
    content: dict[str, Any] = {
        "place": label.place,
        "token": label.token,
        "instead_of": label.instead_of,
        "good": label.good,
        "source": label.source,
        "measures": label.measures.to_json(),
    }
    for where, states in zip(_STATES, (label.states.candidate, label.states.previous), strict=True):
        content[where] = [_packed(states.prenorm), _packed(states.postnorm)]
    return content


def _read_row(content: Mapping[str, Any]) -> Row:
    return Row(
        index=int(content["index"]),
        family=str(content["family"]),
        template=str(content["template"]),
        split=Split(content["split"]),
        prompt=str(content["prompt"]),
        labels=tuple(_read_labels(content["labels"])),
    )


def _read_labels(given: list[Mapping[str, Any]]) -> Iterator[Label]:
    for one in given:
        candidate, previous = (States(*map(_unpacked, one[where])) for where in _STATES)
        yield Label(
            place=int(one["place"]),
            token=int(one["token"]),
            instead_of=int(one["instead_of"]),
            good=bool(one["good"]),
            source=Source(one["source"]),
            states=CandidateStates(candidate, previous),
            measures=Measures.from_json(one["measures"]),
        )


def _packed(state: State) -> str:
    return base64.b64encode(np.ascontiguousarray(state, "<f4").tobytes()).decode("ascii")


def _unpacked(text: str) -> State:
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
