"""Words of three or four letters spelled backwards."""

from __future__ import annotations

import numpy as np

from outrider.cloud.judge.families.family import Content, Split, Template, TemplatedFamily, pick
from outrider.cloud.judge.families.reading import SpelledReader
from outrider.cloud.judge.families.words import SHORT


def _word(rng: np.random.Generator) -> Content:
    (word,) = pick(rng, SHORT, 1)
    backwards = word[::-1]
    wrong = {"".join(word[index] for index in rng.permutation(len(word))) for _ in range(6)} | {word}
    slots = {"word": word, "spelled": "-".join(word)}
    return Content(slots, backwards, tuple(sorted(wrong - {backwards})))


REVERSAL = TemplatedFamily(
    "reversal",
    SpelledReader(),
    _word,
    (
        Template("spell", Split.TRAIN, 'Spell the word "{word}" backwards. Answer in one sentence.'),
        Template("letters", Split.TRAIN, 'Write the letters {spelled} in reverse order as "…".'),
        Template(
            "shown", Split.VALIDATION, 'Q: Reverse "dog".\nA: It becomes "god".\nQ: Reverse "{word}".\nA:'
        ),
        Template("mirror", Split.TEST, "Read {spelled} from right to left. Which word do the letters make?"),
    ),
)
FAMILIES = (REVERSAL,)
