"""Which task families say anything: those the target can do and the drafter cannot.

Where the target fails there is no signal in its answers; where the drafter is as good there is nothing to lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from outrider.cloud.judge.families import Family, Task
from outrider.cloud.judge.mine import Propose, Text
from outrider.cloud.judge.passes import Line, Passes, Script
from outrider.cloud.judge.runs import RunSetting, alone, rounds
from outrider.cloud.judge.stats import Interval, wilson

MIN_TARGET = 0.5
MIN_GAP = 0.1


@dataclass(frozen=True, slots=True)
class Tried:
    """One item, answered by both alone."""

    index: int
    family: str
    template: str
    target: bool
    """Whether the target's answer was right."""
    draft: bool


@dataclass(frozen=True, slots=True)
class Ability:
    """What both can do in one family."""

    family: str
    items: int
    target: Interval
    draft: Interval
    dropped: str
    """Why the family is left out; empty: it is kept."""

    @property
    def kept(self) -> bool:
        """Whether labels are mined from it."""
        return not self.dropped

    def line(self) -> str:
        """For a log."""
        fate = "kept" if self.kept else f"dropped: {self.dropped}"
        return f"{self.family}: target {self.target.value:.2f}, drafter {self.draft.value:.2f} of {self.items}; {fate}"


def attempt(
    index: int,
    task: Task,
    family: Family,
    prompt: list[int],
    passes: Passes,
    text: Text,
    drafter: Callable[[], Propose],
    setting: RunSetting,
) -> Script[Tried]:
    """Both answers to one item."""
    line = Line(index)
    try:
        target = yield from rounds(index, line, prompt, passes, None, None, setting)
        rows = passes.rows(index, 0, len(prompt) - 1)
        draft = alone(drafter(), prompt, rows, setting)
        return Tried(
            index,
            task.family,
            task.template,
            right(target.tokens, task, family, text, setting),
            right(draft.tokens, task, family, text, setting),
        )
    finally:
        passes.forget(index)


def right(tokens: Sequence[int], task: Task, family: Family, text: Text, setting: RunSetting) -> bool:
    """Whether an answer's result is the right one."""
    said = text.decode([token for token in tokens if token not in setting.stops])
    return family.check(said) == task.answer


def choose(
    tried: Iterable[Tried], *, min_target: float = MIN_TARGET, min_gap: float = MIN_GAP
) -> Mapping[str, Ability]:
    """Abilities by family: kept where the target's accuracy and its lead over the drafter are large enough."""
    found: dict[str, list[Tried]] = {}
    for one in tried:
        found.setdefault(one.family, []).append(one)
    return {name: _ability(name, items, min_target, min_gap) for name, items in found.items()}


def _ability(name: str, items: list[Tried], min_target: float, min_gap: float) -> Ability:
    target = sum(one.target for one in items)
    draft = sum(one.draft for one in items)
    why = ""
    if target < min_target * len(items):
        why = f"the target is right in less than {min_target:g} of the items"
    elif target - draft < min_gap * len(items) - 1e-9:
        why = f"the target leads the drafter by less than {min_gap:g}"
    return Ability(name, len(items), wilson(target, len(items)), wilson(draft, len(items)), why)
