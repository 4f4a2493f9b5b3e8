"""The demo: a verifier on loopback, a 4G link with an outage, one prompt answered twice, and the target alone.

Everything is real: the real target behind the real gRPC verifier, in a process of its own; the device in this process;
the proxy between them. The second answer is plain remote streaming over the same link with the same outage.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.client.answers import Finished, Shown
from outrider.client.cache import Cache
from outrider.client.channel import ChannelSettings
from outrider.client.prepare import DeviceOptions, prepare
from outrider.client.session import Session
from outrider.client.stats import TurnStats
from outrider.client.views import LiveView, MarkedView, View
from outrider.netsim.faults import Outage, Schedule
from outrider.netsim.profiles import profile
from outrider.netsim.proxy import Proxy
from outrider.shared.errors import ConfigError

LISTENING = "outrider-cloud listening on "
PROMPT = "Write a Python function that returns the sum of a list of numbers, then explain it step by step."
START_S = 300.0
"""Longest wait for the verifier: the first start converts the target, and the machine may have other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What the demo shows."""

    prompt: str = PROMPT
    max_tokens: int = 96
    profile: str = "4g-medium"
    outage_token: int = 20
    outage_s: float = 3.0
    draft: str = "tree"
    seed: int = 7
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Run:
    """One answer over the link."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    finished: Finished

    @property
    def stats(self) -> TurnStats:
        """Its figures."""
        return self.finished.stats


def demo(settings: DemoSettings) -> dict[str, Any]:
    """Show it all on stdout; the figures. Raises OutriderError when the verifier does not come up."""
    console = Console(highlight=False)
    say = console.print
    say(
        f"[bold]Outrider demo[/]  ·  link {settings.profile}, "
        f"{settings.outage_s:g} s outage after token {settings.outage_token}"
    )
    say("starting the verifier (the first time, it converts its target: about half a minute) …")
    with (
        tempfile.TemporaryDirectory(prefix="outrider-demo-") as scratch,
        verifier(settings, Path(scratch)) as address,
    ):
        say(
            f"verifier on {address}; the device fetches its drafter bundle over loopback, then moves to the bad link\n"
        )
        return asyncio.run(_runs(settings, address, console))


async def _runs(settings: DemoSettings, address: str, console: Console) -> dict[str, Any]:
    bundle = await _bundle(address)
    console.print(f"[bold]> {settings.prompt}[/]")
    split = await _answer(settings, address, bundle, settings.draft, _view(console))
    console.print("\nthe same prompt by plain remote streaming over the same link …")
    plain = await _answer(settings, address, bundle, "none", None)
    console.print("and by the target alone …\n")
    alone = await asyncio.to_thread(target_alone, settings, split.prompt_ids)
    result = figures(split, plain, alone)
    _summary(console, result, split.stats, plain.stats, settings)
    return result


async def _bundle(address: str) -> Path:
    """Fetch the bundle before the link is bad, as an app does at its first start."""
    from outrider.client.fetching import Fetcher

    bundle = await Fetcher(ChannelSettings(server=address), Cache()).bundle()
    return bundle.path


@asynccontextmanager
async def _link(settings: DemoSettings, address: str) -> AsyncIterator[Proxy]:
    host, _, port = address.rpartition(":")
    schedule = Schedule().at_token(settings.outage_token, Outage(), settings.outage_s)
    link = profile(settings.profile).link
    async with Proxy((host, int(port)), link=link, faults=schedule, seed=settings.seed) as proxy:
        yield proxy


async def _answer(settings: DemoSettings, address: str, bundle: Path, draft: str, view: View | None) -> Run:
    async with _link(settings, address) as proxy:
        options = DeviceOptions(
            channel=ChannelSettings(server=proxy.address),
            draft=draft,
            pacing="edge",
            bundle=bundle,
            seed=settings.seed,
        )
        prepared = await prepare(options)
        prompt = prepared.config.tokenizer.chat([{"role": "user", "content": settings.prompt}])
        async with Session(prepared.config) as session:
            finished = await _watch(session, prompt, settings, proxy, view)
            ids = session.transcript.ids if session.transcript else ()
    if finished.error is not None:
        raise finished.error
    return Run(prompt, ids, finished)


async def _watch(
    session: Session, prompt: tuple[int, ...], settings: DemoSettings, proxy: Proxy, view: View | None
) -> Finished:
    most = 0
    try:
        async for event in session.generate(prompt, max_new=settings.max_tokens):
            transcript = session.transcript
            if view is not None and transcript is not None:
                view.show(event, transcript)
            if isinstance(event, Shown) and event.pieces[-1].position - len(prompt) + 1 > most:
                most = event.pieces[-1].position - len(prompt) + 1
                proxy.on_token(most)
            if isinstance(event, Finished):
                return event
    finally:
        if view is not None:
            view.close()
    raise ConfigError("demo", "the session ended without a word")


def _view(console: Console) -> View:
    if console.is_terminal and os.environ.get("TERM") != "dumb":
        return LiveView(console, legend=True)
    console.print("(⟨ … ⟩ is provisional: drafted without the link, not verified yet)\n")
    return MarkedView(sys.stdout)


# ---------------------------------------------------------------------------------------------------- other processes


def _program(name: str) -> str:
    """The program installed beside this interpreter."""
    found = Path(sys.executable).with_name(name)
    if not found.exists():
        raise ConfigError(
            "demo", f"{name} is not installed beside {sys.executable}", remedy="pip install 'outrider[cloud]'"
        )
    return str(found)


@contextmanager
def verifier(settings: DemoSettings, scratch: Path, served: Sequence[str] = ()) -> Iterator[str]:
    """A verifier in a process of its own; its address. Ended with SIGTERM, and its log shown if it does not start.

    ``served``: options of `outrider-cloud serve` that say what it serves; without, what it does by itself.
    """
    log = scratch / "verifier.log"
    command = [
        _program("outrider-cloud"),
        "serve",
        "--port",
        "0",
        "--dtype",
        settings.dtype,
        "--threads",
        "1",
        *served,
    ]
    with (
        log.open("wb") as err,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True) as process,
    ):
        try:
            yield _address(process, log)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    import selectors

    if process.stdout is None:
        raise ConfigError("demo", "the verifier has no output")
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if ready.select(START_S) else ""
    if not line.startswith(LISTENING):
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
        raise ConfigError("demo", f"the verifier did not start:\n{tail}")
    return line.removeprefix(LISTENING).strip()


def target_alone(settings: DemoSettings, prompt_ids: tuple[int, ...]) -> tuple[int, ...]:
    """What `outrider-cloud generate` says to the same prompt: the oracle."""
    command = [
        _program("outrider-cloud"), "generate", "--prompt-ids", ",".join(map(str, prompt_ids)), "--json",
        "--max-tokens", str(settings.max_tokens), "--dtype", settings.dtype, "--threads", "1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError("demo", f"the target alone failed: {done.stderr.strip()[-500:]}")
    return tuple(int(token_id) for token_id in json.loads(done.stdout)["ids"])


# ------------------------------------------------------------------------------------------------------------ figures


def figures(split: Run, plain: Run, alone: tuple[int, ...]) -> dict[str, Any]:
    """The demo's last line."""
    s = split.stats
    return {
        "tokens": s.tokens,
        "tau": round(s.tau, 3),
        "rounds": s.rounds,
        "bytes_up": s.bytes_up,
        "bytes_down": s.bytes_down,
        "rtt_ms": None if s.rtt_ms is None else round(s.rtt_ms, 1),
        "provisional": s.provisional,
        "kept": s.kept,
        "revised": s.revised,
        "tokens_per_s": round(s.tokens_per_s, 2),
        "streaming_tokens_per_s": round(plain.stats.tokens_per_s, 2),
        "identical": split.finished.verified and split.ids == alone and plain.ids == alone,
    }


_ROWS: tuple[tuple[str, Callable[[TurnStats], str]], ...] = (
    ("tokens", lambda s: f"{s.tokens}"),
    ("tokens/s", lambda s: f"{s.tokens_per_s:.1f}"),
    ("τ (tokens a round)", lambda s: f"{s.tau:.2f}" if s.drafted else "–"),
    ("rounds", lambda s: f"{s.rounds}"),
    ("bytes up / down", lambda s: f"{s.bytes_up} / {s.bytes_down}"),
    ("RTT", lambda s: "–" if s.rtt_ms is None else f"{s.rtt_ms:.0f} ms"),
    ("longest pause", lambda s: f"{s.longest_gap_s:.2f} s"),
    ("drafted alone", lambda s: f"{s.provisional}"),
    ("   of these kept / revised", lambda s: f"{s.kept} / {s.revised}"),
)


def _summary(
    console: Console, result: dict[str, Any], split: TurnStats, plain: TurnStats, settings: DemoSettings
) -> None:
    table = Table(title="split decoding beside plain remote streaming, same prompt, link and outage")
    table.add_column("")
    for name in ("drafting on the device", "plain streaming"):
        table.add_column(name, justify="right")
    for label, figure in _ROWS:
        table.add_row(label, figure(split), figure(plain))
    console.print(table)
    same = "equals" if result["identical"] else "[bold red]DIFFERS FROM[/]"
    console.print(
        f"the final text {same} the target's own, token for token, through a {settings.outage_s:g} s outage"
    )
    print(json.dumps(result), flush=True)
