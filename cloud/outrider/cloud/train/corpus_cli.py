"""`outrider-cloud corpus` and `outrider-cloud corpus-stats`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from outrider.cloud.train.harvest import Harvest, Progress
    from outrider.cloud.train.repetition import SourceStatistics

Share = Annotated[int, typer.Option(help="Share of this kind of prompts; 0: none.")]


def corpus(
    out: Annotated[Path, typer.Argument(help="JSON-lines file to write.")],
    prompts: Annotated[
        list[Path] | None, typer.Argument(help="Files of prompts to answer too, as `train` takes them.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="The embedded target's name, or a local model folder.")
    ] = "smollm2",
    minutes: Annotated[float, typer.Option(help="Time of this run.")] = 60.0,
    tokens: Annotated[int, typer.Option(help="Answer tokens in the file at most; 0: no limit.")] = 0,
    self_written: Annotated[int, typer.Option(help="Share of user turns begun with a word or two.")] = 5,
    questions: Annotated[int, typer.Option(help="Share of short questions about facts.")] = 4,
    instructions: Annotated[int, typer.Option(help="Share of instructions.")] = 4,
    talks: Annotated[int, typer.Option(help="Share of conversations of two turns.")] = 3,
    documents: Annotated[int, typer.Option(help="Share of articles, with requests about each.")] = 4,
    code: Annotated[int, typer.Option(help="Share of Python functions to complete.")] = 3,
    files: Annotated[int, typer.Option(help="Share of prompts from the files, each used once.")] = 3,
    answer_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    prompt_tokens: Annotated[int, typer.Option(help="Longest prompt.")] = 920,
    slots: Annotated[int, typer.Option(help="Texts written at once.")] = 128,
    threads: Annotated[int, typer.Option(help="Threads of torch; 0 leaves it alone.")] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "bfloat16",
    seed: Annotated[int, typer.Option(help="Of the prompts and of sampling.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an OUT that exists.")] = False,
) -> None:
    """Let a target write the text its drafters are trained on.

    It answers prompts from files and prompts of its own: questions, instructions, conversations, articles to summarise,
    functions to complete. Every beginning of OUT is a mix of them by their shares. Stopping is safe at any time.
    """
    from outrider.shared.errors import ConfigError

    if out.exists() and not resume:
        raise ConfigError(
            "OUT", f"{out} exists", remedy="add --resume to go on with it, or name another file"
        )
    own = (self_written, questions, instructions, talks, documents, code)
    kinds = ("self", "question", "instruction", "talk", "document", "code", "file")
    shares = dict(zip(kinds, (*own, files if prompts else 0), strict=True))
    _check(shares, slots, answer_tokens, prompt_tokens, dtype)
    try:
        harvest = _prepare(
            out, prompts or [], target, shares, (answer_tokens, prompt_tokens), slots, threads, dtype, seed
        )
        done = _run(harvest, minutes, tokens)
    except (OSError, ValueError) as error:
        raise ConfigError("CORPUS", str(error), remedy="see docs/corpus.md") from error
    typer.echo(f"{out}: {done.rows} rows, {done.tokens} answer tokens")


def _check(shares: dict[str, int], slots: int, answer: int, prompt: int, dtype: str) -> None:
    from outrider.shared.errors import ConfigError

    if min(shares.values()) < 0 or not sum(shares.values()):
        raise ConfigError("--self-written …", "shares must not be negative, and one must be above 0")
    if slots < 1:
        raise ConfigError("--slots", f"{slots}: at least 1")
    if answer < 2 or prompt < 64:
        raise ConfigError("--answer-tokens", "answers need at least 2 tokens, prompts at least 64")
    if dtype not in ("float32", "bfloat16"):
        raise ConfigError("--dtype", f"{dtype}: expected float32 or bfloat16")


def _prepare(
    out: Path,
    files: Sequence[Path],
    target: str,
    shares: dict[str, int],
    most: tuple[int, int],
    slots: int,
    threads: int,
    dtype: str,
    seed: int,
) -> Harvest:
    import torch

    from outrider.cloud.target import target_folder
    from outrider.cloud.train.answers import Writer
    from outrider.cloud.train.corpus import read_prompts
    from outrider.cloud.train.prompts import Lengths

    if threads:
        torch.set_num_threads(threads)
    answer, prompt = most
    lengths = Lengths(
        answer=answer,
        document_answer=min(answer, Lengths().document_answer),
        document=min(Lengths().document, prompt * 3 // 4),
        turn=min(Lengths().turn, prompt // 4),
        prompt=prompt,
    )
    folder = target_folder(target, lambda line: typer.echo(line, err=True))
    writer = Writer(folder, lengths, seed=seed, slots=slots, dtype=getattr(torch, dtype))
    given = [ids for path in files for ids in read_prompts(path, writer.tokenizer, prompt)]
    out.parent.mkdir(parents=True, exist_ok=True)
    return writer.harvest(out, shares, given)


def _run(harvest: Harvest, minutes: float, tokens: int) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("begins", total=tokens or minutes * 60)

        def report(progress: Progress) -> None:
            rate = progress.computed / max(progress.seconds, 1e-9)
            line = f"{progress.rows} rows, {progress.tokens} answer tokens, {rate:.0f} tokens/s written"
            bar.update(task, completed=progress.tokens if tokens else progress.seconds, description=line)

        return harvest.run(seconds=minutes * 60, tokens=tokens or float("inf"), report=report)


def corpus_stats(
    files: Annotated[list[Path], typer.Argument(help="Corpus files: rows with prompt_ids and answer_ids.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per file and source.")] = False,
) -> None:
    """Say what corpora hold and how much their texts repeat themselves, by source."""
    from outrider.cloud.train.repetition import corpus_statistics
    from outrider.shared.errors import ConfigError

    for path in files:
        try:
            found = corpus_statistics(path)
        except (OSError, ValueError) as error:
            raise ConfigError("FILES", str(error), remedy="see docs/corpus.md") from error
        for statistics in found:
            if as_json:
                typer.echo(json.dumps({"file": str(path), **asdict(statistics)}))
        if not as_json:
            typer.echo(_table(path, found))


def _table(path: Path, found: Sequence[SourceStatistics]) -> str:
    head = (
        "source",
        "rows",
        "answer tokens",
        "prompt",
        "greedy",
        "looping",
        "tokens in loops",
        "zlib B/token",
    )
    lines: list[tuple[Any, ...]] = [head]
    for one in found:
        shares = (f"{share:.0%}" for share in (one.greedy, one.looping, one.looping_tokens))
        lines.append(
            (
                one.source,
                one.rows,
                one.answer_tokens,
                f"{one.prompt_tokens:.0f}",
                *shares,
                f"{one.bytes_per_token:.2f}",
            )
        )
    widths = [max(len(str(line[column])) for line in lines) for column in range(len(head))]
    rendered = (
        "  ".join(
            str(cell).ljust(w) if i == 0 else str(cell).rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return "\n".join((str(path), *rendered))
