"""The dials of a training run; none of them changes a drafter's shapes."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.cloud.train.blocks import BlockMix
from outrider.cloud.train.losses import LossOptions

FEATURES = ("annealed", "on", "off")


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What a run does with its budget."""

    minutes: float = 0.0
    """Budget of computing time over all resumed parts; 0 for none.

    Measured as this process's CPU time over its threads, so that runs on a busy machine compare; reading
    the target's states of new texts does not count.
    """
    tokens: int = 0
    """Budget of answer tokens over all resumed parts; 0 for none. The step that reaches it is the last."""
    batch_tokens: int = 2600
    """Answer tokens per optimiser step, about."""
    muon_rate: float = 0.03
    """Peak learning rate of Muon (matrices)."""
    adam_rate: float = 2e-3
    """Peak learning rate of AdamW (everything else)."""
    warmup_steps: int = 20
    """Steps of linear warm-up."""
    constant_share: float = 0.45
    """Share of the budget at the peak rate; then linear down to `final_share`."""
    final_share: float = 0.05
    """Rate at the end over the peak rate."""
    law: float = 1.0
    """Weight of the cross entropy against the target's law."""
    argmax_share: float = 0.2
    """Teacher mass moved to its best token."""
    top: float = 0.0
    """Weight of the cross entropy over the target's `top_k` best tokens."""
    top_k: int = 10
    """Size of that set."""
    features: str = "annealed"
    """Feature losses: "annealed" linearly to 0 at `feature_until`, "on" to the end, or "off"."""
    feature_weight: float = 1.0
    """Weight of the feature losses at the start."""
    feature_until: float = 0.5
    """Share of the budget after which annealed feature losses are off."""
    staircase: bool = False
    """Let own attention end at the block's begin in some texts of the first half, ever fewer of them."""
    mix: BlockMix = field(default_factory=BlockMix)
    """How texts are cut."""
    validate_minutes: float = 10.0
    """Between validations."""
    checkpoint_minutes: float = 3.0
    """Between checkpoints."""
    validation_texts: int = 24
    """Held-out texts per validation in the run."""
    seed: int = 1
    """Of initialisation, text order and cuts."""

    def __post_init__(self) -> None:
        """Raise ValueError naming the first field that cannot be."""
        if self.minutes < 0 or self.tokens < 0 or self.minutes == self.tokens == 0:
            raise ValueError(f"minutes or tokens must be a budget, got {self.minutes} and {self.tokens}")
        if self.batch_tokens < 1:
            raise ValueError(f"batch_tokens must be at least 1, got {self.batch_tokens}")
        if self.features not in FEATURES:
            raise ValueError(f"features must be one of {', '.join(FEATURES)}, got {self.features!r}")
        if self.law <= 0 and self.top <= 0:
            raise ValueError("law or top must be above 0: a drafter has to match the target somewhere")

    def spent(self, elapsed_s: float, tokens: int) -> float:
        """Share of the budget that is used up, 0..1; of two budgets the one that ends first."""
        by_time = elapsed_s / (60.0 * self.minutes) if self.minutes else 0.0
        by_text = tokens / self.tokens if self.tokens else 0.0
        return min(1.0, max(by_time, by_text))

    def rate(self, step: int, share: float) -> float:
        """Learning rate over its peak at a step, `share` of the budget gone."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        down = max(0.0, share - self.constant_share) / (1.0 - self.constant_share)
        return warm * (1.0 - (1.0 - self.final_share) * down)

    def losses(self, step: int, share: float) -> LossOptions:
        """Weights of the losses at a step."""
        features = {
            "off": 0.0,
            "on": self.feature_weight,
            "annealed": self.feature_weight * max(0.0, 1.0 - share / self.feature_until),
        }[self.features]
        return LossOptions(
            law=self.law,
            argmax_share=self.argmax_share,
            top=self.top,
            top_k=self.top_k,
            features=features,
            seed=self.seed * 1_000_003 + step,
        )

    def staircase_share(self, share: float) -> float:
        """Share of texts whose own attention ends at the block's begin (moa reference code: 1 - epoch/(E/2))."""
        return max(0.0, 1.0 - share / 0.5) if self.staircase else 0.0
