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

Numbers = tuple[int, ...]
Words = list[str] | None

Kind = Annotated[str, typer.Argument(help="moa, eagle2, glide, medusa or independent.")]
Files = Annotated[
    list[Path], typer.Argument(help="JSON-lines files: prompts, or ready prompt_ids/answer_ids.")
]
Out = Annotated[Path, typer.Option(help="Folder for the finished weights.")]
Target = Annotated[str, typer.Option(help="The embedded target's name, or a local model folder.")]
Work = Annotated[
    Path | None, typer.Option(help="Folder of the run, resumed if it holds one. Default: OUT/run.")
]
Minutes = Annotated[
    float, typer.Option(help="Budget: CPU minutes of this process over its threads; 0 for none.")
]
Tokens = Annotated[int, typer.Option(help="Budget: answer tokens; 0 for none.")]
Threads = Annotated[int, typer.Option(help="Threads of torch; 0 leaves it alone.")]
BatchTokens = Annotated[int, typer.Option(help="Answer tokens per step, about.")]
Settings = Annotated[
    Words,
    typer.Option("--set", metavar="NAME=VALUE", help="A field of the kind's settings; may be repeated."),
]
Dials = Annotated[
    Words,
    typer.Option("--plan", metavar="NAME=VALUE", help="A dial of the training plan; may be repeated."),
]
Loss = Annotated[
    Words,
    typer.Option(metavar="NAME=VALUE", help="law=…, top=… (weights), top_k=…, features=annealed|on|off."),
]
Spans = Annotated[
    str | None, typer.Option(help="How states are hidden: mixed, no-whole, short, paper or eagle.")
]
Staircase = Annotated[bool, typer.Option(help="End own attention at block begins, early on.")]
ValidateMinutes = Annotated[float, typer.Option(help="Between validations.")]
Cache = Annotated[
    Path | None, typer.Option(help="Folder of target states, shared between runs. Default: WORK/states.")
]
CacheGib = Annotated[float, typer.Option(help="Largest size of the target states.")]
CacheLayers = Annotated[
    str, typer.Option(help="Layers a new cache keeps besides those read here, comma separated.")
]
CacheStreams = Annotated[str, typer.Option(help="The same for residual streams.")]
Vocabulary = Annotated[int, typer.Option(help="Size of the draft vocabulary.")]
MaxLength = Annotated[int, typer.Option(help="Longest text, tokens.")]
HeldOut = Annotated[int, typer.Option(help="Greedy answers kept for validation.")]
AnswerTokens = Annotated[int, typer.Option(help="Longest answer the target writes to a bare prompt.")]
SelfWritten = Annotated[int, typer.Option(help="Prompts the target writes itself, beside the files.")]
Compiled = Annotated[
    bool, typer.Option("--compile/--no-compile", help="Compile loops first; needs a C++ compiler.")
]
Seed = Annotated[int, typer.Option(help="Of initialisation, order and sampling.")]


def train(
    kind: Kind,
    corpus: Files,
    out: Out,
    target: Target = "smollm2",
    work: Work = None,
    minutes: Minutes = 60.0,
    tokens: Tokens = 0,
    threads: Threads = 0,
    batch_tokens: BatchTokens = 2600,
    settings: Settings = None,
    plan: Dials = None,
    loss: Loss = None,
    spans: Spans = None,
    staircase: Staircase = False,
    validate_minutes: ValidateMinutes = 10.0,
    cache: Cache = None,
    cache_gib: CacheGib = 40.0,
    cache_layers: CacheLayers = "",
    cache_streams: CacheStreams = "",
    vocabulary: Vocabulary = 12_288,
    max_length: MaxLength = 640,
    held_out: HeldOut = 48,
    answer_tokens: AnswerTokens = 256,
    self_written: SelfWritten = 0,
    compiled: Compiled = True,
    seed: Seed = 1,
) -> None:
    """Train a drafter of KIND from text the target wrote.

    Files of bare prompts are answered by the target first; the answers stay in the work folder. Stopping is
    safe at any time: the next start with the same work folder goes on.
    """
    dials: dict[str, Any] = {"minutes": minutes, "tokens": tokens, "batch_tokens": batch_tokens, "seed": seed}
    dials |= {"staircase": staircase, "validate_minutes": validate_minutes}
    states: dict[str, Any] = {"cache": cache, "cache_gib": cache_gib}
    states |= {
        name: _numbers(f"--{name.replace('_', '-')}", text)
        for name, text in (("cache_layers", cache_layers), ("cache_streams", cache_streams))
    }
    texts = {"vocabulary_size": vocabulary, "max_length": max_length, "held_out": held_out}
    run: dict[str, Any] = {
        "kind": kind,
        "settings": _settings(kind, settings),
        "out": out,
        "work": work or out / "run",
    }
    pairs = [*(plan or []), *(loss or [])]
    _refuse_idle(kind, spans, staircase, pairs)
    run["plan"] = _plan(dials, spans, pairs, kind)
    folder = _prepare(target, threads)
    answers = (answer_tokens, max_length, self_written, seed)
    _train({"target": folder, **run, **states, **texts}, corpus, answers, compiled)


def _prepare(target: str, threads: int) -> Path:
    """The target's folder; torch is loaded with what ragged texts need."""
    # One kernel per shape is compiled once and kept; the default keeps too few for ragged texts.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    import torch

    from outrider.cloud.target import target_folder

    if threads:
        torch.set_num_threads(threads)
    return target_folder(target, lambda line: typer.echo(line, err=True))


def _settings(kind: str, words: Words) -> dict[str, Any]:
    """Fields of the kind's settings from `name=value` words. ConfigError naming what cannot be."""
    from outrider.cloud.kinds.registry import find_kind
    from outrider.cloud.kinds.settings import parse_overrides
    from outrider.shared.errors import ConfigError

    try:
        return parse_overrides(find_kind(kind).settings_class, words or [])
    except ValueError as error:
        raise ConfigError("--set", str(error)) from error


def _train(
    values: dict[str, Any], corpus: list[Path], answers: tuple[int, int, int, int], compiled: bool
) -> None:
    """Make the corpus ready, compile, run. ConfigError for what a user can correct."""
    from outrider.cloud.kinds.elementwise import compile_all
    from outrider.cloud.train.answers import ready_corpus
    from outrider.cloud.train.command import CacheTooLarge, SettingsProblem, TrainingRequest
    from outrider.shared.errors import ConfigError

    try:
        files = ready_corpus(corpus, values["target"], values["work"], *answers, typer.echo)
        request = TrainingRequest(corpus=files, **values)
        if compiled and not compile_all():
            typer.echo("no C++ compiler found: training runs uncompiled, slower", err=True)
        _run(request)
    except CacheTooLarge as error:
        raise ConfigError("--cache-gib", str(error)) from error
    except SettingsProblem as error:
        raise ConfigError("--set", str(error)) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            "CORPUS", str(error), remedy="see docs/training.md for corpora, settings and budgets"
        ) from error


def _refuse_idle(kind: str, spans: str | None, staircase: bool, pairs: list[str]) -> None:
    """ConfigError for a dial that would change nothing in drafters of this kind."""
    from outrider.cloud.kinds.registry import find_kind
    from outrider.shared.errors import ConfigError

    named = {pair.partition("=")[0] for pair in pairs}
    uses = find_kind(kind).dials
    stairs = staircase or "staircase" in named
    if stairs and "staircase" in uses:
        uses |= {"spans"}  # it begins where the blocks do
    given = {
        "spans": ("--spans", spans is not None),
        "staircase": ("--staircase", stairs),
        "features": ("--loss", bool(named & {"features", "feature_weight", "feature_until"})),
    }
    for dial, (option, is_given) in given.items():
        if is_given and dial not in uses:
            why = f"{dial} changes nothing in a drafter of kind {kind}"
            raise ConfigError(option, why, remedy="leave it out")


def _plan(values: dict[str, Any], spans: str | None, pairs: list[str], kind: str) -> Any:
    """The plan from named options, then `name=value` words. ConfigError naming what cannot be."""
    from outrider.cloud.kinds.registry import find_kind
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
        chosen = SPANS[spans] if spans is not None else find_kind(kind).mix
        final = BlockMix(**{**{name: getattr(chosen, name) for name in names}, **cuts})
        return TrainingPlan(**{**values, **rest, "mix": final})
    except ValueError as error:
        raise ConfigError("--plan", str(error)) from error


def _numbers(option: str, text: str) -> Numbers:
    from outrider.shared.errors import ConfigError

    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(option, f"expected comma-separated numbers, got {text!r}") from error


def _run(request: TrainingRequest) -> None:
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
