"""`outrider-cloud train`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from outrider.cloud.train.command import TrainingRequest

Number = tuple[int, ...]


def train(
    kind: Annotated[str, typer.Argument(help="moa, eagle2, glide, medusa or independent.")],
    corpus: Annotated[
        list[Path], typer.Argument(help="JSON-lines files: prompts, or ready prompt_ids/answer_ids.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the finished weights.")],
    target: Annotated[
        str, typer.Option(help="The embedded target's name, or a local model folder.")
    ] = "smollm2",
    work: Annotated[
        Path | None, typer.Option(help="Folder of the run, resumed if it holds one. Default: OUT/run.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="Budget: CPU minutes of this process over its threads; 0 for none.")
    ] = 60.0,
    tokens: Annotated[int, typer.Option(help="Budget: answer tokens; 0 for none.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of torch; 0 leaves it alone.")] = 0,
    batch_tokens: Annotated[int, typer.Option(help="Answer tokens per step, about.")] = 2600,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A field of the kind's settings; may be repeated."),
    ] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="NAME=VALUE", help="A dial of the training plan; may be repeated."),
    ] = None,
    loss: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="law=…, top=… (weights), top_k=…, features=annealed|on|off."),
    ] = None,
    spans: Annotated[
        str | None, typer.Option(help="How states are hidden: mixed, no-whole, short, paper or eagle.")
    ] = None,
    staircase: Annotated[bool, typer.Option(help="End own attention at block begins, early on.")] = False,
    validate_minutes: Annotated[float, typer.Option(help="Between validations.")] = 10.0,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of target states, shared between runs. Default: WORK/states.")
    ] = None,
    cache_gib: Annotated[float, typer.Option(help="Largest size of the target states.")] = 40.0,
    cache_layers: Annotated[
        str, typer.Option(help="Layers a new cache keeps besides those read here, comma separated.")
    ] = "",
    cache_streams: Annotated[str, typer.Option(help="The same for residual streams.")] = "",
    vocabulary: Annotated[int, typer.Option(help="Size of the draft vocabulary.")] = 12_288,
    max_length: Annotated[int, typer.Option(help="Longest text, tokens.")] = 640,
    held_out: Annotated[int, typer.Option(help="Greedy answers kept for validation.")] = 48,
    answer_tokens: Annotated[
        int, typer.Option(help="Longest answer the target writes to a bare prompt.")
    ] = 256,
    self_written: Annotated[
        int, typer.Option(help="Prompts the target writes itself, beside the files.")
    ] = 0,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile loops first; needs a C++ compiler.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of initialisation, order and sampling.")] = 1,
) -> None:
    """Train a drafter of KIND from text the target wrote.

    Files of bare prompts are answered by the target first; the answers stay in the work folder. Stopping is
    safe at any time: the next start with the same work folder goes on.
    """
    # One kernel per shape is compiled once and kept; the default keeps too few for ragged texts.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    import torch

    from outrider.cloud.kinds.elementwise import compile_all
    from outrider.cloud.kinds.registry import find_kind
    from outrider.cloud.kinds.settings import parse_overrides
    from outrider.cloud.target import target_folder
    from outrider.cloud.train.answers import ready_corpus
    from outrider.cloud.train.command import TrainingRequest
    from outrider.shared.errors import ConfigError

    entry = find_kind(kind)
    try:
        overrides = parse_overrides(entry.settings_class, settings or [])
    except ValueError as error:
        raise ConfigError("--set", str(error)) from error
    values = {
        "minutes": minutes,
        "tokens": tokens,
        "batch_tokens": batch_tokens,
        "staircase": staircase,
        "validate_minutes": validate_minutes,
        "seed": seed,
    }
    dials = _plan(values, spans, [*(plan or []), *(loss or [])], entry.mix)
    layers, streams = (
        _numbers(*pair) for pair in (("--cache-layers", cache_layers), ("--cache-streams", cache_streams))
    )
    if threads:
        torch.set_num_threads(threads)
    folder = target_folder(target, lambda line: typer.echo(line, err=True))
    work = work or out / "run"
    try:
        files = ready_corpus(corpus, folder, work, answer_tokens, max_length, self_written, seed, typer.echo)
        request = TrainingRequest(
            kind=kind,
            settings=overrides,
            target=folder,
            corpus=files,
            out=out,
            work=work,
            plan=dials,
            cache=cache,
            cache_gib=cache_gib,
            cache_layers=layers,
            cache_streams=streams,
            vocabulary_size=vocabulary,
            max_length=max_length,
            held_out=held_out,
        )
        if compiled and not compile_all():
            typer.echo("no C++ compiler found: training runs uncompiled, slower", err=True)
        _train(request)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "CORPUS", str(error), remedy="see docs/training.md for corpora, settings and budgets"
        ) from error


def _plan(values: dict[str, Any], spans: str | None, pairs: list[str], mix: Any) -> Any:
    """The plan from named options, then `name=value` words. ConfigError naming what cannot be."""
    from outrider.cloud.kinds.settings import parse_overrides
    from outrider.cloud.train.blocks import SPANS, BlockMix
    from outrider.cloud.train.plan import TrainingPlan
    from outrider.shared.errors import ConfigError

    if spans is not None and spans not in SPANS:
        raise ConfigError("--spans", f"no spans are called {spans!r}", remedy=f"one of {', '.join(SPANS)}")
    names = {field.name for field in fields(BlockMix)}
    try:
        cuts = parse_overrides(BlockMix, [pair for pair in pairs if pair.partition("=")[0] in names])
        rest = parse_overrides(TrainingPlan, [pair for pair in pairs if pair.partition("=")[0] not in names])
        chosen = SPANS[spans] if spans is not None else mix
        final = BlockMix(**{**{name: getattr(chosen, name) for name in names}, **cuts})
        return TrainingPlan(**{**values, **rest, "mix": final})
    except ValueError as error:
        raise ConfigError("--plan", str(error)) from error


def _numbers(option: str, text: str) -> Number:
    from outrider.shared.errors import ConfigError

    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(option, f"expected comma-separated numbers, got {text!r}") from error


def _train(request: TrainingRequest) -> None:
    """Run with a progress bar where there is a terminal, with log lines alone elsewhere."""
    from outrider.cloud.train.command import train_drafter

    if not sys.stderr.isatty():
        train_drafter(request, _say)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    parts = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*parts, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=1.0)

        def tick(share: float, words: str) -> None:
            bar.update(task, completed=share, description=words)

        say: Callable[[str], None] = bar.console.print
        train_drafter(request, say, tick)


def _say(line: str) -> None:
    """A log line that is there at once, also through a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
