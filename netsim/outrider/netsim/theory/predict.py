"""What the laws of two real models predict, and what their real runs did: sums along measured texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory.batch import root_mass
from outrider.netsim.theory.measured import Measured, RuleUsed, Text
from outrider.netsim.theory.overaccept import Price, epsilon_rule, opt, uno
from outrider.netsim.theory.pairs import Array, Pair, positive, tv


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over prompts with its standard error (0 with a single prompt: it says nothing then)."""

    mean: float
    error: float

    def z(self, expected: float = 0.0) -> float:
        """Distance from `expected` in standard errors; 0 without any spread."""
        return (self.mean - expected) / self.error if self.error > 0 else 0.0


@dataclass(frozen=True, slots=True)
class WindowPrediction:
    """Real rounds with a window of γ drafts and bonus tokens."""

    rejections: Mean
    rounds: Mean
    tokens_per_round: float


@dataclass(frozen=True, slots=True)
class RulePaid:
    """What one rule's real texts paid, per text."""

    rule: RuleUsed
    texts: int
    rejected: Mean
    """Rejections counted."""
    surprise: Mean
    """Rejections counted minus expected at the prefixes met: 0 but for chance if the run follows the rule."""
    loss: Mean
    distance: Mean
    gap: Mean
    """Rejections counted + loss - distance: 0 but for chance for OPT, positive for UNO."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Everything about a measured pair."""

    target: str
    draft: str
    prompts: int
    texts: int
    tokens: int
    """Positions of the texts that the target wrote alone."""
    theorem1: Mean
    """Expected rejections per text."""
    rejected_share: float
    """The same per token: mean total variation."""
    batches: dict[str, Mean]
    windows: dict[str, WindowPrediction]
    one_step: dict[str, dict[str, float]]
    """For each ε, on the target's prefixes: rejection, loss and UNO's loss per token."""
    rules: list[RulePaid]
    standard_against_theorem1: float | None
    """z of the rejections of real speculative decoding against Theorem 1 on the target's texts; None without both."""


def predict(
    measured: Measured, batches: Sequence[int], windows: Sequence[int], epsilons: Sequence[float]
) -> Prediction:
    """All predictions of a file. Raises `BadConfig` when it holds no text of the target alone."""
    own = measured.by_target()
    if not own:
        raise BadConfig("pair", "the file holds no text of the target alone (rule: null)")
    tokens = sum(len(text) for text in own)
    theorem1 = over_prompts(own, lambda text: float(tv(text.pair).sum()))
    rules = [paid(rule, texts) for rule, texts in measured.by_rule().items()]
    return Prediction(
        measured.target,
        measured.draft,
        len({text.prompt for text in own}),
        len(own),
        tokens,
        theorem1,
        sum(float(tv(text.pair).sum()) for text in own) / tokens,
        {str(batch): predict_batch(own, batch) for batch in batches},
        {str(w): predict_window(own, w) for w in windows},
        {f"{epsilon:g}": one_step(own, epsilon) for epsilon in epsilons},
        rules,
        _standard(measured, theorem1),
    )


def over_prompts(texts: Sequence[Text], value: Callable[[Text], float]) -> Mean:
    """Mean over prompts of the mean over each prompt's texts."""
    by_prompt: defaultdict[str, list[float]] = defaultdict(list)
    for text in texts:
        by_prompt[text.prompt].append(value(text))
    means = np.array([np.mean(values) for values in by_prompt.values()])
    error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0
    return Mean(float(means.mean()), error)


def batch_rejections(text: Text, batch: int | None) -> float:
    """Expected rejections along this text with M drafts, given that the text is what comes out (Theorem 3)."""
    root, beyond = root_mass(text.pair, batch), positive(text.pair.target - text.pair.draft)
    all_rejected, distance = root.sum(axis=-1), beyond.sum(axis=-1)
    here = np.arange(len(text)), text.at
    from_fresh, from_inside = root[here] / text.pair.target[here], beyond[here] / text.pair.target[here]
    fresh, rejections = 1.0, 0.0
    for n in range(len(text)):
        rejections += fresh * all_rejected[n] + (1 - fresh) * distance[n]
        fresh = fresh * from_fresh[n] + (1 - fresh) * from_inside[n]
    return float(rejections)


def predict_batch(texts: Sequence[Text], batch: int | None) -> Mean:
    """Theorem 3 with M drafts, per text."""
    return over_prompts(texts, lambda text: batch_rejections(text, batch))


def window_counts(text: Text, window: int) -> tuple[float, float]:
    """Expected rejections and rounds along this text with a window of γ drafts and bonus tokens."""
    here = np.arange(len(text)), text.at
    passed = np.minimum(1.0, text.pair.draft[here] / text.pair.target[here])
    distance = tv(text.pair)
    offsets: Array = np.eye(1, window + 1)[0]
    rejections = rounds = 0.0
    for n in range(len(text)):
        tested = float(offsets[:window].sum())
        rounds += float(offsets[0])
        rejections += tested * float(distance[n])
        again = tested * (1 - passed[n]) + offsets[window]
        offsets = np.concatenate([[again], offsets[:window] * passed[n]])
    return rejections, rounds


def predict_window(texts: Sequence[Text], window: int) -> WindowPrediction:
    """Rejections and rounds per text, and tokens per round over all texts."""
    counts = {id(text): window_counts(text, window) for text in texts}
    tokens = sum(len(text) for text in texts)
    return WindowPrediction(
        over_prompts(texts, lambda text: counts[id(text)][0]),
        over_prompts(texts, lambda text: counts[id(text)][1]),
        tokens / sum(rounds for _, rounds in counts.values()),
    )


def one_step(texts: Sequence[Text], epsilon: float) -> dict[str, float]:
    """Mean rejection, loss (OPT) and UNO's loss per token of the ε-rule, one step off the target's own prefixes."""
    pairs = [text.pair for text in texts]
    best = [opt(pair, epsilon_rule(pair, epsilon)) for pair in pairs]
    other = [uno(pair, epsilon_rule(pair, epsilon)) for pair in pairs]
    return {
        "rejection": float(np.concatenate([price.rejection for price in best]).mean()),
        "loss": float(np.concatenate([price.loss for price in best]).mean()),
        "uno_loss": float(np.concatenate([price.loss for price in other]).mean()),
    }


def paid(rule: RuleUsed, texts: Sequence[Text]) -> RulePaid:
    """The account of one rule on its own output; positions without a test are left out."""
    sums = {id(text): _sums(rule, text) for text in texts}

    def mean(value: Callable[[Array], float]) -> Mean:
        return over_prompts(texts, lambda text: value(sums[id(text)]))

    return RulePaid(
        rule,
        len(texts),
        mean(lambda s: s[0]),
        mean(lambda s: s[0] - s[1]),
        mean(lambda s: s[2]),
        mean(lambda s: s[3]),
        mean(lambda s: s[0] + s[2] - s[3]),
    )


def _sums(rule: RuleUsed, text: Text) -> Array:
    """Counted rejections, expected ones, loss and distance of a text, [4]."""
    price = _price(rule, text.pair)
    columns = (text.rejected, price.rejection, price.loss, price.distance)
    return np.array([float(column[text.tested].sum()) for column in columns])


def _price(rule: RuleUsed, pair: Pair) -> Price:
    return (opt if rule.replace == "opt" else uno)(pair, epsilon_rule(pair, rule.epsilon))


def _standard(measured: Measured, theorem1: Mean) -> float | None:
    texts = measured.by_rule().get(RuleUsed(0.0, "opt"))
    if not texts or not all(text.tested.all() for text in texts):
        return None  # nothing to compare, or bonus tokens, which Theorem 1 does not have
    counted = over_prompts(texts, lambda text: float(text.rejected.sum()))
    spread = float(np.hypot(counted.error, theorem1.error))
    return (counted.mean - theorem1.mean) / spread if spread > 0 else None
