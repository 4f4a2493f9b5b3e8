"""From `serve --rules … --judge …` to verdicts of a real engine: the rules, the head, and the states it reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.cloud.bundles import BundleStore
from outrider.cloud.config import ServeConfig
from outrider.cloud.engine import Engine, Request
from outrider.cloud.events import Verified, Verify
from outrider.cloud.judge.features import final_norm
from outrider.cloud.judge.head import Feature, JudgeHead
from outrider.cloud.judging import open_rules
from outrider.cloud.load import assemble
from outrider.cloud.rules import EXACT
from outrider.cloud.session_log import Session
from outrider.cloud.table import SessionTable
from outrider.cloud.target import Target, load_target
from outrider.cloud.worker import Worker
from outrider.shared.anchor import EMPTY
from outrider.shared.draft import Draft, DraftKind
from outrider.shared.errors import ConfigError
from outrider.shared.frames import Feature as WireFeature
from outrider.shared.frames import Numerics, Rule, TokenKind, Turn
from outrider.shared.laws import SparseLaw
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer
from tests.tiny import END_ID, make_target

PROMPT = (40, 41, 42, 50)
A, J, R, B = TokenKind.ACCEPTED, TokenKind.JUDGED, TokenKind.RECOVERED, TokenKind.BONUS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target."""
    return make_target(tmp_path_factory.mktemp("target") / "llama")


@pytest.fixture
def worker(folder: Path) -> Iterator[Worker]:
    """A worker over it, of its own: a head changes what its engine shows."""
    yield Worker(Engine(load_target(folder), 64 << 20))


def write_head(path: Path, target: Target, bias: float, feature: Feature = Feature.PRENORM) -> Path:
    """A head that ignores the state: a large bias likes every token."""
    head = JudgeHead(
        weight=np.zeros(target.hidden_size),
        bias=bias,
        delta=0.5,
        target=target.weights.hex(),
        feature=feature,
        validation_auc=0.5,
        data_hash="0" * 64,
        class_weight=1.0,
        c=1.0,
    )
    head.save(path)
    return path


def verify(worker: Worker, draft: Draft, rule: Rule, sampling: Sampling | None = None) -> Verified:
    """One verdict after the prompt, in a session of its own."""
    work = Verify(7, 0, PROMPT, draft, sampling or Sampling(), rule, coin_key=b"k" * 32)
    (outcome,) = worker.run((work,))
    worker.evict(7)
    assert isinstance(outcome, Verified), outcome
    return outcome


def test_the_default_is_every_lossless_rule(worker: Worker) -> None:
    """No lossy rule without the operator's word, and none but those named with it."""
    assert open_rules(ServeConfig(), worker, ()).names == EXACT.names
    named = ServeConfig(rules=("overaccept", "greedy"))
    assert open_rules(named, worker, ()).names == ("greedy", "overaccept")


def test_a_head_for_another_target_is_refused(worker: Worker, tmp_path: Path) -> None:
    """By the option's name and the field at fault; so is a file that is none, before the target is loaded."""
    path = write_head(tmp_path / "head.json", worker.engine.target, 1.0)
    mine = worker.engine.target.weights.hex()
    path.write_text(path.read_text().replace(mine, "f" * 64))
    with pytest.raises(ConfigError, match=r"--judge: head\.json: target"):
        open_rules(ServeConfig(judge=path), worker, ())
    with pytest.raises(ConfigError, match="--judge"):
        ServeConfig(judge=tmp_path / "none.json").check()
    with pytest.raises(ConfigError, match="--rules"):
        ServeConfig(rules=("judge",)).check()


def test_describe_lists_what_is_served(folder: Path, worker: Worker, tmp_path: Path) -> None:
    """Names, judge with its head among them, and draft laws offered only where a rule reads them."""
    tokenizer, store = Tokenizer.from_folder(folder), BundleStore()
    head = write_head(tmp_path / "head.json", worker.engine.target, 1.0)
    for config, names, laws in (
        (ServeConfig(rules=("greedy", "coupled")), ("greedy", "coupled"), False),
        (ServeConfig(rules=("coupled", "kl"), judge=head), ("coupled", "kl", "judge"), True),
    ):
        description = assemble(config, worker, Numerics(), tokenizer, (), store).description
        assert description.rules == names
        assert (WireFeature.DRAFT_LAWS in description.features) is laws


def test_replicas_with_one_secret_throw_the_same_coins(folder: Path, worker: Worker, tmp_path: Path) -> None:
    """A turn's key is the same in two verifiers that share a file, and another in one that does not."""
    tokenizer, store = Tokenizer.from_folder(folder), BundleStore()
    shared = tmp_path / "coins"
    shared.write_text("ab" * 32)
    shared.chmod(0o600)
    keys = []
    for path in (shared, shared, None):
        loaded = assemble(ServeConfig(coin_secret_file=path), worker, Numerics(), tokenizer, (), store)
        table = loaded.table()
        assert isinstance(table, SessionTable) and table.served.coin_secret.hex() not in repr(table.served)
        session, turn = Session(1, "p", b"s" * 16), Turn(1, EMPTY, (5,), 1, 9)
        keys.append(table.coin_key(session, turn, frozenset(), Draft.chain(())))
    assert keys[0] == keys[1] != keys[2]


def test_a_served_head_judges(folder: Path, worker: Worker, tmp_path: Path) -> None:
    """One that likes everything lets wrong tokens through, but no end of text; one that likes nothing is greedy."""
    own = verify(worker, Draft.chain(()), Rule("greedy")).next_id
    wrong = [token for token in (60, 61, 62, 63) if token != own][:2]
    draft = Draft.chain((*wrong, END_ID, 64))
    lenient = Rule("judge", (("floor", 0.0),))
    never = Tokenizer.from_folder(folder).special_ids
    head = write_head(tmp_path / "head.json", worker.engine.target, 20.0)
    open_rules(ServeConfig(judge=head), worker, never)
    outcome = verify(worker, draft, lenient)
    assert (outcome.accepted, outcome.kinds, outcome.audit) == ((0, 1), (J, J, R), None)
    assert verify(worker, draft, Rule("judge", (("delta", 1.0), ("floor", 1.0)))).kinds == (R,)
    head = write_head(tmp_path / "strict.json", worker.engine.target, -20.0)
    open_rules(ServeConfig(judge=head), worker, never)
    assert verify(worker, draft, lenient) == verify(worker, draft, Rule("greedy"))


def test_a_head_gets_the_state_it_was_trained_on(worker: Worker, tmp_path: Path) -> None:
    """Before the final norm or after it: the one, put through the norm, is the other."""
    engine, target = worker.engine, worker.engine.target

    def shown() -> torch.Tensor:
        (rows,) = engine.forward([Request(3, 0, PROMPT, Draft.chain((60, 61)))], hidden=True)
        engine.evict(3)
        assert rows is not None and rows.hidden is not None
        return rows.hidden.clone()

    after = shown()
    head = write_head(tmp_path / "head.json", target, 0.0, Feature.POSTNORM)
    open_rules(ServeConfig(judge=head), worker, ())
    assert torch.equal(shown(), after)
    head = write_head(tmp_path / "head.json", target, 0.0, Feature.PRENORM)
    open_rules(ServeConfig(judge=head), worker, ())
    before = shown()
    assert not torch.allclose(before, after)
    with torch.inference_mode():
        torch.testing.assert_close(final_norm(target.model)(before), after)


def test_a_lossy_rule_on_laws_comes_with_its_audit(worker: Worker) -> None:
    """Through the engine: kinds and audit of the rule, with the parameters that were asked for."""
    laws = tuple(SparseLaw(4, (token, token + 1), (15, 1)) for token in (60, 61))
    draft = Draft.chain((60, 61), DraftKind.SAMPLED, laws)
    everything = verify(worker, draft, Rule("overaccept", (("epsilon", 1.0),)), Sampling(1.0))
    assert everything.kinds[-1] is B and J in everything.kinds
    assert everything.audit is not None and everything.audit.positions == 2
    assert everything.audit.gap == pytest.approx(0.0, abs=1e-9)
    exact = verify(worker, draft, Rule("overaccept", (("epsilon", 0.0),)), Sampling(1.0))
    assert exact.audit is not None and exact.audit.loss == pytest.approx(0.0, abs=1e-9)
    residual = verify(worker, draft, Rule("residual"), Sampling(1.0))
    assert (exact.accepted, exact.next_id, exact.kinds) == (
        residual.accepted,
        residual.next_id,
        residual.kinds,
    )
