"""One figure a file, each a function from the report to a matplotlib figure. Needs matplotlib (`sim` extra)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from outrider.netsim.theory.figures.batches import batches
from outrider.netsim.theory.figures.convergence import convergence
from outrider.netsim.theory.figures.improvement import improvement
from outrider.netsim.theory.figures.pareto import pareto
from outrider.netsim.theory.figures.texts import texts
from outrider.netsim.theory.figures.windows import windows
from outrider.netsim.theory.report import Report

FIGURES: dict[str, Callable[[Report], Figure]] = {
    "convergence": convergence,
    "windows": windows,
    "batches": batches,
    "improvement": improvement,
    "pareto": pareto,
    "texts": texts,
}


def save(report: Report, folder: Path) -> list[Path]:
    """Write every figure as a PNG into the folder, which exists. The same report gives the same bytes."""
    written = []
    for name, drawn in FIGURES.items():
        path = folder / f"{name}.png"
        drawn(report).savefig(path, dpi=110, metadata={"Software": None})
        written.append(path)
    return written
