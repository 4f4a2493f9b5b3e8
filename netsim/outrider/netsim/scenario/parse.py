"""Scenario files: TOML in, `Scenario` out.

    seed = 7
    cut_at_token = 64            # the link goes, for good, when so many tokens were shown

    [device]
    mode = "auto"                # stream, unary, chain, tree, auto

    [prompts]
    path = "questions.jsonl"     # or inline = ["…"]

    [[phases]]
    name = "station"
    for = "45s"
    link = "5g-nsa"              # a preset; or figures; or a preset with other figures; or a trace

    [[phases]]
    name = "tunnel"
    for = "20s"
    link = { preset = "4g-bad", rtt_ms = 140 }
    outages = { gap = "8s", median = "2s", tail = "15s" }
    faults = [{ kind = "reset", at = "4s" }]

Every refusal is a `BadScenario`: file, line, column, what was expected there.
"""

from __future__ import annotations

from pathlib import Path

from outrider.client.rules import asked_rule
from outrider.netsim.faults import Outage, Scheduled
from outrider.netsim.scenario.links import OUTAGES, read_link, read_outages
from outrider.netsim.scenario.model import AFTERS, MODES, After, DeviceSpec, Phase, Scenario
from outrider.netsim.scenario.questions import KEYS as PROMPT_KEYS
from outrider.netsim.scenario.questions import read_questions
from outrider.netsim.scenario.script import KEYS as FAULT_KEYS
from outrider.netsim.scenario.script import read_fault
from outrider.netsim.scenario.source import Source, Table
from outrider.shared.errors import OutriderError
from outrider.shared.sampling import Sampling

TOP = ("name", "summary", "seed", "after", "cut_at_token", "device", "prompts", "phases", "faults")
DEVICE = ("mode", "drafter", "depth", "nodes", "rule", "max_tokens", "temperature", "patience")
PHASE = ("name", "for", "link", "outages", "faults")
MAX_DEPTH, MAX_NODES = 16, 64
MAX_TOKENS = 8192


def read(path: Path) -> Scenario:
    """The scenario of a file. Raises `BadScenario`."""
    return build(Source.read(path))


def parse(text: str, path: Path = Path("scenario.toml")) -> Scenario:
    """The scenario of a text; `path` names it in errors, and files it names are beside that. Raises `BadScenario`."""
    return build(Source(path, text))


def build(source: Source) -> Scenario:
    """The scenario of a source. Raises `BadScenario`."""
    top = source.table(TOP)
    seed = top.whole("seed", 0)
    phases = tuple(_phase(table, number, seed) for number, table in enumerate(top.tables("phases", PHASE), 1))
    _check_order(top, phases)
    faults = tuple(read_fault(table, ride=True) for table in top.tables("faults", FAULT_KEYS))
    cut = top.whole("cut_at_token", None)
    if cut is not None:
        faults = (*faults, Scheduled(Outage(), token=cut))
    return Scenario(
        name=top.text("name", source.path.name.removesuffix(".toml")),
        summary=top.text("summary", ""),
        seed=seed,
        after=_after(top, phases),
        device=_device(top.table("device", DEVICE)),
        questions=read_questions(top.table("prompts", PROMPT_KEYS), source.path.parent),
        phases=phases,
        faults=faults,
        path=source.path,
    )


def _check_order(top: Table, phases: tuple[Phase, ...]) -> None:
    if not phases:
        top.source.fail(("phases",), "expected at least one [[phases]]", key=True)
    for index, phase in enumerate(phases[:-1]):
        if phase.duration_s is None:
            top.source.fail(
                ("phases", index),
                f'expected for = "…": only the last phase may be endless, not {phase.name}',
                key=True,
            )


def _after(top: Table, phases: tuple[Phase, ...]) -> After:
    if phases[-1].duration_s is None:
        if "after" in top:
            top.fail(
                "after", "expected no such key: the last phase has no duration and goes on for ever", key=True
            )
        return "stay"
    after: After = top.choice("after", AFTERS, "repeat")
    return after


def _phase(table: Table, number: int, seed: int) -> Phase:
    duration_s = table.seconds("for", None)
    if duration_s == 0:
        table.fail("for", "expected a duration above 0")
    link, link_name, preset = read_link(table, seed)
    faults = tuple(read_fault(each, ride=False) for each in table.tables("faults", FAULT_KEYS))
    for index, fault in enumerate(faults):
        if duration_s is not None and (fault.at_s or 0.0) >= duration_s:
            table.source.fail(
                (*table.path, "faults", index, "at"), f"expected a moment within the phase's {duration_s:g} s"
            )
    return Phase(
        name=table.text("name", f"phase {number}"),
        duration_s=duration_s,
        link=link,
        link_name=link_name,
        outages=read_outages(table, preset) if OUTAGES in table else None,
        faults=faults,
    )


def _device(table: Table) -> DeviceSpec:
    mode = table.choice("mode", MODES, "auto")
    depth = table.whole("depth", None, low=1, high=MAX_DEPTH)
    nodes = table.whole("nodes", None, low=1, high=MAX_NODES)
    if depth is not None and mode not in ("chain", "tree"):
        table.fail("depth", 'expected no fixed depth: only mode = "chain" or "tree" drafts by it', key=True)
    if nodes is not None and (mode != "tree" or depth is None or nodes < depth):
        table.fail("nodes", 'expected with mode = "tree" and a depth, at least as many nodes as levels')
    spec = DeviceSpec(
        mode=mode,
        drafter=table.text("drafter", "auto"),
        depth=depth,
        nodes=nodes,
        rule=table.text("rule", "auto"),
        max_tokens=table.whole("max_tokens", 128, low=1, high=MAX_TOKENS),
        temperature=table.number("temperature", 0.0, high=100.0),
        patience_s=table.seconds("patience", 30.0),
    )
    try:
        asked_rule(spec.rule, Sampling(temperature=spec.temperature))
    except OutriderError as error:
        table.fail("rule", f"expected a rule, NAME or NAME:PARAMETER=VALUE: {error.detail}")
    return spec
