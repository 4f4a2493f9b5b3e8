"""A target and a drafter that say what a script says: for mining and comparing without a model.

Ids are words of `WORDS`. States and state rows are functions of the text that ends at their position, so that a test
can tell whether the right ones were taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.evaluate.chains import Law
from outrider.cloud.judge.families import Split, Task
from outrider.cloud.judge.families.family import Content, Template, TemplatedFamily
from outrider.cloud.judge.families.reading import NumberReader
from outrider.cloud.judge.features import States
from outrider.cloud.judge.measures import unknown
from outrider.cloud.judge.passes import Feed, Rows, Seen

WORDS = ("<end>", "It", "is", "7", "8", "so", "thus", "then", ".", "\n", "answer:")
END = 0
HIDDEN = 4
Next = Callable[[tuple[int, ...]], int]


def state(prefix: Sequence[int], kind: str) -> NDArray[np.float32]:
    """The state [hidden] at the last token of ``prefix``."""
    digest = hashlib.sha256(kind.encode() + bytes(prefix)).digest()
    return np.random.default_rng(list(digest[:8])).normal(size=HIDDEN).astype(np.float32)


class WordText:
    """The tokenizer: words, spaces between them."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of known words; a full stop may stand at a word."""
        return tuple(WORDS.index(word) for word in text.replace(".", " .").split(" ") if word)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, prompts' ids left out."""
        return " ".join(WORDS[one] for one in ids if one < len(WORDS))


@dataclass(slots=True)
class ScriptedPasses:
    """`Passes` over a script from the whole text to the next id; checks that feeds fit what is held."""

    script: Next
    held: dict[int, list[int]] = field(default_factory=dict)
    fed: int = 0
    """Tokens read, drafts included."""
    widths: list[int] = field(default_factory=list)
    """Texts per pass."""

    def look(self, feeds: Sequence[Feed]) -> list[Seen]:
        """One pass."""
        self.widths.append(len(feeds))
        return [self._one(feed) for feed in feeds]

    def _one(self, feed: Feed) -> Seen:
        held = self.held.setdefault(feed.key, [])
        if not feed.ids or feed.start > len(held):
            raise ValueError(f"start {feed.start}, but {len(held)} positions are held")
        del held[feed.start :]
        held.extend(feed.ids)
        self.fed += len(feed.ids) + len(feed.draft)
        texts = [(*held, *feed.draft[:row]) for row in range(len(feed.draft) + 1)]
        held.extend(feed.draft)
        return Seen(
            np.stack([self._logits(text) for text in texts]),
            np.stack([state(text, "pre") for text in texts]),
            np.stack([state(text, "post") for text in texts]),
        )

    def _logits(self, text: tuple[int, ...]) -> NDArray[np.float32]:
        scores = np.zeros(len(WORDS), np.float32)
        scores[self.script(text)] = 3.0
        return scores

    def logits(self, states: States) -> NDArray[np.float32]:
        """Something that depends on the state, all ids possible."""
        return np.resize(states.postnorm, len(WORDS)).astype(np.float32)

    def rows(self, key: int, start: int, stop: int) -> Rows:
        """One plane whose rows are states of their own text."""
        held = self.held[key]
        if stop > len(held):
            raise ValueError(f"positions to {stop}, but {len(held)} are held")
        found = [state(held[: n + 1], "row") for n in range(start, stop)]
        return [np.stack(found) if found else np.zeros((0, HIDDEN), np.float32)]

    def forget(self, key: int) -> None:
        """Drop a text."""
        self.held.pop(key, None)


@dataclass(slots=True)
class ScriptedDrafter:
    """Drafts by a script; refuses state rows that are not those of the text."""

    script: Next

    def propose(
        self, ids: Sequence[int], rows: Rows, depth: int
    ) -> tuple[tuple[int, ...], tuple[float, ...], Law]:
        """Up to ``depth`` ids, one at least likely of each; no law of any."""
        for position in range(len(rows[0])):
            np.testing.assert_array_equal(rows[0][position], state(ids[: position + 1], "row"))
        chain: list[int] = []
        while len(chain) < depth and END not in chain:
            chain.append(self.script((*ids, *chain)))
        return tuple(chain), tuple(0.5 for _ in chain), unknown


FAMILY = TemplatedFamily(
    "fake",
    NumberReader(),
    lambda rng: Content({}, "7", ("8",)),
    tuple(Template(split, split, f"{split}?") for split in Split),
)


def make_task(answer: str = "7", split: Split = Split.TRAIN) -> Task:
    """A task of the fake family."""
    return Task(
        "fake", f"fake/{split}", split, f"What is it ({answer})?", answer, ("8" if answer == "7" else "7",)
    )
