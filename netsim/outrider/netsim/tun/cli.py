"""`outrider-sim tun`: a command behind a link of real packets."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from outrider.netsim.errors import BadConfig
from outrider.netsim.faults import Schedule, parse_scheduled
from outrider.netsim.profiles import Profile, profile
from outrider.netsim.traces.read import follow
from outrider.netsim.tun.packets import PacketLink

Figure = float | None


def tun(
    command: Annotated[
        list[str], typer.Argument(help="what runs behind the link; {server} is the forwarded address")
    ],
    forward: Annotated[
        str | None, typer.Option(help="host:port that the command may reach, at {server}")
    ] = None,
    profile_name: Annotated[str, typer.Option("--profile", help="a preset; see `profiles`")] = "loopback",
    rtt_ms: Annotated[Figure, typer.Option(help="instead of the preset's round trip")] = None,
    jitter_ms: Annotated[
        Figure, typer.Option(help="instead of the preset's deviation of the round trip")
    ] = None,
    down_mbit: Annotated[Figure, typer.Option(help="instead of the preset's rate to the command")] = None,
    up_mbit: Annotated[Figure, typer.Option(help="instead of the preset's rate from the command")] = None,
    loss: Annotated[Figure, typer.Option(help="instead of the preset's share of lost packets")] = None,
    trace: Annotated[str | None, typer.Option(help="[format:]path of a trace to the command")] = None,
    trace_up: Annotated[str | None, typer.Option(help="[format:]path of a trace from the command")] = None,
    outage: Annotated[
        list[str] | None, typer.Option(help="hold packets, e.g. at=2s,for=3s; repeatable")
    ] = None,
    outages: Annotated[bool, typer.Option("--outages", help="the preset's own random outages too")] = False,
    seed: Annotated[int, typer.Option(help="same seed, same link")] = 0,
) -> None:
    """Run COMMAND behind a link of real packets (Linux, root): losses are lost, TCP is the kernel's own."""
    from outrider.netsim.tun.driver import run_behind  # Linux only

    chosen = profile(profile_name)
    link = follow(chosen.link, trace, trace_up, seed).override(
        rtt_ms=rtt_ms, jitter_ms=jitter_ms, down_mbit=down_mbit, up_mbit=up_mbit, loss=loss
    )
    packets = PacketLink(link, _schedule(chosen, outage or [], own=outages), seed)
    code = asyncio.run(run_behind(packets, command, None if forward is None else _address(forward)))
    print(json.dumps({d: asdict(counts) for d, counts in packets.counts.items()}), file=sys.stderr)
    raise typer.Exit(code)


def _schedule(chosen: Profile, texts: list[str], *, own: bool) -> Schedule:
    entries = tuple(parse_scheduled("outage", text) for text in texts)
    if any(entry.token is not None for entry in entries):
        raise BadConfig("token", "nobody counts tokens here: script the outage by time (at=2s)")
    return Schedule(entries, chosen.outages if own else None)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise BadConfig("forward", f"expected host:port, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
