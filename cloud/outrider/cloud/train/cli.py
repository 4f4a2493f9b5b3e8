"""`outrider-cloud train …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Train drafters for a target.", no_args_is_help=True)


@app.callback()
def train() -> None:
    """Train drafters for a target."""


@app.command()
def moa(
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
    minutes: Annotated[float, typer.Option(help="Computing time in all, over resumed parts.")] = 60.0,
    threads: Annotated[int, typer.Option(help="Threads of torch; 0 leaves it alone.")] = 0,
    batch_texts: Annotated[int, typer.Option(help="Texts per step.")] = 8,
    vocabulary: Annotated[int, typer.Option(help="Size of the draft vocabulary.")] = 12_288,
    max_length: Annotated[int, typer.Option(help="Longest text, tokens.")] = 640,
    answer_tokens: Annotated[
        int, typer.Option(help="Longest answer the target writes to a bare prompt.")
    ] = 256,
    self_written: Annotated[
        int, typer.Option(help="Prompts the target writes itself, beside the files.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of initialisation, order and sampling.")] = 1,
) -> None:
    """Train a Mixture-of-Attentions drafter from text the target wrote.

    Files of bare prompts are answered by the target first; the answers stay in the work folder. Stopping is
    safe at any time: the next start with the same work folder goes on.
    """
    import torch

    from outrider.cloud.target import target_folder
    from outrider.cloud.train.answers import ready_corpus
    from outrider.cloud.train.command import TrainingRequest, train_moa
    from outrider.cloud.train.trainer import TrainingPlan
    from outrider.shared.errors import ConfigError

    if threads:
        torch.set_num_threads(threads)
    folder = target_folder(target, lambda line: typer.echo(line, err=True))
    work = work or out / "run"
    plan = TrainingPlan(minutes=minutes, batch_texts=batch_texts, seed=seed)
    try:
        files = ready_corpus(corpus, folder, work, answer_tokens, max_length, self_written, seed, typer.echo)
        request = TrainingRequest(
            target=folder,
            corpus=files,
            out=out,
            work=work,
            plan=plan,
            vocabulary_size=vocabulary,
            max_length=max_length,
        )
        train_moa(request, typer.echo)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "CORPUS", str(error), remedy="see docs/training.md for the forms of a corpus"
        ) from error
