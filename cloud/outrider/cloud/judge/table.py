"""Labels as arrays, and who may be fitted on: split by template, never by token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.judge.families import Split
from outrider.cloud.judge.head import Feature, Position
from outrider.cloud.judge.measures import Measures
from outrider.cloud.judge.mine import Source
from outrider.cloud.judge.records import Row
from outrider.shared.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Labels of some prompts, one per line."""

    x: NDArray[np.float64]
    """[n, hidden]"""
    good: NDArray[np.bool_]
    mined: NDArray[np.bool_]
    """False: from a corrupted answer."""
    prompts: tuple[str, ...]
    templates: tuple[str, ...]
    measures: tuple[Measures, ...]

    def __len__(self) -> int:
        return len(self.good)

    def only(self, chosen: NDArray[np.bool_]) -> Table:
        """The labels of a mask [n]."""
        places = np.flatnonzero(chosen)
        return Table(
            self.x[places],
            self.good[places],
            self.mined[places],
            tuple(self.prompts[place] for place in places),
            tuple(self.templates[place] for place in places),
            tuple(self.measures[place] for place in places),
        )

    @property
    def both(self) -> bool:
        """Whether good and bad ones are among them."""
        return bool(self.good.any()) and not bool(self.good.all())


def table(rows: Iterable[Row], feature: Feature, position: Position) -> Table:
    """All labels of these rows. Raises ConfigError ("LABELS") if their states differ in width."""
    pairs = [(row, label) for row in rows for label in row.labels]
    states = [label.states.of(feature, position) for _, label in pairs]
    if len({len(state) for state in states}) > 1:
        raise ConfigError("LABELS", "states of different targets")
    return Table(
        x=np.asarray(states, np.float64).reshape(len(states), len(states[0]) if states else 0),
        good=np.asarray([label.good for _, label in pairs], bool),
        mined=np.asarray([label.source is Source.MINED for _, label in pairs], bool),
        prompts=tuple(row.prompt for row, _ in pairs),
        templates=tuple(row.template for row, _ in pairs),
        measures=tuple(label.measures for _, label in pairs),
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows by what they are for."""

    train: tuple[Row, ...]
    validation: tuple[Row, ...]
    held_out: tuple[Row, ...]
    """Validation rows of families that are not fitted on."""
    doubles: int
    """Rows left out because a prompt of `train` has the same words."""


def parts(rows: Sequence[Row], hold_out: Sequence[str], adapt: int) -> Parts:
    """Rows by split. Of families in ``hold_out`` the first ``adapt`` training prompts are fitted on, no others.

    Raises ConfigError ("--hold-out") for a family without rows, ("LABELS") for a template in two splits.
    """
    families = {row.family for row in rows}
    for name in hold_out:
        if name not in families:
            raise ConfigError("--hold-out", f"{name}: no labels of it", remedy=", ".join(sorted(families)))
    split_of: dict[str, Split] = {}
    for row in rows:
        if split_of.setdefault(row.template, row.split) is not row.split:
            raise ConfigError("LABELS", f"template {row.template} is in two splits")
    train: list[Row] = []
    adapted = dict.fromkeys(hold_out, 0)
    for row in rows:
        if row.split is Split.TRAIN and adapted.get(row.family, -1) < adapt:
            train.append(row)
            if row.family in adapted:
                adapted[row.family] += 1
    known = {row.prompt for row in train}
    later = [row for row in rows if row.split is Split.VALIDATION]
    fresh = [row for row in later if row.prompt not in known]
    return Parts(
        tuple(train),
        tuple(row for row in fresh if row.family not in adapted),
        tuple(row for row in fresh if row.family in adapted),
        len(later) - len(fresh),
    )


def folds(data: Table, count: int, seed: int) -> list[NDArray[np.bool_]]:
    """Disjoint masks [n] of what is left out in turn: whole templates, or whole prompts where templates are too few."""
    names = data.templates if len(set(data.templates)) >= count else data.prompts
    order = sorted(set(names))
    rng = np.random.default_rng(seed)
    place = {order[index]: number % count for number, index in enumerate(rng.permutation(len(order)))}
    of_row = np.asarray([place[name] for name in names])
    return [of_row == number for number in range(min(count, len(order)))]
