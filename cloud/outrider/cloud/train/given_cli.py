"""`outrider-cloud corpus-given`."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from outrider.cloud.train.given import Exchange


def corpus_given(
    out: Annotated[Path, typer.Argument(help="JSON-lines file to write.")],
    files: Annotated[list[Path] | None, typer.Argument(help="Data sets whose rows hold an answer.")] = None,
    functions: Annotated[int, typer.Option(help="Documented functions of Python's own library.")] = 0,
    extracts: Annotated[int, typer.Option(help="Requests to summarise texts of --from.")] = 0,
    source: Annotated[
        Path | None, typer.Option("--from", help="File of training rows whose sampled answers are the texts.")
    ] = None,
    per_file: Annotated[int, typer.Option(help="Rows of each data set, drawn by --seed; 0: all.")] = 0,
    prompt_tokens: Annotated[int, typer.Option(help="Longest prompt.")] = 760,
    target: Annotated[
        str, typer.Option(help="The embedded target's name, or a local model folder.")
    ] = "smollm2",
    seed: Annotated[int, typer.Option(help="Of choice and order.")] = 5,
) -> None:
    """Training rows from answers that exist already: the target reads them instead of writing them."""
    from transformers import AutoTokenizer

    from outrider.cloud.export.bundle import stop_ids
    from outrider.cloud.target import target_folder
    from outrider.cloud.train.given import rows
    from outrider.shared.errors import ConfigError

    if out.exists():
        raise ConfigError("OUT", f"{out} exists", remedy="name another file")
    if extracts and source is None:
        raise ConfigError("--from", "is needed for --extracts")
    folder = target_folder(target, lambda line: typer.echo(line, err=True))
    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    try:
        chosen = _exchanges(files or [], functions, extracts, source, per_file, seed, tokenizer)
        found = list(rows(chosen, tokenizer, stop_ids(folder)[0], prompt_tokens))
    except (OSError, ValueError) as error:
        raise ConfigError(
            "FILES", str(error), remedy="docs/corpus.md says what rows may look like"
        ) from error
    random.Random(seed).shuffle(found)
    partial = out.with_suffix(".partial")
    partial.write_text(
        "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in found), encoding="utf-8"
    )
    partial.replace(out)
    typer.echo(f"{out}: {len(found)} rows, {sum(len(row['answer_ids']) for row in found)} answer tokens")


def _exchanges(
    files: Sequence[Path],
    functions: int,
    extracts: int,
    source: Path | None,
    per_file: int,
    seed: int,
    tokenizer: Any,
) -> list[Exchange]:
    from outrider.cloud.train import given

    found: list[Exchange] = []
    for path in files:
        exchanges = list(given.from_file(path))
        random.Random(seed).shuffle(exchanges)
        found += exchanges[:per_file] if per_file else exchanges
    found += islice(given.functions(seed), functions)
    if source is not None:
        found += islice(given.extracts(_long_texts(source, tokenizer, seed), seed), extracts)
    return found


def _long_texts(path: Path, tokenizer: Any, seed: int) -> list[str]:
    """Sampled answers of 150 tokens or more that do not repeat themselves."""
    from outrider.cloud.train.corpus import distinct_fraction, read_examples

    rows = [row.answer_ids for row in read_examples(path, 1 << 20) if row.temperature > 0]
    texts = [
        tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        for ids in rows
        if len(ids) >= 150 and distinct_fraction(ids) > 0.85
    ]
    random.Random(seed).shuffle(texts)
    return texts
