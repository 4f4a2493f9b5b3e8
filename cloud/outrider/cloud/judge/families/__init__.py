"""Task families whose answers can be checked, made here from nothing but a seed. One file per kind of task."""

from __future__ import annotations

from outrider.cloud.judge.families import (
    arithmetic,
    choice,
    knowledge,
    lists,
    lookup,
    ordering,
    records,
    reversal,
    stories,
)
from outrider.cloud.judge.families.family import Family, Split, Task, Template, corrupted

__all__ = ["FAMILIES", "Family", "Split", "Task", "Template", "corrupted"]

FAMILIES: dict[str, Family] = {
    family.name: family
    for module in (arithmetic, stories, lookup, lists, ordering, records, reversal, choice, knowledge)
    for family in module.FAMILIES
}
"""By name."""
