"""Laws along real texts: what the file holds is what both models say there, and theory takes it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from outrider.client.drafter import Budget, Drawing
from outrider.cloud.cli import app
from outrider.cloud.engine import Engine, Request
from outrider.cloud.evaluate.contenders import Contender, open_contender
from outrider.cloud.evaluate.laws import LawsPlan, LawsWriter, Wanted, line, opened, wanted
from outrider.cloud.evaluate.ruled import Desk, LiveRows, Manner, Task
from outrider.cloud.generate import generate
from outrider.cloud.rules import KNOWN
from outrider.cloud.selfcheck import probe_ids
from outrider.cloud.target import load_target
from outrider.cloud.worker import Worker
from outrider.netsim.cli import app as sim
from outrider.netsim.theory.measured import Measured, Text, read
from outrider.netsim.theory.pairs import tv
from outrider.netsim.theory.predict import predict
from outrider.netsim.theory.simulate import MOST_DEVIATIONS
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import ConfigError, InvalidField
from outrider.shared.frames import Rule, TokenKind
from outrider.shared.laws import SparseLaw
from outrider.shared.sampling import Sampling, law
from tests.tiny import VOCABULARY
from tests.tiny_bundle import make_bundle

STOPS = (7,)
PROMPTS = [(f"q{n}", probe_ids(VOCABULARY, 6 + 2 * n, n)) for n in range(4)]
PLAN = LawsPlan(tokens=6, samples=2, temperature=1.2, top_k=40, entries=12, bits=10, width=3, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/, weights/ and drafter.onnx, in float32: int8 activations depend on what else is fed in a run."""
    folder = tmp_path_factory.mktemp("laws")
    make_bundle(folder, int8=False)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    """The tiny target."""
    return Engine(load_target(folder / "target"))


@pytest.fixture(scope="module")
def contender(folder: Path, engine: Engine) -> Contender:
    """The random drafter."""
    return open_contender(f"moa={folder / 'drafter.onnx'}@{folder / 'weights'}", engine.target)


def measured(path: Path, writer: LawsWriter, kinds: list[Wanted], prompts: Any = PROMPTS) -> Measured:
    """What a reader finds in the file that is written."""
    with opened(path) as out:
        out.write(line(writer.header()))
        for kind in kinds:
            for text in writer.texts(prompts, kind):
                out.write(line(text))
    return read(path)


def laws_along(
    engine: Engine, contender: Contender, prompt: tuple[int, ...], ids: list[int], plan: LawsPlan
) -> Iterator[tuple[SparseLaw, NDArray[np.float64]]]:
    """Both laws at every position of a text, from one pass over it and a drafter begun anew at each."""
    whole = (*prompt, *ids)
    (rows,) = engine.forward([Request(-9, 0, prompt, Draft.chain(ids))])
    assert rows is not None
    engine.keep(-9, len(whole))
    states = LiveRows(engine, contender)(-9, 0, len(whole))
    engine.evict(-9)
    drafter = contender.make()
    drawing = Drawing(DraftKind.SAMPLED, b"any", top=plan.entries, bits=plan.bits)
    budget = Budget(1, 1, sampling=plan.sampling, drawing=drawing)
    for number in range(len(ids)):
        last = len(prompt) + number - 1
        drafter.rollback(0)
        drafter.begin(whole[: last + 1])
        for plane, values in enumerate(states):
            drafter.add_rows(plane, 0, values[:last])
        yield drafter.propose(budget).draft.laws[0], law(rows.logits[number].numpy(), plan.sampling)


def check_text(text: Text, ids: list[int], both: list[tuple[SparseLaw, NDArray[np.float64]]]) -> None:
    """The file's total variation and the token's place, against dense laws in float64."""
    dense = [np.abs(draft.dense(VOCABULARY) - target).sum() / 2 for draft, target in both]
    assert tv(text.pair) == pytest.approx(np.array(dense), abs=1e-12)
    for row, (token, (draft, target)) in enumerate(zip(ids, both, strict=True)):
        chance = target[token] if token in draft.ids else 1 - target[list(draft.ids)].sum()
        assert text.pair.target[row, text.at[row]] == pytest.approx(chance, abs=1e-12)


def test_texts_of_the_target_with_its_law_and_the_drafters_first_guess(
    engine: Engine, contender: Contender, tmp_path: Path
) -> None:
    """Eight texts, three a pass: each what the target alone says with its seed, each law a fresh drafter's."""
    found = measured(
        tmp_path / "laws.jsonl", LawsWriter(engine, contender, PLAN, STOPS), wanted((), uno=False)
    )
    assert len(found.texts) == 8 and (found.target, found.draft) == ("target", "moa")
    by_prompt = {name: [text for text in found.texts if text.prompt == name] for name, _ in PROMPTS}
    for number, (name, prompt) in enumerate(PROMPTS * 2):
        sampling = Sampling(1.2, 40, seed=(5 << 32) + number)
        ids = list(generate(Worker(engine), prompt, sampling, PLAN.tokens, STOPS))
        both = list(laws_along(engine, contender, prompt, ids, PLAN))
        shares = [float(target[list(draft.ids)].sum()) for draft, target in both]
        (text,) = [
            one
            for one in by_prompt[name]
            if len(one) == len(ids) and np.allclose(1 - one.pair.target[:, -1], shares, atol=1e-12)
        ]
        assert not text.tested.any()
        check_text(text, ids, both)


@pytest.mark.parametrize(("chain", "bonus"), [(1, False), (3, False), (3, True)])
def test_texts_of_the_rule_say_what_was_tested(
    engine: Engine, contender: Contender, tmp_path: Path, chain: int, bonus: bool
) -> None:
    """With ε = 1 nothing is refused, with 0 some is; tokens behind a whole chain are untested, or not there at all."""
    plan = LawsPlan(tokens=8, chain=chain, bonus=bonus, width=2)
    found = measured(
        tmp_path / "laws.jsonl", LawsWriter(engine, contender, plan, ()), wanted((0, 1), uno=False)
    )
    refused, free = found.by_rule().values()
    assert len(refused) == len(free) == len(PROMPTS) and any(text.rejected.any() for text in refused)
    for text in (*refused, *free):
        assert len(text) == 8 and (bonus or text.tested.all())
    for text in free:
        assert not text.rejected.any()
        assert [place for place in range(8) if not text.tested[place]] == ([3, 7] if bonus else [])


def test_drafts_of_one_have_the_law_of_the_text_alone(
    engine: Engine, contender: Contender, tmp_path: Path
) -> None:
    """A rule's text, chains of one: the law that was drawn from is the one of a drafter begun there."""
    plan = LawsPlan(tokens=6)
    kind = wanted((0.2,), uno=True)[2]
    found = measured(tmp_path / "laws.jsonl", LawsWriter(engine, contender, plan, ()), [kind], PROMPTS[:1])
    manner = Manner(
        rule=kind.rule,
        sampling=plan.sampling,
        budget=Budget(1, 1, drawing=plan.drawing),
        tokens=plan.tokens,
        bonus=False,
    )
    desk = Desk(engine, contender, KNOWN.named(kind.rule.name))
    (again,) = desk.write([Task(PROMPTS[0][1], 1 << 32)], manner)
    check_text(found.texts[0], again.ids, list(laws_along(engine, contender, PROMPTS[0][1], again.ids, plan)))


def test_real_rejections_are_those_of_the_theorems(
    engine: Engine, contender: Contender, tmp_path: Path
) -> None:
    """24 prompts: rejections and audit within 4.5 standard errors of the laws, UNO's gap above 0."""
    prompts = [(f"q{n}", probe_ids(VOCABULARY, 8, n)) for n in range(24)]
    plan = LawsPlan(tokens=4, width=8, entries=32)
    path = tmp_path / "laws.jsonl.gz"
    writer = LawsWriter(engine, contender, plan, ())
    found = predict(measured(path, writer, wanted((0, 0.01), uno=True), prompts), (1,), (1,), (0.01,))
    assert found.tokens == 96 and json.loads(gzip.decompress(path.read_bytes()).splitlines()[0])["bits"] == 12
    standard, other, best, worse = sorted(
        found.rules, key=lambda paid: (paid.rule.epsilon, paid.rule.replace)
    )
    assert [paid.rule.replace for paid in (standard, other, best, worse)] == ["opt", "uno", "opt", "uno"]
    assert all(abs(paid.surprise.z()) < MOST_DEVIATIONS for paid in found.rules)
    assert abs(standard.gap.z()) < MOST_DEVIATIONS and abs(best.gap.z()) < MOST_DEVIATIONS
    assert other.gap.mean > 0 and worse.gap.mean > 0
    assert found.standard_against_theorem1 is not None
    assert abs(found.standard_against_theorem1) < MOST_DEVIATIONS


def test_from_prompts_to_theory(folder: Path, tmp_path: Path) -> None:
    """The command's file is taken by `outrider-sim theory --pair`, with the target's and both rules' texts."""
    prompts = tmp_path / "qa.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Who is {n}?"}) + "\n" for n in range(3)))
    out = tmp_path / "made" / "laws.jsonl.gz"
    command = ["eval", "laws", "--prompts", str(prompts), "--out", str(out), "--dtype", "float32"]
    command += ["--target", str(folder / "target"), "--per-set", "2", "--tokens", "4", "--bundle"]
    command += [f"moa={folder / 'drafter.onnx'}@{folder / 'weights'}"]
    command += ["--rule", "overaccept", "--epsilon", "0.1", "--uno"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0 and "overaccept-uno, ε = 0.1: " in done.output
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    quick = ["--runs", "50", "--chains", "1", "--instances", "2", "--batches", "1,2", "--windows", "1,2"]
    told = CliRunner().invoke(sim, ["theory", "--pair", str(out), "--json", *quick], catch_exceptions=False)
    pair = json.loads(told.output.splitlines()[-1])["pair"]
    assert (pair["prompts"], pair["texts"], len(pair["rules"])) == (2, 2, 2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rule", "typical", "--epsilon", "0.1"], "overaccept only"),
        (["--rule", "overaccept"], "go together"),
        (["--epsilon", "0.1"], "go together"),
        (["--uno"], "go together"),
        (["--rule", "overaccept", "--epsilon", "0", "--top-k", "5"], "rules out"),
        (["--rule", "overaccept", "--epsilon", "0", "--temperature", "0"], "rules out"),
    ],
)
def test_rules_that_no_laws_are_written_of(tmp_path: Path, words: list[str], says: str) -> None:
    """Another rule, a rule or its ε alone, and warps under which the served rule is not the theorem's: refused."""
    command = ["eval", "laws", "--prompts", str(tmp_path), "--out", str(tmp_path / "x.jsonl"), *words]
    with pytest.raises(ConfigError, match=says):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_a_drafter_without_a_law_is_refused_and_leaves_no_file(
    engine: Engine, contender: Contender, tmp_path: Path
) -> None:
    """Prompt lookup has nothing to say after a text without repetition: ConfigError, and only the partial file."""
    silent = open_contender("copy=ngram", engine.target)
    writer = LawsWriter(engine, silent, LawsPlan(tokens=3), ())
    with pytest.raises(ConfigError, match="copy has no law at position 5"):
        measured(tmp_path / "laws.jsonl", writer, wanted((), uno=False), [("q", (1, 2, 3, 4, 5))])
    assert not (tmp_path / "laws.jsonl").exists() and engine.kv.bytes_in_use == 0


@pytest.mark.parametrize("rule", ["coupled", "delta", "multidraft", "traversal", "typical"])
def test_a_desk_writes_under_any_rule(engine: Engine, contender: Contender, rule: str) -> None:
    """Trees and chains, drawn or chosen: rounds add up to the text, one kind a token, and texts can be had again."""
    kind = DraftKind.DISTINCT if rule in ("multidraft", "traversal") else None
    drawing = Drawing(kind, b"", first=2, below=2, bits=8) if kind else None
    manner = Manner(
        rule=Rule(rule),
        sampling=Sampling(1.0),
        budget=Budget(6, 3, tree=True, drawing=drawing),
        tokens=8,
        stop_ids=STOPS,
    )
    tasks = [Task(prompt, number) for number, (_, prompt) in enumerate(PROMPTS[:3])]
    texts = list(Desk(engine, contender, KNOWN.named(rule), width=2).write(tasks, manner))
    assert {text.task.seed for text in texts} == {0, 1, 2} and engine.kv.bytes_in_use == 0
    for text in texts:
        assert text.ids == [token for one in text.rounds for token in one.ids]
        assert all(len(one.kinds) == len(one.ids) for one in text.rounds)
        assert len(text.ids) >= 8 or text.ids[-1] in STOPS
        assert rule == "typical" or all(TokenKind.JUDGED not in one.kinds for one in text.rounds)
        (again,) = Desk(engine, contender, KNOWN.named(rule)).write([text.task], manner)
        assert again.ids == text.ids
        if rule == "coupled":
            sampling = manner.sampling_of(text.task)
            alone = list(generate(Worker(engine), text.task.prompt, sampling, len(text.ids), STOPS))
            assert alone == text.ids


def test_a_desk_passes_on_what_a_rule_refuses(engine: Engine, contender: Contender) -> None:
    """A chosen chain under a rule on laws: the rule's own InvalidField, and nothing is left in the engine."""
    manner = Manner(rule=Rule("block"), sampling=Sampling(1.0), budget=Budget(3, 3), tokens=4)
    desk = Desk(engine, contender, KNOWN.named("block"))
    with pytest.raises(InvalidField, match="chosen, not drawn"):
        list(desk.write([Task(PROMPTS[0][1], 1)], manner))
    assert engine.kv.bytes_in_use == 0
