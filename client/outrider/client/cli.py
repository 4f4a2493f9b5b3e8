"""`outrider`: generate and chat on this device, with a verifier or without.

Text goes to stdout and everything else to stderr; exit codes are those of `outrider.shared.errors`. Heavy modules are
imported when a command needs them, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from outrider.shared.errors import ConfigError
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
    from outrider.client.commands import Request

app = typer.Typer(
    name="outrider",
    help="The device's side of Outrider: a small model drafts here, a large one verifies in the cloud.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

WORD_S = 2.0
"""Silence on stdin after which the user is told what is waited for."""

Server = Annotated[str | None, typer.Option(envvar="OUTRIDER_SERVER", help="The verifier's HOST:PORT.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", min=1, help="Longest answer, tokens.")]
Seed = Annotated[int | None, typer.Option(help="Of the sampling noise; the same seed gives the same text.")]
RuleName = Annotated[
    str,
    typer.Option(
        "--rule",
        help="How drafts are judged: NAME[:PARAMETER=VALUE,…], of those the verifier serves; auto is greedy or "
        "coupled. Only these, residual, block, multidraft, batch, traversal, delta and look keep the target's law.",
    ),
]
Told = Annotated[
    bool,
    typer.Option("--logprobs", help="How likely each token was, raw and warped: in the JSON or on stderr."),
]
System = Annotated[str | None, typer.Option("--system", "-s", help="System message.")]
DraftKind = Annotated[Literal["chain", "tree", "none"], typer.Option(help="none is plain remote streaming.")]
DrafterName = Annotated[
    str,
    typer.Option(
        "--drafter",
        help="hybrid (auto): the verifier's choice and ngram in one tree; or moa, eagle2, …, ngram.",
    ),
]
PacingKind = Annotated[Literal["auto", "edge"], typer.Option(help="edge always drafts on this device.")]
OfflineKind = Annotated[Literal["auto", "never", "always"], typer.Option(help="What to do without a link.")]
BundlePath = Annotated[Path | None, typer.Option(help="Drafter bundle; default: the verifier's, cached.")]
Policy = Annotated[
    Literal["revise", "keep", "pause"], typer.Option(help="What becomes of text drafted alone.")
]
JournalPath = Annotated[Path | None, typer.Option(help="Keep the session in this file.")]
ResumePath = Annotated[Path | None, typer.Option(help="Go on with the session of this journal.")]
EventsPath = Annotated[
    Path | None, typer.Option(help="Record the run: times, bytes, shapes and labels, one JSON object a line.")
]
EventsText = Annotated[bool, typer.Option("--events-text", help="Record the answer's text too.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Stats = Annotated[bool, typer.Option("--stats", help="Figures on stderr at the end.")]
Color = Annotated[Literal["auto", "always", "never"], typer.Option(help="Live view and colours.")]
TlsCa = Annotated[Path | None, typer.Option(help="PEM authorities that may sign the verifier's certificate.")]
TlsCert = Annotated[Path | None, typer.Option(help="PEM certificate of this device (mutual TLS).")]
TlsKey = Annotated[Path | None, typer.Option(help="PEM private key of this device.")]
TokenFile = Annotated[Path | None, typer.Option(help="File with a bearer token.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Plain text to an address that is not loopback.")]


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version.", callback=version_option("outrider"), is_eager=True
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The question; - or nothing reads stdin.")] = None,
    server: Server = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 0.0,
    seed: Seed = None,
    min_p: MinP = 0.0,
    repetition_penalty: Repetition = 1.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    logit_bias: Biases = None,
    min_tokens: MinTokens = 0,
    logprobs: Told = False,
    rule: RuleName = "auto",
    stop: Stop = None,
    system: System = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template: continue the prompt itself.")] = False,
    draft: DraftKind = "tree",
    drafter: DrafterName = "auto",
    pacing: PacingKind = "auto",
    offline: OfflineKind = "auto",
    bundle: BundlePath = None,
    policy: Policy = "revise",
    journal: JournalPath = None,
    resume: ResumePath = None,
    as_json: Json = False,
    events: EventsPath = None,
    events_text: EventsText = False,
    stats: Stats = False,
    color: Color = "auto",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    insecure: Insecure = False,
) -> None:
    """Answer one prompt."""
    text = None if resume is not None and prompt is None else _prompt(prompt)
    request = _request(locals())
    from outrider.client.commands import generate_command

    raise typer.Exit(int(generate_command(request, text, raw=raw)))


@app.command()
def chat(
    server: Server = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 0.0,
    seed: Seed = None,
    min_p: MinP = 0.0,
    repetition_penalty: Repetition = 1.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    logit_bias: Biases = None,
    min_tokens: MinTokens = 0,
    logprobs: Told = False,
    rule: RuleName = "auto",
    stop: Stop = None,
    system: System = None,
    draft: DraftKind = "tree",
    drafter: DrafterName = "auto",
    pacing: PacingKind = "auto",
    offline: OfflineKind = "auto",
    bundle: BundlePath = None,
    policy: Policy = "revise",
    journal: JournalPath = None,
    events: EventsPath = None,
    events_text: EventsText = False,
    stats: Stats = False,
    color: Color = "auto",
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    insecure: Insecure = False,
) -> None:
    """Talk in several turns; the verifier keeps what it has already read. /help lists the commands."""
    request = _request(locals())
    from outrider.client.commands import chat_command

    raise typer.Exit(int(chat_command(request)))


def _prompt(argument: str | None) -> str:
    """The argument, with what comes through a pipe after it. Raises BadParameter when there is neither."""
    if argument is None and sys.stdin is not None and sys.stdin.isatty():
        raise typer.BadParameter("missing; give it as an argument or through a pipe", param_hint="PROMPT")
    given = "" if argument is None or argument == "-" else argument
    piped = _stdin() if not given or _is_piped() else ""
    text = "\n".join(part.rstrip("\n") for part in (given, piped) if part)
    if not text.strip():
        raise typer.BadParameter(
            "the prompt is empty; give it as an argument or through a pipe", param_hint="PROMPT"
        )
    return text


def _is_piped() -> bool:
    """Whether stdin is a pipe or a file: what a service or a terminal has there is no part of the prompt."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something without a descriptor
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _stdin() -> str:
    if sys.stdin is None or sys.stdin.closed:
        return ""
    patience = threading.Timer(
        WORD_S, lambda: print("outrider: reading the prompt from stdin …", file=sys.stderr)
    )
    patience.daemon = True
    patience.start()
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError("stdin", f"is not UTF-8 text ({error.reason})") from error
    finally:
        patience.cancel()


def _request(values: dict[str, object]) -> Request:
    from outrider.client.commands import Request

    names = Request.__dataclass_fields__
    return Request(**{name: value for name, value in values.items() if name in names})  # type: ignore[arg-type]


def main() -> None:
    """Entry point of the `outrider` program."""
    run(app, "outrider")
