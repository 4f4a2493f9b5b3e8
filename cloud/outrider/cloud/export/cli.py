"""`outrider-cloud export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    weights: Annotated[Path, typer.Argument(help="Folder with drafter.safetensors and drafter.json.")],
    out: Annotated[Path, typer.Argument(help="The bundle to write, an .onnx file.")],
    target: Annotated[
        str, typer.Option(help="The embedded target's name, or a local model folder.")
    ] = "smollm2",
    vocabulary: Annotated[
        int | None, typer.Option(min=1, help="Draft ids, if not those the weights were trained with.")
    ] = None,
    float32: Annotated[bool, typer.Option("--float32", help="Do not quantise; four times larger.")] = False,
) -> None:
    """Join drafter weights, frozen target parts and tokenizer into the one file a device needs."""
    from outrider.cloud.export.bundle import export_bundle
    from outrider.cloud.target import target_folder
    from outrider.shared.errors import ConfigError

    folder = target_folder(target, lambda line: typer.echo(line, err=True))
    try:
        report = export_bundle(weights, folder, out, int8=not float32, vocabulary=vocabulary)
    except (OSError, ValueError) as error:
        raise ConfigError("WEIGHTS", str(error), remedy="name a folder that `train` wrote") from error
    typer.echo(
        f"{report.path}: {report.size_bytes / 1e6:.1f} MB, {report.vocabulary_size} draft ids, "
        f"step {report.training_step}, sha256 {report.sha256}"
    )
