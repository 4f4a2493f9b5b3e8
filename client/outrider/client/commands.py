"""What the commands of `outrider` do, once their options are known."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider.client.answers import Finished, LinkNote, SessionEvent
from outrider.client.channel import ChannelSettings
from outrider.client.eventlog import Run
from outrider.client.events import LinkState
from outrider.client.journal import UNREACHABLE
from outrider.client.machine_settings import Offline, Reconcile
from outrider.client.prepare import DeviceOptions, Prepared, prepare
from outrider.client.recording import header, recorded
from outrider.client.report import as_json, lines, log_prob_lines
from outrider.client.rules import asked_rule, refused
from outrider.client.session import Session, SessionConfig
from outrider.client.views import LiveView, PipeView, View
from outrider.shared.errors import ConfigError, ExitCode, LinkDown
from outrider.shared.sampling import Sampling, biases
from outrider.shared.transport import split_address

PATIENCE = {Offline.NEVER: (60.0, UNREACHABLE), Offline.AUTO: (120.0, "offline")}
"""Longest wait for the link to come back, seconds, and how the answer ends after it: with what is verified, or with
what was drafted alone."""
WORD_S = 5.0
"""Seconds without the link after which the user is told for how long it will be waited for (half the patience, if that
is shorter)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of a command, as given."""

    server: str | None = None
    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    seed: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    logit_bias: list[str] | None = None
    logprobs: bool = False
    rule: str = "auto"
    stop: list[str] | None = None
    system: str | None = None
    draft: str = "tree"
    drafter: str = "auto"
    pacing: str = "auto"
    offline: str = "auto"
    bundle: Path | None = None
    policy: str = "revise"
    journal: Path | None = None
    resume: Path | None = None
    as_json: bool = False
    events: Path | None = None
    events_text: bool = False
    stats: bool = False
    color: str = "auto"
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None
    insecure: bool = False
    drawn_seed: int = field(default_factory=lambda: secrets.randbits(63))

    def sampling(self) -> Sampling:
        """How the target chooses; a seed is drawn when none was given. Raises InvalidField."""
        seed = self.drawn_seed if self.seed is None else self.seed
        checked = Sampling(
            self.temperature,
            self.top_k,
            self.top_p,
            seed,
            self.min_p,
            self.repetition_penalty,
            self.presence_penalty,
            self.frequency_penalty,
            self.min_tokens,
            biases(self.logit_bias or ()),
        )
        return checked if self.temperature else replace(checked, seed=0)

    def run(self) -> Run:
        """The head of an event log."""
        return header(draft=self.draft, pacing=self.pacing, drafter=self.drafter, seed=self.sampling().seed)

    def device(self) -> DeviceOptions:
        """Link and drafter. Raises ConfigError."""
        channel = None
        if self.events_text and self.events is None:
            raise ConfigError(
                "--events-text", "there is no log to write text into", remedy="add --events FILE"
            )
        if self.server is not None and self.offline != Offline.ALWAYS:
            split_address(self.server)
            channel = ChannelSettings(
                server=self.server,
                tls_ca=self.tls_ca,
                tls_cert=self.tls_cert,
                tls_key=self.tls_key,
                token_file=self.token_file,
                insecure=self.insecure,
            )
        if self.resume is not None and self.journal not in (None, self.resume):
            raise ConfigError(
                "--journal", "differs from --resume", remedy="a resumed session stays in its journal"
            )
        return DeviceOptions(
            channel=channel,
            draft=self.draft,
            drafter=self.drafter,
            pacing=self.pacing,
            offline=Offline(self.offline),
            reconcile=Reconcile(self.policy),
            bundle=self.bundle,
            journal=self.resume or self.journal,
            resume=self.resume is not None,
        )


def generate_command(request: Request, prompt: str | None, *, raw: bool = False) -> ExitCode:
    """Answer one prompt, or finish the answer of ``--resume``."""
    return asyncio.run(_generate(request, prompt, raw))


def chat_command(request: Request) -> ExitCode:
    """Talk until /bye or the end of stdin."""
    from outrider.client.chat import Chat

    return asyncio.run(Chat(request).run())


async def _generate(request: Request, prompt: str | None, raw: bool) -> ExitCode:
    sampling = request.sampling()
    rule = asked_rule(request.rule, sampling)
    prepared = await prepare(request.device())
    tell(*prepared.notes)
    async with open_session(prepared.config, request) as session:
        if prompt is None:
            events = session.resume(request.stop)
        else:
            ids = _prompt_ids(prepared, prompt, request.system, raw)
            events = session.generate(
                ids,
                max_new=request.max_tokens,
                sampling=sampling,
                stops=request.stop or (),
                log_probs=request.logprobs,
                rule=rule,
            )
        view = make_view(request)
        finished = await watch(session, events, view, PATIENCE.get(Offline(request.offline)))
    transcript = session.transcript
    if request.as_json and transcript is not None:
        result = as_json(finished, transcript) | {"seed": sampling.seed}
        print(json.dumps(result, ensure_ascii=False))
    elif request.logprobs and transcript is not None:
        tell(*log_prob_lines(transcript))
    if request.stats:
        tell(*lines(finished))
    return outcome(finished)


@asynccontextmanager
async def open_session(config: SessionConfig, request: Request) -> AsyncIterator[Session]:
    """A session, recorded where that was asked for. Raises ConfigError when the log cannot be opened."""
    with recorded(config, request.events, request.run(), text=request.events_text) as (watched, log):
        async with Session(watched) as session:
            yield session
        if log is not None and log.failure:
            tell(log.failure)


def _prompt_ids(prepared: Prepared, prompt: str, system: str | None, raw: bool) -> tuple[int, ...]:
    tokenizer = prepared.config.tokenizer
    if raw:
        return tokenizer.encode(prompt, special=True)
    messages = [{"role": "system", "content": system}] if system else []
    return tokenizer.chat([*messages, {"role": "user", "content": prompt}])


async def watch(
    session: Session,
    events: AsyncIterator[SessionEvent],
    view: View,
    patience: tuple[float, str] | None = None,
) -> Finished:
    """Show an answer to its end. Ctrl-C stops it where it stands; a second one leaves the program at once.

    ``patience``: seconds in a row without the link after which it ends, and the reason it then gives. The view is told
    before that, so that nobody sits before a silent screen for a minute.
    """
    restore = _on_interrupt(session)
    watchdog = None if patience is None else _Watchdog(session, view, *patience)
    try:
        async for event in events:
            transcript = session.transcript
            if transcript is not None:
                view.show(event, transcript)
            if isinstance(event, LinkNote) and watchdog is not None:
                watchdog.link(event.state)
            if isinstance(event, Finished):
                return event
    finally:
        if watchdog is not None:
            watchdog.cancel()
        restore()
        view.close()
    raise LinkDown("the session ended without a word")


class _Watchdog:
    """Ends an answer that has been without the link for too long, and says in time that it will."""

    def __init__(self, session: Session, view: View, patience_s: float, reason: str) -> None:
        self._session, self._view = session, view
        self._patience_s, self._reason = patience_s, reason
        self._timers: tuple[asyncio.TimerHandle, ...] = ()
        self._told = False

    def link(self, state: LinkState) -> None:
        """The link is now in this state."""
        if state is LinkState.ONLINE:
            self.cancel()
            if self._told:
                self._told = False
                self._tell(state, "the verifier is back")
        elif not self._timers:
            loop = asyncio.get_running_loop()
            after_s = min(WORD_S, self._patience_s / 2)
            self._timers = (
                loop.call_later(after_s, self._warn, after_s),
                loop.call_later(self._patience_s, self._session.stop, self._reason),
            )

    def cancel(self) -> None:
        """The link is there, or nobody waits for it any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers = ()

    def _warn(self, after_s: float) -> None:
        self._told = True
        rest_s = self._patience_s - after_s
        self._tell(
            self._session.machine.link,
            f"nothing from the verifier for {after_s:.3g} s; the answer ends without it in {rest_s:.3g} s",
        )

    def _tell(self, state: LinkState, note: str) -> None:
        if self._session.transcript is not None:
            self._view.show(LinkNote(state, note), self._session.transcript)


def _on_interrupt(session: Session) -> Any:
    """SIGINT stops the answer first and the program next; returns what undoes this."""
    pressed = False

    def interrupt() -> None:
        nonlocal pressed
        if pressed:
            os._exit(int(ExitCode.INTERRUPTED))
        pressed = True
        session.stop("cancelled")

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except (NotImplementedError, RuntimeError):  # no signals on this platform or in this thread
        return lambda: None
    return lambda: loop.remove_signal_handler(signal.SIGINT)


def outcome(finished: Finished) -> ExitCode:
    """The exit code of an answer; raises the error that ended it."""
    if finished.error is not None:
        raise refused(finished.error)
    if finished.reason == "cancelled":
        return ExitCode.INTERRUPTED
    if finished.reason == UNREACHABLE:
        tell("the verifier did not come back; what was verified stands above")
        return ExitCode.UNREACHABLE
    if finished.reason == "offline":
        tell("the verifier did not come back: the end of this text, if not all of it, was not verified")
    return ExitCode.DONE


def make_view(request: Request) -> View:
    """Live on a terminal, otherwise plain; nothing at all with --json."""
    if request.as_json:
        return _NoView()
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if request.color == "always" or (request.color == "auto" and terminal):
        from rich.console import Console

        console = Console(force_terminal=True if request.color == "always" else None, highlight=False)
        return LiveView(console, alone=request.offline != Offline.NEVER)
    return PipeView(unverified=request.offline == Offline.ALWAYS)


class _NoView:
    def show(self, event: SessionEvent, transcript: object) -> None:
        """Only notes are worth a word."""
        if isinstance(event, LinkNote) and event.note:
            tell(event.note)

    def close(self) -> None:
        """Nothing is open."""


def tell(*texts: str) -> None:
    """Words for the user, on stderr."""
    for text in texts:
        print(f"outrider: {text}" if text else "", file=sys.stderr, flush=True)
