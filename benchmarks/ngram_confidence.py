"""How often the target goes on as its own earlier text did: the tables in `outrider.client.drafters.ngram`.

    python benchmarks/ngram_confidence.py CORPUS.jsonl.gz

The corpus has rows of `prompt_ids` and `answer_ids` that the target wrote (`outrider-cloud train` makes such files).
Looks at every position of 400 greedy and 400 sampled answers, prints the tables as Python, and at the end the share of
hits by depth of a drafted chain beside what the tables in the program say of it.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import ending

from outrider.client.drafters.ngram import Lookup, bucket, column, confidences
from outrider.cloud.train.corpus import Example, read_examples

ANSWERS = 400
DEPTH = 6
Tally = dict[tuple[int, int], list[int]]


def count(rows: Sequence[Example], warm: bool) -> tuple[Tally, Tally, list[list[float]]]:
    """(hits of the first by table cell, hits of the others after a miss, per depth [hits, expected, cases])."""
    first: Tally = defaultdict(lambda: [0, 0])
    others: Tally = defaultdict(lambda: [0, 0])
    depths = [[0.0, 0.0, 0.0] for _ in range(DEPTH)]
    for row in rows:
        ids = row.ids.tolist()
        for place in range(len(row.prompt_ids), len(ids)):
            lookup = Lookup.of(ids[:place])
            found = lookup.continuations(4)
            if not found:
                continue
            hit = [each.token_id == ids[place] for each in found]
            _add(first[bucket(found[0].matched), column(found[0])], hit[0])
            for each, right in zip(found[1:], hit[1:], strict=True):
                if not hit[0]:
                    _add(others[each.rank - 1, 0 if each.tied else 1], right)
            if place % 7 == 0:
                _follow(lookup, ids[place:], warm, depths)
    return first, others, depths


def _follow(lookup: Lookup, truth: Sequence[int], warm: bool, depths: list[list[float]]) -> None:
    """A chain as long as it is right."""
    for depth, token_id in enumerate(truth[:DEPTH]):
        found = lookup.continuations(4)
        right = found[0].token_id == token_id
        depths[depth][0] += right
        depths[depth][1] += confidences(found, warm)[0]
        depths[depth][2] += 1
        if not right:
            return
        lookup = lookup.after(token_id)


def _add(cell: list[int], hit: bool) -> None:
    cell[0] += hit
    cell[1] += 1


def _table(cells: Tally, rows: int, columns: int) -> str:
    def share(cell: list[int]) -> str:
        # One hit and one miss more than were seen: a cell nobody fell into says one half, none says 0 or 1.
        return f"{(cell[0] + 1) / (cell[1] + 2):.3f}"

    lines = [", ".join(share(cells[row, each]) for each in range(columns)) for row in range(rows)]
    return "(" + "".join(f"\n    ({line})," for line in lines) + "\n)"


def main() -> None:
    """Read, count, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    examples = read_examples(parser.parse_args().corpus, 1024)
    random.Random(0).shuffle(examples)
    for name, warm in (("GREEDY", False), ("SAMPLED", True)):
        rows = [row for row in examples if (row.temperature > 0) == warm][:ANSWERS]
        first, others, depths = count(rows, warm)
        cases = {key: value[1] for key, value in sorted(first.items())}
        print(f"# {sum(len(row.answer_ids) for row in rows)} positions; cases by cell: {cases}")
        print(f"_FIRST_{name} = {_table(first, 1 + bucket(16), 4)}")
        print(f"_OTHERS_{name} = {_table(others, 3, 2)}")
        for depth, (hits, expected, total) in enumerate(depths, start=1):
            print(
                f"# depth {depth}: {hits / total:.3f} right, {expected / total:.3f} expected, {total:.0f} cases"
            )


if __name__ == "__main__":
    ending.run(main)
