"""``outrider-sim theory``: the theorems on rejections, batches and over-acceptance, exactly and by simulation."""

from __future__ import annotations

import contextlib
import importlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from outrider.netsim.errors import BadConfig

if TYPE_CHECKING:
    from outrider.netsim.theory.report import Report

Number = TypeVar("Number", int, float)


def theory(
    runs: Annotated[int, typer.Option(help="Monte Carlo runs per figure")] = 3000,
    seed: Annotated[int, typer.Option(help="of the Monte Carlo coins and random chains")] = 7,
    batches: Annotated[str, typer.Option(help="numbers of drafts M")] = "1,2,4,5,10,100,1000",
    epsilons: Annotated[str, typer.Option(help="ε of the over-acceptance rules")] = "0,0.05,0.1,0.2,0.3,0.35",
    windows: Annotated[str, typer.Option(help="drafts per round γ")] = "1,2,4,8,16,50",
    chains: Annotated[int, typer.Option(help="random chains to confirm it on")] = 20,
    instances: Annotated[int, typer.Option(help="random pairs for the linear programmes")] = 200,
    pair: Annotated[
        Path | None, typer.Option(help="laws of two real models: JSON lines, docs/theory.md")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write theory.json, theory.md and figures here")] = None,
    figures: Annotated[bool, typer.Option(help="with --out: draw figures; needs the sim extra")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")] = False,
) -> None:
    """Compute the theorems on speculative decoding exactly and by simulation, and check every law."""
    from outrider.netsim.theory.report import Settings

    settings = Settings(
        runs=runs,
        seed=seed,
        batches=numbers("batches", batches, int),
        epsilons=numbers("epsilons", epsilons, float),
        windows=numbers("windows", windows, int),
        chains=chains,
        instances=instances,
    )
    if out is not None:  # what cannot work is said now, not after the computation
        if figures:
            importlib.import_module("matplotlib")
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
    from outrider.netsim.theory.run import compute
    from outrider.netsim.theory.tables import markdown

    report = compute(settings, pair=pair, say=lambda line: typer.echo(f"{line} …", err=True))
    typer.echo(markdown(report))
    if out is not None:
        write(report, out, figures=figures)
    if as_json:
        typer.echo(json.dumps(asdict(report), allow_nan=False))
    failed = [check.law for check in report.checks if not check.holds]
    for law in failed:
        typer.echo(f"does not hold: {law}", err=True)
    raise typer.Exit(1 if failed else 0)


def numbers(field: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """The numbers of a comma-separated list. Raises `BadConfig` naming `field`."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        wanted = "whole numbers" if kind is int else "numbers"
        raise BadConfig(field, f"expected {wanted} separated by commas, got {text!r}") from None


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn what goes wrong on the disk into `BadConfig`."""
    try:
        yield
    except OSError as error:
        raise BadConfig("out", f"cannot write {folder}: {error.strerror or error}") from error


def write(report: Report, folder: Path, *, figures: bool) -> None:
    """theory.json (with the command), theory.md and the figures. Raises `BadConfig` if the folder cannot be written."""
    from outrider.netsim.theory.tables import markdown

    command = shlex.join(["outrider-sim", *sys.argv[1:]])
    document: dict[str, Any] = {"command": command, **asdict(report)}
    with writing(folder):
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        (folder / "theory.json").write_text(text, encoding="utf-8")
        (folder / "theory.md").write_text(f"`{command}`\n\n{markdown(report)}", encoding="utf-8")
        if figures:
            from outrider.netsim.theory.figures import save

            save(report, folder)
