"""`outrider-cloud`: serve a target, run it alone, train and export drafters.

Nothing heavy is imported before a command needs it, so that ``--help`` answers at once. Results go to stdout,
everything else to stderr; exit codes are those of `outrider.shared.errors`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cloud.evaluate.cli import app as evaluate
from outrider.cloud.export.cli import export
from outrider.cloud.judge.cli import app as judge
from outrider.cloud.train.cli import train
from outrider.cloud.train.corpus_cli import corpus, corpus_stats
from outrider.cloud.train.given_cli import corpus_given
from outrider.shared.errors import ConfigError, InvalidField
from outrider.shared.options import (
    Biases,
    Frequency,
    MinP,
    MinTokens,
    Presence,
    Repetition,
    Stop,
    Temperature,
    TopK,
    TopP,
)
from outrider.shared.program import run, version_option

if TYPE_CHECKING:
    from outrider.cloud.config import ServeConfig
    from outrider.cloud.listener import ListenerSettings

app = typer.Typer(
    name="outrider-cloud",
    help="The verifier's side of Outrider: serve a target, run it alone, train and export drafters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Target = Annotated[str, typer.Option(help="The embedded target's name, or a local model folder.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]
Threads = Annotated[int, typer.Option(help="Threads of a target pass; 0 leaves it to torch.")]
DrafterWeights = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        help="Folder of drafter weights, or none. Repeatable, the recommended one first. "
        "Default: those that come with it.",
    ),
]
Bundle = Annotated[
    Path | None, typer.Option(help="Bundle file of one of the drafters. Default: exported from --drafter.")
]
ClientAuthorities = Annotated[
    Path | None,
    typer.Option("--tls-client-ca", "--client-ca", help="PEM authorities of client certificates."),
]
TokenFile = Annotated[Path | None, typer.Option(help="Bearer tokens, one `name token` a line.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text on an address others can reach.")]
MetricsPort = Annotated[int | None, typer.Option(help="Port for Prometheus; 0 takes a free one.")]
Told = Annotated[
    bool, typer.Option("--logprobs", help="With --json: how likely each token was, raw and warped.")
]
RuleNames = Annotated[
    str, typer.Option(help="Rules that clients may ask for, separated by commas: names, lossless, or all.")
]
JudgeFile = Annotated[
    Path | None, typer.Option(help="File of a judge's head; the rule judge is then served as well.")
]
CoinSecret = Annotated[
    Path | None,
    typer.Option(
        help="Hexadecimal secret of the rules' coins, the same for all replicas. Default: drawn anew."
    ),
]
NoSelfcheck = Annotated[bool, typer.Option("--no-selfcheck", help="Skip the check of width invariance.")]

_NONE = "none"


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version.", callback=version_option("outrider-cloud"), is_eager=True
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 7601,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT in one, instead of the two.")] = None,
    target: Target = "smollm2",
    dtype: Dtype = "float32",
    threads: Threads = 0,
    drafter: DrafterWeights = None,
    bundle: Bundle = None,
    rules: RuleNames = "lossless",
    judge: JudgeFile = None,
    coin_secret_file: CoinSecret = None,
    kv_budget_mib: Annotated[int, typer.Option(help="Memory for all sessions' KV, MiB.")] = 2048,
    max_sessions: Annotated[int, typer.Option(help="Sessions at once.")] = 64,
    max_context: Annotated[int, typer.Option(help="Longest sequence, tokens; 0: the target's.")] = 0,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM private key.")] = None,
    client_ca: ClientAuthorities = None,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    reflection: Annotated[bool, typer.Option("--reflection", help="Serve gRPC reflection.")] = False,
    padding: Annotated[str, typer.Option(help="Padding offered to devices: off or bucket.")] = "off",
    metrics_port: MetricsPort = None,
    metrics_host: Annotated[str, typer.Option(help="Address for Prometheus.")] = "127.0.0.1",
    drain_s: Annotated[float, typer.Option(help="Seconds streams get after SIGTERM.")] = 20.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    no_selfcheck: NoSelfcheck = False,
) -> None:
    """Serve a target to devices until SIGTERM or Ctrl-C."""
    from outrider.cloud.config import ServeConfig

    config = ServeConfig(
        listener=_door(listen or f"{host}:{port}", (tls_cert, tls_key, client_ca), token_file, insecure),
        target=target,
        dtype=dtype,
        threads=threads,
        drafters=_drafter_folders(drafter),
        bundle=bundle,
        rules=_words(rules),
        judge=judge,
        coin_secret_file=coin_secret_file,
        kv_budget_mib=kv_budget_mib,
        max_sessions=max_sessions,
        max_context=max_context,
        reflection=reflection,
        padding=padding,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        drain_s=drain_s,
        log_level=log_level,
        selfcheck=not no_selfcheck,
    )
    raise typer.Exit(_serve(config))


def _door(
    listen: str, tls: tuple[Path | None, Path | None, Path | None], token_file: Path | None, insecure: bool
) -> ListenerSettings:
    """``tls``: certificate, key, authorities of clients."""
    from outrider.cloud.listener import ListenerSettings

    return ListenerSettings(
        listen=listen,
        tls_cert=tls[0],
        tls_key=tls[1],
        tls_client_ca=tls[2],
        token_file=token_file,
        insecure=insecure,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _drafter_folders(given: list[str] | None) -> tuple[Path, ...]:
    if not given:
        from outrider.cloud.config import shipped_drafter

        shipped = shipped_drafter()
        return () if shipped is None else (shipped,)
    if _NONE not in given:
        return tuple(map(Path, given))
    if len(given) > 1:
        raise ConfigError("--drafter", "none excludes every other", remedy="give folders, or none alone")
    return ()


def _serve(config: ServeConfig) -> int:
    from outrider.cloud import logs
    from outrider.cloud.serve import probe
    from outrider.cloud.serve import serve as serve_until_asked

    config.check()
    logs.set_up(config.log_level)
    # A wrong certificate or a taken port is told before the target is loaded.
    asyncio.run(probe(config.listener))
    from outrider.cloud.load import load

    return asyncio.run(serve_until_asked(config, load(config), _announce))


def _announce(line: str) -> None:
    print(line, flush=True)


@app.command()
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The user's message; - or nothing reads it from stdin.")
    ] = None,
    prompt_ids: Annotated[
        str | None, typer.Option(help="Token ids separated by commas, used as they are, instead of a prompt.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="A system message before it.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt's text, without chat template.")
    ] = False,
    target: Target = "smollm2",
    dtype: Dtype = "float32",
    threads: Threads = 0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Tokens at most.")] = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling noise.")] = 0,
    min_p: MinP = 0.0,
    repetition_penalty: Repetition = 1.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    logit_bias: Biases = None,
    min_tokens: MinTokens = 0,
    stop: Stop = None,
    logprobs: Told = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with ids and text.")] = False,
) -> None:
    """Run the target alone: what every other way of running it must equal."""
    from outrider.shared.sampling import Sampling, biases

    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        min_tokens=min_tokens,
        logit_bias=biases(logit_bias or ()),
    )
    ids = None if prompt_ids is None else _parse_ids(prompt_ids)
    text = None if ids is not None else _read_prompt(prompt)
    from outrider.cloud.oracle import Question, run_oracle

    question = Question(
        prompt=text,
        prompt_ids=ids,
        system=system,
        raw=raw,
        max_tokens=max_tokens,
        sampling=sampling,
        stops=tuple(word for word in stop or () if word),
        log_probs=logprobs,
    )
    run_oracle(question, target=target, dtype=dtype, threads=threads, as_json=as_json)


def _parse_ids(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise InvalidField("--prompt-ids", "expected numbers separated by commas")
    return tuple(int(word) for word in words)


def _read_prompt(given: str | None) -> str:
    if given is not None and given != "-":
        return given
    return sys.stdin.read()


@app.command("fetch-target")
def fetch_target(
    target: Target = "smollm2",
) -> None:
    """Prepare a target in the local cache and print its folder."""
    from outrider.cloud.target import target_folder

    print(target_folder(target, report=lambda line: print(line, file=sys.stderr)))


app.command()(export)
app.command()(corpus)
app.command("corpus-given")(corpus_given)
app.command("corpus-stats")(corpus_stats)
app.command()(train)
app.add_typer(evaluate, name="eval")
app.add_typer(judge, name="judge")


def main() -> None:
    """Entry point."""
    run(app, "outrider-cloud")


if __name__ == "__main__":
    main()
