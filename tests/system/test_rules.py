"""Every rule end to end: a tiny MoA bundle drafts for a tiny target over real gRPC, and the answer says how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from outrider.client.bundle import Bundle, load_bundle
from outrider.client.drafter import Drafter
from outrider.client.drafters.hybrid import HybridDrafter
from outrider.client.drafters.ngram import NgramDrafter
from outrider.client.events import Label
from outrider.client.journal import restore
from outrider.client.journal_file import read_journal
from outrider.client.machine_settings import Offline
from outrider.client.plan import Plan
from outrider.client.rules import manner_of
from outrider.cloud.config import ServeConfig
from outrider.cloud.load import load
from outrider.shared.errors import ExitCode, exit_code
from outrider.shared.frames import Rule, TokenKind
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer
from tests.device import Answer, Device, chain, tree
from tests.harness import Handle, running_verifier
from tests.tiny_bundle import make_bundle

COUNT = 24
WARM = Sampling(1.0, 20, 0.95, repetition_penalty=1.2)
EXACT = ("residual", "block", "multidraft", "batch", "traversal", "delta", "look")
LOSSY = (Rule("overaccept", (("epsilon", 0.3),)), Rule("typical"))


@dataclass(frozen=True)
class World:
    """A verifier of a tiny target with a bundle; whether it serves lossy rules is the operator's say."""

    handle: Handle
    bundle: Bundle
    tokenizer: Tokenizer

    def device(self, rule: Rule, drafter: Drafter | None = None, **changes: object) -> Device:
        """A device with the bundle's drafter."""
        own = drafter is None
        settings: dict[str, object] = {
            "address": self.handle.address,
            "tokenizer": self.tokenizer,
            "drafter": drafter or self.bundle.drafter(),
            "plan": plan_of(rule),
            "bundle": self.bundle.sha256 if own else b"",
            "num_planes": len(self.bundle.planes) if own else 0,
            "rule": rule,
        }
        return Device(**{**settings, **changes})  # type: ignore[arg-type]

    @property
    def prompt(self) -> tuple[int, ...]:
        """A question."""
        return self.tokenizer.chat([{"role": "user", "content": "the thing in the end"}])


def plan_of(rule: Rule) -> Plan:
    """Trees where the rule takes them."""
    manner = manner_of(rule)
    return chain(5) if manner is not None and manner.first == 1 else tree(12, 4)


def served(folder: Path, *, rules: Sequence[str]) -> Iterator[World]:
    """A verifier that serves these rules."""
    path = folder / "drafter.onnx"
    config = ServeConfig(
        target=str(folder / "target"),
        bundle=path,
        drafters=(folder / "weights",),
        threads=1,
        kv_budget_mib=64,
        rules=tuple(rules),
    )
    with running_verifier(loaded=load(config)) as handle:
        bundle = load_bundle(path)
        yield World(handle, bundle, bundle.tokenizer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Target, weights and bundle."""
    made = tmp_path_factory.mktemp("rules")
    make_bundle(made)
    return made


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[World]:
    """Every rule is served."""
    yield from served(folder, rules=("all",))


@pytest.fixture(scope="module")
def strict(folder: Path) -> Iterator[World]:
    """Lossless rules only, as by default."""
    yield from served(folder, rules=("lossless",))


def check(world: World, answer: Answer, rule: Rule) -> None:
    """A complete answer whose every token is labelled as decided by the target, and a report on its rule."""
    assert answer.finished is not None and answer.finished.error is None
    assert answer.reason in ("length", "stop") and answer.finished.verified
    assert len(answer.labels) == len(answer.ids) and answer.ids
    committed = {Label.ACCEPTED, Label.RECOVERED, Label.BONUS, Label.JUDGED}
    assert set(answer.labels) <= committed
    report = answer.finished.report
    assert report is not None and report.rule.name == rule.name and report.gap > -1e-9
    assert report.client_laws is (manner_of(rule) is not None)


@pytest.mark.parametrize("name", EXACT)
def test_a_text_under_every_lossless_rule(world: World, name: str, tmp_path: Path) -> None:
    """It ends well, nothing is judged, drafts of the bundle are accepted, and the journal has it all."""
    rule, journal = Rule(name), tmp_path / "journal"
    device = world.device(rule, journal=journal, offline=Offline.NEVER)
    answer = device.ask(world.prompt, COUNT, WARM)
    check(world, answer, rule)
    assert Label.JUDGED not in answer.labels
    assert answer.finished is not None and answer.finished.stats.drafted > 0
    kept = restore(read_journal(journal))
    assert kept.turn is not None and kept.turn.rule == rule
    assert tuple(kept.sequence.ids[len(world.prompt) :]) == answer.ids
    names = [TokenKind(kept.kinds[len(world.prompt) + n]).name.lower() for n in range(len(answer.ids))]
    assert names == [label.value for label in answer.labels]


def test_residual_tells_its_exact_audit(world: World) -> None:
    """Rejection is the laws' distance and nothing is lost; the JSON object says so."""
    rule = Rule("residual")
    answer = world.device(rule).ask(world.prompt, COUNT, WARM)
    check(world, answer, rule)
    report = answer.finished.report if answer.finished else None
    assert report is not None and report.positions > 0
    assert report.loss == 0.0 and report.rejection == pytest.approx(report.tv) and abs(report.gap) < 1e-9


@pytest.mark.parametrize("drafter", ["ngram", "hybrid"])
def test_copies_are_drawn_too(world: World, drafter: str) -> None:
    """A text of two words repeats itself: looked up, alone or beside the model."""
    copying = NgramDrafter() if drafter == "ngram" else HybridDrafter(world.bundle.drafter())
    rule, words = Rule("block"), replace(WARM, logit_bias=((40, 60.0), (41, 60.0)))
    answer = world.device(rule, copying).ask(world.prompt, COUNT, words)
    check(world, answer, rule)
    assert set(answer.ids) <= {40, 41} and Label.ACCEPTED in answer.labels


@pytest.mark.parametrize("rule", LOSSY, ids=lambda rule: rule.name)
def test_lossy_rules_need_the_operators_consent(world: World, strict: World, rule: Rule) -> None:
    """Where it is given they label what they let through; elsewhere they are refused with the names there are."""
    answer = world.device(rule).ask(world.prompt, COUNT, WARM)
    check(world, answer, rule)
    refused = strict.device(rule).ask(strict.prompt, COUNT, WARM)
    assert refused.finished is not None and refused.finished.error is not None and not refused.ids
    error = refused.finished.error
    assert (
        repr(rule.name) in str(error)
        and "residual" in error.remedy
        and rule.name not in error.remedy.split(", ")
    )
    assert exit_code(error) == ExitCode.USAGE


def test_an_unknown_rule_is_refused_by_the_verifier(strict: World) -> None:
    """With the names of those that can be had."""
    refused = strict.device(Rule("wishful")).ask(strict.prompt, COUNT, WARM)
    assert refused.finished is not None and refused.finished.error is not None
    assert "'wishful'" in str(refused.finished.error) and "coupled" in refused.finished.error.remedy


def test_a_resumed_text_goes_on_under_its_rule(world: World, tmp_path: Path) -> None:
    """Stopped in mid-answer and taken up from the journal: the same rule, with its parameters, to the end."""
    rule, journal = Rule("overaccept", (("epsilon", 0.3),)), tmp_path / "journal"
    device = world.device(rule, journal=journal)
    whole = device.ask(world.prompt, COUNT, WARM)
    check(world, whole, rule)
    lines = journal.read_bytes()
    journal.write_bytes(lines[: len(lines) // 2])
    again = world.device(rule, journal=journal, resume=True).go_on()
    assert again.finished is not None and again.finished.rule == rule
    assert again.reason in ("length", "stop") and again.ids[:1] == whole.ids[:1]
