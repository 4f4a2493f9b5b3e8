"""`outrider-cloud judge mine | train | eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from outrider.cloud.judge.command import CompareRequest

app = typer.Typer(help="Judge Decoding: mine labels, fit a head, compare it.", no_args_is_help=True)

Drafter = Annotated[
    str | None,
    typer.Option(help="NAME=WHAT as for `eval drafters`. Default: the shipped one with prompt lookup."),
]
Target = Annotated[str, typer.Option(help="The embedded target's name, or a local model folder.")]
Dtype = Annotated[str, typer.Option(help="What the target computes in: float32 or bfloat16.")]
Threads = Annotated[int, typer.Option(help="Threads of a target pass; 0 leaves it to torch.")]
Families = Annotated[
    list[str] | None, typer.Option("--family", help="A task family, repeatable. Default: all.")
]
Tokens = Annotated[int, typer.Option(min=4, help="Tokens of an answer.")]
Chain = Annotated[int, typer.Option("--chain", min=1, help="Tokens of a drafted chain.")]
Width = Annotated[int, typer.Option(min=1, help="Prompts in one pass of the target.")]
Seed = Annotated[int, typer.Option(min=0, help="Of tasks and coins.")]


@app.callback()
def judge() -> None:
    """Judge Decoding."""


@app.command()
def mine(
    out: Annotated[Path, typer.Argument(help="JSON-lines file of labels, resumed if it exists.")],
    drafter: Drafter = None,
    target: Target = "smollm2",
    dtype: Dtype = "float32",
    threads: Threads = 1,
    family: Families = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts to mine, all families together.")] = 200,
    tokens: Tokens = 64,
    chain: Chain = 8,
    width: Width = 16,
    select_items: Annotated[
        int, typer.Option(min=0, help="Items per family that show what both models can do; 0: keep all.")
    ] = 100,
    min_target: Annotated[float, typer.Option(help="Least accuracy of the target.")] = 0.5,
    min_gap: Annotated[float, typer.Option(help="Least lead of the target over the drafter.")] = 0.1,
    seed: Seed = 1,
) -> None:
    """Label drafted tokens by whether the target still reaches its own result.

    Families that the target cannot do, or the drafter can, are left out first. Progress goes to stderr; stopping is
    safe at any time.
    """
    from outrider.cloud.judge import command
    from outrider.cloud.judge.workshop import families, open_workshop
    from outrider.shared.errors import ConfigError

    found = families(family or [])
    request = command.MineRequest(
        out=out,
        prompts=prompts,
        tokens=tokens,
        depth=chain,
        width=width,
        items=select_items,
        min_target=min_target,
        min_gap=min_gap,
        seed=seed,
    )
    shop = open_workshop(drafter, target, dtype, threads, _say)
    with shop.passes:
        if select_items:
            abilities = command.select(shop, found, request, _say)
            for one in abilities:
                _say(one.line())
            kept = {one.family for one in abilities if one.kept}
            found = [one for one in found if one.name in kept]
        if not found:
            raise ConfigError("--family", "no family is left", remedy="lower --min-target or --min-gap")
        counted = command.mine(shop, found, request, _say)
    typer.echo(json.dumps(counted, indent=1))


@app.command()
def train(
    labels: Annotated[list[Path], typer.Argument(help="Files that `judge mine` wrote.")],
    out: Annotated[Path, typer.Option(help="File of the head.")],
    feature: Annotated[str, typer.Option(help="State that is read: prenorm or postnorm.")] = "prenorm",
    position: Annotated[str, typer.Option(help="Where: candidate or previous.")] = "candidate",
    recall: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of bad tokens that must be refused.")
    ] = 0.95,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(help="A family not to fit on, repeatable; its figures are shown apart."),
    ] = None,
    adapt: Annotated[int, typer.Option(min=0, help="Prompts of held-out families to fit on after all.")] = 0,
    corrupted: Annotated[bool, typer.Option(help="Fit on corrupted answers too.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of folds and bootstrap.")] = 1,
) -> None:
    """Fit a head on labels and calibrate it on templates it has not seen.

    Prints the record that goes into the file; its verdict says so where nothing was learned.
    """
    from outrider.cloud.judge.command import train as fit
    from outrider.cloud.judge.fit import FitSetting
    from outrider.cloud.judge.head import Feature, Position

    setting = FitSetting(
        feature=_one_of(Feature, feature, "--feature"),
        position=_one_of(Position, position, "--position"),
        recall=recall,
        hold_out=tuple(hold_out or ()),
        adapt=adapt,
        corrupted=corrupted,
        seed=seed,
    )
    head = fit(labels, out, setting)
    shown = {"delta": head.delta, "class_weight": head.class_weight, "c": head.c, **head.record}
    typer.echo(json.dumps(shown, indent=1))


@app.command("eval")
def evaluate(
    head: Annotated[Path, typer.Option(help="File of the head.")],
    labels: Annotated[
        list[Path], typer.Option(help="Label files whose validation part the controls are matched on.")
    ],
    drafter: Drafter = None,
    target: Target = "smollm2",
    dtype: Dtype = "float32",
    threads: Threads = 1,
    family: Families = None,
    items: Annotated[int, typer.Option(min=1, help="Test prompts of each family.")] = 50,
    tokens: Tokens = 64,
    chain: Chain = 8,
    width: Width = 16,
    delta: Annotated[float | None, typer.Option(help="Threshold instead of the head's own.")] = None,
    seed: Seed = 1,
    work: Annotated[Path | None, typer.Option(help="File of finished prompts, resumed if it exists.")] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Also write the figures here.")] = None,
) -> None:
    """Compare target, drafter, lossless rounds, the judge, and controls of the same acceptance.

    Prompts are of templates that no label came from. Default families: those the labels are of.
    """
    from outrider.cloud.judge.command import CompareRequest

    request = CompareRequest(
        head=head,
        labels=labels,
        delta=delta,
        items=items,
        tokens=tokens,
        depth=chain,
        width=width,
        seed=seed,
        work=work,
    )
    result = _compare(request, family or [], drafter, (target, dtype, threads))
    if json_out is not None:
        json_out.parent.mkdir(parents=True, exist_ok=True)
        json_out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _compare(
    request: CompareRequest, names: list[str], drafter: str | None, target: tuple[str, str, int]
) -> dict[str, Any]:
    from outrider.cloud.judge import command
    from outrider.cloud.judge.tables import comparison_table
    from outrider.cloud.judge.workshop import families, open_workshop

    found = families(names or command.families_of(request.labels))
    shop = open_workshop(drafter, *target, _say)
    with shop.passes:
        result = command.compare(shop, found, request, _say)
    typer.echo("\n".join([comparison_table(result["rows"]), "", *result["findings"]]))
    return result


def _one_of(kind: Any, given: str, option: str) -> Any:
    from outrider.shared.errors import ConfigError

    if given not in list(kind):
        raise ConfigError(option, f"{given}: expected {' or '.join(kind)}")
    return kind(given)


def _say(line: str) -> None:
    typer.echo(line, err=True)
