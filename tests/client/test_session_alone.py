"""A session without any verifier: it writes on alone, stops where it is told to, and never spins or hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from outrider.client.answers import Finished, LinkNote, SessionEvent, Shown
from outrider.client.chat import continuation
from outrider.client.drafter import Budget, Proposal
from outrider.client.drafters.none import NoDrafter
from outrider.client.drafters.oracle import OracleDrafter
from outrider.client.events import Label
from outrider.client.journal import Record
from outrider.client.journal_file import JournalFile
from outrider.client.machine_settings import Offline, Reconcile
from outrider.client.session import Session, SessionConfig
from outrider.shared.errors import ConfigError
from outrider.shared.sampling import Sampling
from outrider.shared.tokenizer import Tokenizer, make_artefact
from tests.device import Device, chain
from tests.tiny import CHAT_TEMPLATE, SPECIALS, tokenizer_object, write_tokenizer

NOBODY = "127.0.0.1:1"
TEXT = "this is a text with an END in it, and more of it"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tiny byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


def device(tokenizer: Tokenizer, offline: Offline, stops: Sequence[str] = ()) -> Device:
    """A device that drafts `TEXT` after "go: ", with no verifier at its address."""
    ids = (*tokenizer.encode("go: "), *tokenizer.encode(TEXT), tokenizer.stop_ids[0])
    drafter = OracleDrafter(ids)
    return Device(
        address=NOBODY, tokenizer=tokenizer, drafter=drafter, plan=chain(4), offline=offline, stops=stops
    )


def test_standalone_writes_to_the_end_token(tokenizer: Tokenizer) -> None:
    """Without a link for ever, the drafted end token ends the answer, unverified and labelled so."""
    answer = device(tokenizer, Offline.ALWAYS).ask(tokenizer.encode("go: "), 200)
    assert answer.text == TEXT
    assert answer.finished is not None and not answer.finished.verified
    assert set(answer.labels) == {Label.PROVISIONAL}


@pytest.mark.parametrize("count", [1, 5, 16])
def test_standalone_keeps_the_token_limit(tokenizer: Tokenizer, count: int) -> None:
    """Exactly as many tokens as asked for."""
    answer = device(tokenizer, Offline.ALWAYS).ask(tokenizer.encode("go: "), count)
    assert answer.ids == tokenizer.encode(TEXT)[:count]


def test_standalone_ends_at_a_stop_string(tokenizer: Tokenizer) -> None:
    """A stop string drafted alone for ever ends the answer before it, whatever was drafted beyond."""
    answer = device(tokenizer, Offline.ALWAYS, ("END",)).ask(tokenizer.encode("go: "), 200)
    assert answer.text == TEXT[: TEXT.index("END")]
    assert answer.finished is not None and not answer.finished.verified


def test_a_stop_string_within_the_least_length_ends_nothing(tokenizer: Tokenizer) -> None:
    """As for stop ids: it has to begin behind so many tokens."""
    until = len(tokenizer.encode(TEXT[: TEXT.index("END")]))
    for least, text in ((until, TEXT[: TEXT.index("END")]), (until + 1, TEXT)):
        asked = device(tokenizer, Offline.ALWAYS, ("END",))
        answer = asked.ask(tokenizer.encode("go: "), 200, Sampling(min_tokens=least))
        assert answer.text == text


def test_a_stop_string_in_provisional_text_only_pauses(tokenizer: Tokenizer) -> None:
    """With a verifier that may come back, drafting waits at the stop string without turning in circles."""

    async def run() -> tuple[list[SessionEvent], str, float]:
        seen: list[SessionEvent] = []
        async with Session(device(tokenizer, Offline.AUTO, ("END",)).config()) as session:
            asyncio.get_running_loop().call_later(2.0, session.stop)
            began = time.process_time()
            async for event in session.generate(tokenizer.encode("go: "), max_new=200, stops=("END",)):
                seen.append(event)
            assert session.transcript is not None
            return seen, session.transcript.text(), time.process_time() - began

    seen, text, busy_s = asyncio.run(asyncio.wait_for(run(), 30))
    assert text == TEXT[: TEXT.index("END")]
    assert isinstance(seen[-1], Finished) and seen[-1].reason == "cancelled" and not seen[-1].verified
    assert sum(len(event.pieces) for event in seen if isinstance(event, Shown)) < len(tokenizer.encode(TEXT))
    assert busy_s < 1.5


@pytest.mark.parametrize(
    ("offline", "policy"), [(Offline.NEVER, Reconcile.REVISE), (Offline.AUTO, Reconcile.PAUSE)]
)
def test_nothing_is_shown_where_nothing_may_be(
    tokenizer: Tokenizer, offline: Offline, policy: Reconcile
) -> None:
    """Never offline, or pausing while offline: no token is shown that nobody verified, and stopping works."""
    asked = device(tokenizer, offline)
    asked.reconcile = policy

    async def run() -> list[SessionEvent]:
        async with Session(asked.config()) as session:
            asyncio.get_running_loop().call_later(2.0, session.stop)
            return [event async for event in session.generate(tokenizer.encode("go: "), max_new=20)]

    seen = asyncio.run(asyncio.wait_for(run(), 30))
    assert not any(isinstance(event, Shown) for event in seen)
    assert isinstance(seen[-1], Finished) and seen[-1].reason == "cancelled"


def test_a_drafter_with_nothing_to_say_ends_standalone(tokenizer: Tokenizer) -> None:
    """No drafter and no link for ever: the answer is empty and the session ends by itself."""
    asked = device(tokenizer, Offline.ALWAYS)
    asked.drafter = NoDrafter()
    answer = asked.ask(tokenizer.encode("go: "), 10)
    assert answer.ids == () and answer.finished is not None and not answer.finished.verified


class BrokenDrafter(OracleDrafter):
    """Fails from a length on."""

    def propose(self, budget: Budget) -> Proposal:
        """Raise once the sequence is long enough."""
        if self.length > 8:
            raise ValueError("broken")
        return super().propose(budget)


def test_a_drafter_that_fails_is_told_about(tokenizer: Tokenizer) -> None:
    """An exception in the drafter's thread ends drafting with a note, not the session with a hang."""
    asked = device(tokenizer, Offline.ALWAYS)
    ids = (*tokenizer.encode("go: "), *tokenizer.encode(TEXT))
    asked.drafter = BrokenDrafter(ids)
    answer = asked.ask(tokenizer.encode("go: "), 40)
    assert answer.finished is not None
    notes = [event.note for event in answer.events if isinstance(event, LinkNote)]
    assert any("broken" in note for note in notes)


def test_a_second_question_continues_the_ids(tokenizer: Tokenizer) -> None:
    """The next turn appends what the template puts after an answer: the history's ids stay as generated."""
    first = tokenizer.chat([{"role": "user", "content": "hi"}])
    said = tokenizer.encode("hello")
    follow = continuation(tokenizer, (*first, *said), "again")
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "again"},
    ]
    assert (*first, *said, *follow) == tokenizer.chat(messages)
    ended = (*first, *said, tokenizer.stop_ids[0])
    assert (*ended, *continuation(tokenizer, ended, "again")) == tokenizer.chat(messages)


def test_a_template_that_cannot_be_continued_is_refused() -> None:
    """A template that renders an answer differently once it is history is found out."""
    template = CHAT_TEMPLATE.replace("message['content']", "(message['content'] | upper)")
    artefact = make_artefact(tokenizer_object(), template, [2], {"eos_token": SPECIALS[2]})
    odd = Tokenizer.from_artefact(artefact)
    with pytest.raises(ConfigError, match="template"):
        continuation(odd, (), "again")


class FullDisk(JournalFile):
    """A journal on a disk without room."""

    def append(self, record: Record) -> None:
        """Fail as the system does."""
        raise OSError(28, "No space left on device")


def test_a_journal_that_cannot_be_written_is_no_end(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The disk fills up: the session says so and goes on."""
    config = device(tokenizer, Offline.ALWAYS).config()
    journal = FullDisk(tmp_path / "journal")

    async def run() -> list[SessionEvent]:
        changed = SessionConfig(
            tokenizer=config.tokenizer,
            pacing=config.pacing,
            drafter=config.drafter,
            offline=Offline.ALWAYS,
            journal=journal,
        )
        async with Session(changed) as session:
            return [event async for event in session.generate(tokenizer.encode("go: "), max_new=5)]

    seen = asyncio.run(asyncio.wait_for(run(), 30))
    assert isinstance(seen[-1], Finished) and seen[-1].stats.tokens == 5
    assert any(isinstance(event, LinkNote) and "journal" in event.note for event in seen)
