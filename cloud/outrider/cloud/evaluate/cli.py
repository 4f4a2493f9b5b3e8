"""`outrider-cloud eval …`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cloud.evaluate.laws_cli import laws

app = typer.Typer(help="Measure drafters and laws.", no_args_is_help=True)
app.command()(laws)


@app.callback()
def evaluate() -> None:
    """Measure drafters, and write down the laws that theorems are about."""


@app.command()
def drafters(
    bundle: Annotated[
        list[str],
        typer.Option(
            help="NAME=WHAT, repeatable. WHAT: a weights folder, FILE.onnx beside its weights, "
            "FILE.onnx@WEIGHTS, ngram, or hybrid: and one of the first three."
        ),
    ],
    prompts: Annotated[list[Path], typer.Option(help="Folder or file of prompts, repeatable.")],
    target: Annotated[
        str, typer.Option(help="The embedded target's name, or a local model folder.")
    ] = "smollm2",
    dtype: Annotated[
        str, typer.Option(help="What the target computes in: float32 or bfloat16.")
    ] = "bfloat16",
    threads: Annotated[int, typer.Option(help="Threads of a target pass; 0 leaves it to torch.")] = 1,
    per_set: Annotated[int, typer.Option(min=1, help="Prompts of each category.")] = 8,
    tokens: Annotated[int, typer.Option(min=2, help="Answer tokens over which rounds run.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy; above: coupled.")] = 0.0,
    offline: Annotated[bool, typer.Option("--offline", help="Also measure drafting after a cut.")] = False,
    offline_tokens: Annotated[int, typer.Option(min=2, help="Answer tokens for that.")] = 160,
    seed: Annotated[int, typer.Option(min=0, help="Of coins and bootstrap.")] = 1,
    texts: Annotated[
        Path | None, typer.Option(help="Folder of the target's texts and states. Default: in the cache.")
    ] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Also write the figures here.")] = None,
) -> None:
    """How often the target takes what drafters say, by category of prompts, with intervals.

    Tables go to stdout, progress to stderr.
    """
    from outrider.cloud.evaluate.evaluation import Plan

    plan = Plan(
        per_set=per_set,
        tokens=tokens,
        temperature=temperature,
        seed=seed,
        offline=offline,
        offline_tokens=offline_tokens,
    )
    rows, settings = _run(plan, bundle, prompts, (target, dtype, threads), texts)
    _print(rows)
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        found = {"rows": rows, "settings": settings}
        json_out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _run(
    plan: Any, bundle: list[str], prompts: list[Path], target: tuple[str, str, int], texts: Path | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from outrider.cloud.evaluate import evaluation
    from outrider.cloud.evaluate.contenders import open_contender
    from outrider.cloud.evaluate.prompts import read_sets
    from outrider.cloud.evaluate.texts import TextStore, default_folder
    from outrider.cloud.target import load_target
    from outrider.shared.tokenizer import Tokenizer

    sets = read_sets(prompts)
    loaded = load_target(*target, report=_say)
    contenders = [open_contender(spec, loaded) for spec in bundle]
    store = TextStore(loaded, texts or default_folder())
    tokenizer = Tokenizer.from_folder(loaded.folder)
    asked = evaluation.questions(sets, plan, store, tokenizer, _say)
    rows = []
    for result in evaluation.evaluate(contenders, asked, plan, store, evaluation.stop_ids(store, tokenizer)):
        rows.append(result.row())
        _say(f"{result.contender.name}: {result.seconds:.0f} s of CPU")
    settings = evaluation.settings(plan, loaded.name, loaded.dtype)
    settings["sets"] = {one.category: {"rows": len(one.prompts), "doubles": one.doubles} for one in sets}
    return rows, settings


def _print(rows: list[dict[str, Any]]) -> None:
    from outrider.cloud.evaluate import tables

    parts = [tables.rounds_table(rows)]
    parts += [tables.categories_table(rows, name) for name in ("tau_chain6", "tau_tree24")]
    if any("standalone_20" in row for row in rows):
        parts += [tables.categories_table(rows, name) for name in ("standalone_1_20", "standalone_20")]
        parts.append(tables.offline_table(rows))
    typer.echo("\n".join(parts))


def _say(line: str) -> None:
    typer.echo(line, err=True)
