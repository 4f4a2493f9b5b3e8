"""From settings to the rules that are served: names, and the judge's head where there is one."""

from __future__ import annotations

from collections.abc import Collection

from outrider.cloud.config import ServeConfig
from outrider.cloud.judge.head import Feature, JudgeHead
from outrider.cloud.rules import KNOWN, Judge, Rulebook, rulebook, served_names
from outrider.cloud.worker import Worker

JUDGE_OPTION = "--judge"


def open_rules(config: ServeConfig, worker: Worker, never: Collection[int]) -> Rulebook:
    """The rules to serve. ``worker`` can judge by them all afterwards, served or not.

    ``never`` are ids that no head may let through: ends of text and special tokens. Raises ConfigError for a head that
    cannot be read or is not for this target.
    """
    judge = None
    if config.judge is not None:
        target = worker.engine.target
        head = JudgeHead.load(
            config.judge, target=target.weights.hex(), hidden=target.hidden_size, option=JUDGE_OPTION
        )
        if head.feature is Feature.PRENORM:
            worker.engine.show_prenorm()
        judge = Judge(head, frozenset(never))
        worker.rules = Rulebook((*KNOWN.rules, judge))
    return rulebook(served_names(config.rules), judge)
