"""`outrider-sim`: the researcher's command line."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

from outrider.netsim.control import ControlServer
from outrider.netsim.errors import BadConfig
from outrider.netsim.events.cli import replay
from outrider.netsim.faults import Schedule, Scheduled, parse_scheduled
from outrider.netsim.profiles import PROFILES, Profile, profile
from outrider.netsim.proxy import ClockStart, Proxy
from outrider.netsim.report.cli import report
from outrider.netsim.scenario.cli import mount as mount_scenarios
from outrider.netsim.settings import LaneSettings, LinkSettings
from outrider.netsim.theory.cli import theory
from outrider.netsim.traces.read import follow
from outrider.netsim.tun.cli import tun
from outrider.netsim.virtual.cli import sweep
from outrider.netsim.virtual.rides_cli import rides
from outrider.shared.program import run, version_option

app = typer.Typer(
    name="outrider-sim",
    help="Emulate links between a device and a verifier.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

WHEN = "e.g. at=2s,for=3s; repeatable"


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=version_option("outrider-sim"), is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """Emulate links between a device and a verifier."""


Many = list[str] | None
Figure = float | None
Upstream = Annotated[str, typer.Option(help="host:port to forward to")]
Listen = Annotated[str, typer.Option(help="host:port to listen on; port 0 picks one")]
ProfileName = Annotated[str, typer.Option("--profile", help="a preset; see `profiles`")]
Rtt = Annotated[Figure, typer.Option(help="instead of the preset's round trip")]
Jitter = Annotated[Figure, typer.Option(help="instead of the preset's deviation of the round trip")]
Down = Annotated[Figure, typer.Option(help="instead of the preset's rate to the device")]
Up = Annotated[Figure, typer.Option(help="instead of the preset's rate to the cloud")]
Loss = Annotated[Figure, typer.Option(help="instead of the preset's share of lost packets, e.g. 0.02")]
Outages = Annotated[Many, typer.Option(help=f"hold bytes, then go on; {WHEN}")]
Blackholes = Annotated[Many, typer.Option(help=f"swallow bytes, then reset; {WHEN}")]
Resets = Annotated[Many, typer.Option(help="reset all connections; at=2s; repeatable")]
Refusals = Annotated[Many, typer.Option(help=f"refuse new connections; {WHEN}")]
HalfOpens = Annotated[Many, typer.Option(help=f"forward nothing, then reset; {WHEN}")]
Cuts = Annotated[Many, typer.Option(help="at=0s,dir=up,bytes=120,then=reset|hold; repeatable")]
Own = Annotated[bool, typer.Option("--outages", help="the preset's own random outages too")]
From = Annotated[
    str, typer.Option("--from", help="what at= counts from: start, or connection (the first one)")
]
Control = Annotated[
    str | None, typer.Option(help="loopback host:port that takes `token N` and `trigger KIND`, line by line")
]
Seed = Annotated[int, typer.Option(help="same seed, same link")]
TraceFile = Annotated[
    str | None, typer.Option(help="[format:]path of a trace to follow to the device; a joint one drives all")
]
TraceUp = Annotated[str | None, typer.Option(help="[format:]path of a trace to follow to the cloud")]
LogFile = Annotated[Path | None, typer.Option(help="append changes of state here as JSON lines")]


@app.command("proxy")
def proxy_command(
    upstream: Upstream,
    listen: Listen = "127.0.0.1:0",
    profile_name: ProfileName = "loopback",
    rtt_ms: Rtt = None,
    jitter_ms: Jitter = None,
    down_mbit: Down = None,
    up_mbit: Up = None,
    loss: Loss = None,
    trace: TraceFile = None,
    trace_up: TraceUp = None,
    outage: Outages = None,
    blackhole: Blackholes = None,
    reset: Resets = None,
    refuse: Refusals = None,
    halfopen: HalfOpens = None,
    cut: Cuts = None,
    outages: Own = False,
    clock: From = "connection",
    control: Control = None,
    seed: Seed = 0,
    log: LogFile = None,
) -> None:
    """Make a port behave like a link: forward LISTEN to UPSTREAM with delay, rate, loss and faults, until Ctrl-C."""
    chosen = profile(profile_name)
    _refuse_both(trace=trace, trace_up=trace_up, down_mbit=down_mbit, up_mbit=up_mbit)
    link = follow(chosen.link, trace, trace_up, seed).override(
        rtt_ms=rtt_ms, jitter_ms=jitter_ms, down_mbit=down_mbit, up_mbit=up_mbit, loss=loss
    )
    scripted = {
        "outage": outage,
        "blackhole": blackhole,
        "reset": reset,
        "refuse": refuse,
        "halfopen": halfopen,
        "cut": cut,
    }
    schedule = build_schedule(scripted, chosen, outages=outages, control=control is not None)
    with _log(log) as sink:
        proxy = Proxy(
            address("upstream", upstream),
            link=link,
            faults=schedule,
            seed=seed,
            listen=address("listen", listen),
            clock=_clock(clock),
            log=sink,
        )
        asyncio.run(_serve(proxy, chosen, None if control is None else address("control", control)))


def _refuse_both(
    *, trace: str | None, trace_up: str | None, down_mbit: float | None, up_mbit: float | None
) -> None:
    if trace is not None and down_mbit is not None:
        raise BadConfig("down_mbit", "a trace gives the rate to the device: leave one of --trace and it out")
    if trace_up is not None and up_mbit is not None:
        raise BadConfig("up_mbit", "a trace gives the rate to the cloud: leave one of --trace-up and it out")


def _clock(text: str) -> ClockStart:
    if text == "start":
        return "start"
    if text == "connection":
        return "connection"
    raise BadConfig("from", f"expected start or connection, got {text!r}")


def build_schedule(
    scripted: dict[str, list[str] | None], chosen: Profile, *, outages: bool, control: bool
) -> Schedule:
    """All faults of a command line. Raises `BadConfig`, also for faults by token where nobody reports tokens."""
    entries: list[Scheduled] = []
    for kind, texts in scripted.items():
        entries.extend(parse_scheduled(kind, text) for text in texts or ())
    if outages and chosen.outages is None and not chosen.cut_for_good:
        raise BadConfig("outages", f"profile {chosen.name} has no outages of its own; leave --outages out")
    own = chosen.schedule() if outages else Schedule()
    schedule = Schedule((*own.entries, *entries), own.random_outages)
    if schedule.needs_tokens and not control:
        raise BadConfig(
            "token",
            "a bare proxy sees no tokens: script the fault by time (at=2s), or add --control 127.0.0.1:0 and have "
            "the controller send `token N` lines there",
        )
    return schedule


def address(field: str, text: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. Raises `BadConfig` naming `field`."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 65536):
        raise BadConfig(field, f"expected host:port, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def _serve(proxy: Proxy, chosen: Profile, control: tuple[str, int] | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with proxy:
        print(f"listening {proxy.address}", flush=True)
        print(
            "forwarding to {}:{}, ".format(*proxy.upstream) + _in_words(chosen.name, proxy.link),
            file=sys.stderr,
        )
        if control is None:
            await stop.wait()
        else:
            async with ControlServer(proxy, control) as server:
                print(f"control {server.address}", flush=True)
                await stop.wait()


def _in_words(name: str, link: LinkSettings) -> str:
    rates = "/".join(map(_rate, (link.down, link.up)))
    return f"profile {name}: round trip {link.rtt_s * 1000:g} ms, {rates} Mbit/s down/up, loss {link.up.loss:.1%}"


def _rate(lane: LaneSettings) -> str:
    if lane.trace is not None:
        return f"trace of {lane.trace.period_s:.4g} s, mean {lane.trace.mean_mbit:.3g}"
    return "free" if lane.rate_mbit is None else f"{lane.rate_mbit:g}"


@contextlib.contextmanager
def _log(path: Path | None) -> Iterator[TextIO | None]:
    """The log's file, begun with the full command."""
    if path is None:
        yield None
        return
    try:
        sink = path.open("a", encoding="utf-8")
    except OSError as error:
        raise BadConfig("log", f"cannot write {path}: {error.strerror}") from error
    with sink:
        sink.write(json.dumps({"command": shlex.join(["outrider-sim", *sys.argv[1:]])}) + "\n")
        yield sink


@app.command("profiles")
def profiles_command(
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a line")] = False,
) -> None:
    """List the presets."""
    if as_json:
        for chosen in PROFILES.values():
            print(json.dumps(asdict(chosen)))
        return
    table = Table(title="Links (round trips in ms, rates in Mbit/s, outages in s)")
    for column in ("name", "round trip", "down/up", "loss, burst", "outages: gap, median/p99", "what"):
        table.add_column(column)
    for chosen in PROFILES.values():
        table.add_row(*_row(chosen))
    Console().print(table)


def _row(chosen: Profile) -> tuple[str, ...]:
    link = chosen.link
    jitter = link.up.jitter_ms * 2**0.5
    rates = [_rate(lane) for lane in (link.down, link.up)]
    outages = "none"
    if chosen.cut_for_good:
        outages = "one, at a token, for good"
    elif chosen.outages is not None:
        o = chosen.outages
        outages = f"{o.gap_s:g}, {o.median_s:g}/{o.tail_s:g}"
    loss = f"{link.up.loss:.1%}, {link.up.burst:g}"
    return (
        chosen.name,
        f"{link.rtt_s * 1000:g} ± {jitter:.3g}",
        "/".join(rates),
        loss,
        outages,
        chosen.summary,
    )


@app.command()
def demo(
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "",
    max_tokens: Annotated[int, typer.Option(min=24, help="Longest answer, tokens.")] = 96,
    profile_name: ProfileName = "4g-medium",
    outage_token: Annotated[
        int, typer.Option(min=1, help="The link drops when this many tokens are shown.")
    ] = 20,
    outage_s: Annotated[float, typer.Option(min=0.0, help="How long it stays down, seconds.")] = 3.0,
    draft: Annotated[str, typer.Option(help="chain or tree.")] = "tree",
    dtype: Annotated[str, typer.Option(help="The target's: float32 or bfloat16.")] = "float32",
    seed: Annotated[int, typer.Option(help="Of the link and of the device's back-off.")] = 7,
) -> None:
    """A verifier, a device, a 4G link that drops, one prompt: the whole system at work. Needs the cloud extra."""
    from outrider.netsim.demo import PROMPT, DemoSettings
    from outrider.netsim.demo import demo as show

    show(
        DemoSettings(
            prompt=prompt or PROMPT,
            max_tokens=max_tokens,
            profile=profile(profile_name).name,
            outage_token=outage_token,
            outage_s=outage_s,
            draft=draft,
            dtype=dtype,
            seed=seed,
        )
    )


def _mount_faults() -> None:
    """Add `faults`, the simulator of whole protocols, if this installation has it."""
    name = "outrider.netsim.world.cli"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        return
    command: Any = module.faults
    app.command("faults")(command)


_mount_faults()
app.command("theory")(theory)
app.command("tun")(tun)
mount_scenarios(app)
app.command("sweep")(sweep)
app.command("rides")(rides)
app.command("replay")(replay)
app.command("report")(report)


def main() -> None:
    """Entry point. Exit codes: 2 usage, 78 bad configuration (reason on stderr), 130 Ctrl-C."""
    run(app, "outrider-sim")


if __name__ == "__main__":
    main()
