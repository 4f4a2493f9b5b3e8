"""What a device must know of rules before any verifier has told it anything: their names."""

from __future__ import annotations

LOSSLESS = frozenset(
    ("greedy", "coupled", "residual", "block", "multidraft", "batch", "traversal", "delta", "look")
)
"""Rules whose text has the target's law; a token of kind JUDGED under one of them is a lie."""

RUNS_AHEAD = frozenset(("greedy", "coupled", "delta", "look"))
"""Rules under which the target may go on alone: lossless, and by ids alone."""

QUIET = frozenset(("greedy", "coupled"))
"""Rules that a device asks for unless it is told otherwise; a report on them says no more than their name."""

BLIND = frozenset(("delta", "look"))
"""Rules on ids alone whose target draws by coins that no device knows: a draft guesses its likeliest tokens, not its
draws. Such a token is accepted with the target's probability of it, a draw of the drafter's with the mean of that.
"""
