"""The options of `outrider-cloud eval laws`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.shared.errors import ConfigError

if TYPE_CHECKING:
    from outrider.cloud.evaluate.laws import LawsPlan, Wanted

RULE = "overaccept"

Prompts = Annotated[list[Path], typer.Option(help="Folder or file of prompts, repeatable.")]
Out = Annotated[Path, typer.Option(help="JSON-lines file, gzip by suffix .gz; written anew.")]
Bundle = Annotated[
    str | None, typer.Option(help="NAME=WHAT as for `eval drafters`. Default: the shipped drafter.")
]
Target = Annotated[str, typer.Option(help="The embedded target's name, or a local model folder.")]
Dtype = Annotated[str, typer.Option(help="What the target computes in: float32 or bfloat16.")]
Threads = Annotated[int, typer.Option(help="Threads of a target pass; 0 leaves it to torch.")]
PerSet = Annotated[int, typer.Option(min=1, help="Prompts of each category.")]
Samples = Annotated[int, typer.Option(min=1, help="Texts of each prompt, of each kind.")]
Tokens = Annotated[int, typer.Option(min=1, help="Tokens of a text.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="Of both laws.")]
TopK = Annotated[int, typer.Option(min=0, help="Of both laws; 0: off.")]
TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="Of both laws; 0: off.")]
Entries = Annotated[int, typer.Option(min=1, max=255, help="Tokens of a draft's law.")]
Bits = Annotated[int, typer.Option(min=8, max=16, help="A draft's law is in 2^-bits.")]
RuleName = Annotated[
    str | None, typer.Option("--rule", help=f"Also write texts by this rule; there is one, {RULE}.")
]
Epsilon = Annotated[
    list[float] | None,
    typer.Option(min=0.0, max=1.0, help="Of the rule, repeatable; 0 is speculative decoding."),
]
Uno = Annotated[
    bool, typer.Option("--uno", help=f"And by {RULE}-uno, which replaces by the target's own draw.")
]
Chain = Annotated[int, typer.Option(min=1, max=32, help="Tokens the rule is sent at once.")]
Bonus = Annotated[
    bool, typer.Option("--bonus", help="Keep the untested token behind a chain that was accepted whole.")
]
Width = Annotated[int, typer.Option(min=1, help="Texts in one pass of the target.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of texts and coins.")]


def laws(
    prompts: Prompts,
    out: Out,
    bundle: Bundle = None,
    target: Target = "smollm2",
    dtype: Dtype = "bfloat16",
    threads: Threads = 1,
    per_set: PerSet = 8,
    samples: Samples = 1,
    tokens: Tokens = 64,
    temperature: Temperature = 1.0,
    top_k: TopK = 0,
    top_p: TopP = 0.0,
    entries: Entries = 16,
    bits: Bits = 12,
    rule: RuleName = None,
    epsilon: Epsilon = None,
    uno: Uno = False,
    chain: Chain = 1,
    bonus: Bonus = False,
    width: Width = 8,
    seed: Seed = 1,
) -> None:
    """Write both models' laws along real texts, for `outrider-sim theory --pair`.

    The target's own texts first, then those of the rule at each ε. Progress goes to stderr.
    """
    from outrider.cloud.evaluate.laws import LawsPlan, wanted

    if rule not in (None, RULE):
        raise ConfigError("--rule", f"{rule}: laws are written of texts by {RULE} only")
    if (rule is None) is not (not epsilon) or (uno and not epsilon):
        raise ConfigError("--rule", f"a rule and its ε go together: --rule {RULE} --epsilon 0.1")
    if rule is not None and (top_k or top_p or not temperature):
        raise ConfigError(
            "--rule",
            "what the target rules out, the rule as served never lets through and the theorem's rule does",
            remedy="take a temperature above 0, and neither --top-k nor --top-p",
        )
    plan = LawsPlan(
        tokens=tokens,
        samples=samples,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        entries=entries,
        bits=bits,
        chain=chain,
        bonus=bonus,
        width=width,
        seed=seed,
    )
    _write(plan, wanted(epsilon or (), uno=uno), bundle, (prompts, per_set, out), (target, dtype, threads))


def _write(
    plan: LawsPlan,
    kinds: list[Wanted],
    bundle: str | None,
    files: tuple[list[Path], int, Path],
    target: tuple[str, str, int],
) -> None:
    from outrider.cloud.engine import Engine
    from outrider.cloud.evaluate.contenders import open_contender
    from outrider.cloud.evaluate.laws import LawsWriter, line, named_prompts, opened
    from outrider.cloud.evaluate.prompts import read_sets
    from outrider.cloud.oracle import end_ids
    from outrider.cloud.target import load_target
    from outrider.shared.tokenizer import Tokenizer

    prompts, per_set, out = files
    sets = read_sets(prompts)
    loaded = load_target(*target, report=_say)
    contender = open_contender(bundle or f"shipped={_shipped()}", loaded)
    tokenizer = Tokenizer.from_folder(loaded.folder)
    writer = LawsWriter(Engine(loaded), contender, plan, end_ids(loaded, tokenizer))
    named = named_prompts(sets, per_set, tokenizer)
    with opened(out) as file:
        file.write(line(writer.header()))
        for kind in kinds:
            count = 0
            for text in writer.texts(named, kind):
                file.write(line(text))
                count += len(text["positions"])
            _say(f"{kind.name}: {count} positions")


def _shipped() -> Path:
    from outrider.cloud.config import shipped_drafter

    folder = shipped_drafter()
    if folder is None:
        raise ConfigError("--bundle", "no drafter came with this installation", remedy="name one")
    return folder


def _say(line: str) -> None:
    typer.echo(line, err=True)
