"""`outrider-sim run` and `outrider-sim scenarios`."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.netsim.errors import BadConfig
from outrider.netsim.scenario.model import MODES, DeviceSpec, Mode, Question, Scenario
from outrider.netsim.scenario.ride import Ride
from outrider.netsim.scenario.shipped import find, names, shipped, summary_of
from outrider.netsim.scenario.timeline import DRY_RUN_S, entries, timeline
from outrider.shared.errors import ExitCode

if TYPE_CHECKING:
    from outrider.client.views import View
    from outrider.netsim.scenario.device import Server
    from outrider.netsim.scenario.drive import Watching

SHORT = 100
"""Characters of a prompt that are shown above its answer."""


def mount(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("run")(run_command)
    app.command("scenarios")(scenarios_command)


def run_command(
    scenario: Annotated[str, typer.Argument(help="a scenario file, or the name of a shipped one")],
    server: Annotated[
        str | None,
        typer.Option(help="host:port of a running verifier; without, one is started (cloud extra)"),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="plain text to a verifier that is not on loopback")
    ] = False,
    log: Annotated[
        Path | None, typer.Option(help="write an event log here, for `replay` and `report`")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="the log holds the text of answers too")] = False,
    mode: Annotated[str | None, typer.Option(help=f"instead of the scenario's: {', '.join(MODES)}")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="instead of the scenario's")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="compare the text with the target's own afterwards")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what would happen when, and start nothing")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="nothing but the JSON line")] = False,
    dtype: Annotated[
        str, typer.Option(help="of the verifier that is started: float32 or bfloat16")
    ] = "float32",
) -> None:
    """Ride through a scenario with the real device and a real verifier; figures as a table and a JSON line."""
    chosen = _changed(find(scenario), mode, seed)
    if text and log is None:
        raise BadConfig("--text", "there is no log to write text into: add --log FILE")
    if dry_run:
        _dry_run(chosen, as_json)
        return
    raise typer.Exit(int(_ride(chosen, server, insecure, log, text, check, as_json, dtype)))


def scenarios_command(
    name: Annotated[str | None, typer.Argument(help="print this one, to copy it")] = None,
) -> None:
    """List the scenarios that come with the program, or print one."""
    if name is not None:
        sys.stdout.write(shipped(name).read_text(encoding="utf-8"))
        return
    table = Table(title="Scenarios (outrider-sim scenarios NAME > my.toml)")
    table.add_column("name")
    table.add_column("what")
    for each in names():
        table.add_row(each, summary_of(each))
    Console().print(table)


def _changed(scenario: Scenario, mode: str | None, seed: int | None) -> Scenario:
    if mode is not None:
        if mode not in MODES:
            raise BadConfig("--mode", f"expected one of {', '.join(MODES)}, got {mode!r}")
        asked: Mode = next(each for each in MODES if each == mode)
        spec = scenario.device
        keeps = asked == spec.mode
        device = replace(
            spec, mode=asked, depth=spec.depth if keeps else None, nodes=spec.nodes if keeps else None
        )
        scenario = replace(scenario, device=device)
    return scenario if seed is None else replace(scenario, seed=seed)


def _dry_run(scenario: Scenario, as_json: bool) -> None:
    ride = Ride(scenario)
    if as_json:
        print(json.dumps({"scenario": scenario.name, "timeline": entries(ride)}))
        return
    console = Console(highlight=False)
    console.print(Text(f"{scenario.name}: {scenario.summary}\n{in_words(scenario)}"))
    console.print(timeline(ride, f"the first {min(ride.lap_s, DRY_RUN_S):g} s"))


def in_words(scenario: Scenario) -> str:
    """What is asked and how, in a line."""
    spec: DeviceSpec = scenario.device
    count = len(scenario.questions)
    asked = "1 prompt" if count == 1 else f"{count} prompts"
    return f"{asked}, at most {spec.max_tokens} tokens each, mode {spec.mode}, seed {scenario.seed}"


def _ride(
    scenario: Scenario,
    address: str | None,
    insecure: bool,
    log: Path | None,
    text: bool,
    check: bool,
    as_json: bool,
    dtype: str,
) -> ExitCode:
    from outrider.client.eventlog_file import EventFile
    from outrider.netsim.scenario.drive import drive
    from outrider.netsim.scenario.summary import figures, table

    console = Console(highlight=False, stderr=as_json)
    console.print(Text(f"{scenario.name}  ·  {in_words(scenario)}", style="bold"))
    with _server(address, insecure, dtype, console) as server:
        sink = None if log is None else EventFile(log, "--log")
        try:
            watching = _watching(console, as_json, None if sink is None else sink.put, text)
            outcome = drive(scenario, server, watching, check=check)
        finally:
            if sink is not None:
                sink.close()
                if sink.failure:
                    console.print(sink.failure)
    told: dict[str, Any] = {
        "scenario": scenario.name,
        "mode": scenario.device.mode,
        "drafter": scenario.device.drafter,
        "seed": scenario.seed,
        **figures(outcome),
    }
    if not as_json:
        console.print(table(told, f"{scenario.name}, mode {scenario.device.mode}"))
    print(json.dumps(told), flush=True)
    return ExitCode.INTERRUPTED if outcome.interrupted else ExitCode.DONE


def _watching(console: Console, as_json: bool, put: Any, text: bool) -> Watching:
    from outrider.netsim.scenario.drive import Quiet, Watching

    def view(question: Question) -> View:
        if as_json:
            return Quiet()
        first = " ".join(question.text.split())
        console.print(Text(f"> {first if len(first) <= SHORT else first[:SHORT] + '…'}", style="bold"))
        return _view(console)

    return Watching(
        put=put, text=text, view=view, say=lambda line: console.print(f"ride: {line}", markup=False)
    )


def _view(console: Console) -> View:
    from outrider.client.views import LiveView, MarkedView

    if console.is_terminal and os.environ.get("TERM") != "dumb":
        return LiveView(console)
    return MarkedView(sys.stdout)


@contextmanager
def _server(address: str | None, insecure: bool, dtype: str, console: Console) -> Iterator[Server]:
    """The verifier that was named, or one in a process of its own until the block ends."""
    from outrider.netsim.demo import DemoSettings, verifier
    from outrider.netsim.scenario.device import Server
    from outrider.shared.transport import is_loopback, split_address

    if address is not None:
        split_address(address)
        if not (insecure or is_loopback(address)):
            raise BadConfig(
                "--server",
                f"expected an address on loopback, got {address}: the device speaks plain text through the proxy; "
                "add --insecure, or give the local end of a tunnel",
            )
        yield Server(address=address, insecure=insecure)
        return
    console.print("starting the verifier (the first time, it converts its target: about half a minute) …")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the verifier must not outlive this
    with (
        tempfile.TemporaryDirectory(prefix="outrider-run-") as scratch,
        verifier(DemoSettings(dtype=dtype), Path(scratch)) as listening,
    ):
        yield Server(address=listening)
