"""What `outrider-sim theory` finds out: settings in, figures and checks out, as plain data that becomes JSON."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.netsim.errors import BadConfig
from outrider.netsim.theory.predict import Prediction
from outrider.netsim.theory.rejections import Windowed
from outrider.netsim.theory.sequence import Account
from outrider.netsim.theory.simulate import Estimate

GOLDEN_BATCHES = (1, 2, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Dials of the report. Raises `BadConfig` naming the one that cannot work."""

    runs: int = 3000
    """Monte Carlo runs per figure."""
    seed: int = 7
    """Of the Monte Carlo coins and the random chains; the golden chain has its own."""
    batches: tuple[int, ...] = (1, 2, 4, 5, 10, 100, 1000)
    """Numbers of drafts M to compute Theorem 3 for."""
    epsilons: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3, 0.35)
    """ε of the over-acceptance rules."""
    windows: tuple[int, ...] = (1, 2, 4, 8, 16, 50)
    """Window lengths γ."""
    chains: int = 20
    """Random chains to confirm it all on."""
    instances: int = 200
    """Random pairs for the linear programmes and the line."""

    def __post_init__(self) -> None:
        _between("runs", (self.runs,), 2, 1_000_000)
        _between("seed", (self.seed,), 0, 2**63 - 1)
        _between("batches", self.batches, 1, 100_000)
        _between("epsilons", self.epsilons, 0.0, 1.0)
        _between("windows", self.windows, 1, 1000)
        _between("chains", (self.chains,), 1, 10_000)
        _between("instances", (self.instances,), 1, 100_000)


def _between(name: str, values: tuple[float, ...], low: float, high: float) -> None:
    if not values:
        raise BadConfig(name, "expected one value at least")
    for value in values:
        if not low <= value <= high:
            raise BadConfig(name, f"expected {low:g} to {high:g}, got {value:g}")


@dataclass(frozen=True, slots=True)
class Check:
    """One law and how well it held."""

    law: str
    value: float
    limit: float
    """The law holds if value ≤ limit."""
    holds: bool


@dataclass(frozen=True, slots=True)
class WindowRow:
    """One window on the golden chain."""

    exact: Windowed
    without_bonus: Windowed
    rejections: Estimate
    rounds: Estimate


@dataclass(frozen=True, slots=True)
class RateRow:
    """Rejections per token in the long run, independent positions: formula, and the recursion on a long chain."""

    acceptance: float
    window: int
    formula: float
    recursion: float


@dataclass(frozen=True, slots=True)
class Theorem1:
    """Expected rejections on the golden chain."""

    expected: float
    tokens_per_rejection: float
    windows: list[WindowRow]
    rates: list[RateRow]
    convergence: list[tuple[int, float]]
    """(runs, mean rejections over these first runs)."""
    deviation: float
    """Of the rejections of a single run."""


@dataclass(frozen=True, slots=True)
class Theorem2:
    """Unbiased members b = c·min(1, target / draft) on the golden chain, and the best on the golden pairs by LP."""

    members: dict[str, float]
    least: dict[str, tuple[float, float | None]]
    """(total variation, optimum of the linear programme) of G1 and G2."""


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """Root rejection with M drafts: formula and recursion, for a pair that has one."""

    pair: str
    batch: int
    formula: float
    recursion: float
    improvement: float
    """Against one draft, at one fresh position."""


@dataclass(frozen=True, slots=True)
class Theorem3:
    """Batches on the golden chain."""

    rejections: dict[str, float]
    improvement: dict[str, float]
    floor: float
    """M → ∞."""
    closed_forms: list[ClosedForm]
    g2_root: dict[str, float]


@dataclass(frozen=True, slots=True)
class EpsilonRow:
    """One ε on G2."""

    epsilon: float
    rejection: float
    opt_loss: float
    uno_loss: float
    distance: float
    lp_loss: float | None


@dataclass(frozen=True, slots=True)
class Programmes:
    """Largest difference between closed forms and linear programmes over random pairs."""

    instances: int
    theorem2: float
    theorem4: float
    theorem5: float


@dataclass(frozen=True, slots=True)
class OverAcceptance:
    """Theorems 4 and 5."""

    g2: list[EpsilonRow]
    line: dict[str, float]
    """Largest |rejection + loss - TV| over random pairs, per family of rules with b ≥ min(1, target / draft)."""
    uno_excess: float
    """Mean of UNO's loss minus OPT's over the same pairs and rules."""
    uno_least: float
    """The least of these differences."""
    any_least_gap: float
    """Least rejection + loss - TV over random b and P."""
    any_mean_gap: float
    programmes: Programmes | None
    """None where scipy is not installed."""


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """One ε over whole texts: the golden chain, and a small process whose texts can be enumerated."""

    epsilon: float
    opt: Account
    uno: Account
    opt_gap: Estimate
    opt_rejections: Estimate
    uno_gap: Estimate
    small_opt: Account
    text_distance: float
    """Between the laws of whole texts of the small process; at most `small_opt.loss`."""


@dataclass(frozen=True, slots=True)
class ChainRow:
    """One random chain."""

    states: int
    horizon: int
    concentration: float
    theorem1: float
    batch4: Estimate
    standard: Estimate
    opt_gap: Estimate
    """Of ε = 0.1."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything; `outrider-sim theory --json` prints it."""

    golden_chain: dict[str, float]
    monte_carlo: dict[str, Estimate]
    theorem1: Theorem1
    theorem2: Theorem2
    theorem3: Theorem3
    overacceptance: OverAcceptance
    sequence: list[SequenceRow]
    random_chains: list[ChainRow]
    checks: list[Check]
    pair: Prediction | None
    settings: Settings
    versions: dict[str, str]
