"""A conversation in the terminal: a turn continues the ids that are there, so the verifier reads only what is new."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from dataclasses import replace

from outrider.client.commands import PATIENCE, Request, make_view, open_session, outcome, tell, watch
from outrider.client.machine_settings import Offline
from outrider.client.prepare import prepare
from outrider.client.report import lines, log_prob_lines
from outrider.client.rules import asked_rule
from outrider.client.session import Session
from outrider.shared.errors import ConfigError, ExitCode, OutriderError
from outrider.shared.tokenizer import Tokenizer

HELP = """\
/set NAME VALUE   change temperature, top_k, top_p, min_p, seed, max_tokens, min_tokens,
                  repetition_penalty, presence_penalty or frequency_penalty
/stats            figures after each answer, on or off
/clear            forget the conversation
/bye              leave (also Ctrl-D)
Ctrl-C stops an answer; a second one leaves at once."""

_NUMBERS = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "seed": int,
    "max_tokens": int,
    "min_tokens": int,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
}


def continuation(tokenizer: Tokenizer, ids: tuple[int, ...], text: str) -> tuple[int, ...]:
    """The ids that a user's ``text`` adds after an answer that ends ``ids``.

    Rendering the history anew would spell an answer with other ids than it was generated with, and nothing that the
    verifier has read could be used again. So only what the template puts behind an answer is rendered.
    """
    before = tokenizer.chat([{"role": "user", "content": "a"}]) + tokenizer.encode("b")
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": text},
    ]
    whole = tokenizer.chat(messages)
    if whole[: len(before)] != before:
        raise ConfigError("chat", "this target's chat template cannot be continued turn by turn")
    added = whole[len(before) :]
    ended = bool(ids) and ids[-1] in tokenizer.stop_ids
    return added[1:] if ended and added and added[0] in tokenizer.stop_ids else added


class Chat:
    """Reads questions, shows answers."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._fresh = True
        self._interactive = sys.stdin.isatty()

    async def run(self) -> ExitCode:
        """Until /bye or the end of stdin; the exit code of the last answer."""
        prepared = await prepare(self.request.device())
        tell(*prepared.notes)
        if self._interactive:
            with suppress(ImportError):
                import readline  # noqa: F401  (line editing and history for input())
            tell("type a message, /help for the commands, /bye to leave")
        last = ExitCode.DONE
        async with open_session(prepared.config, self.request) as session:
            while (line := await _ask("> " if self._interactive else "")) is not None:
                text = line.strip()
                if text in ("/bye", "/exit", "/quit"):
                    break
                if text.startswith("/"):
                    self._command(text)
                elif text:
                    last = await self._turn(session, text)
                    if last is ExitCode.INTERRUPTED:
                        last = ExitCode.DONE
        return last

    async def _turn(self, session: Session, text: str) -> ExitCode:
        request, tokenizer = self.request, session.config.tokenizer
        if self._fresh:
            system = [{"role": "system", "content": request.system}] if request.system else []
            ids, keep = tokenizer.chat([*system, {"role": "user", "content": text}]), 0
        else:
            ids, keep = continuation(tokenizer, session.display_ids, text), session.length
        self._fresh = False
        events = session.generate(
            ids,
            keep=keep,
            max_new=request.max_tokens,
            sampling=request.sampling(),
            rule=asked_rule(request.rule, request.sampling()),
            stops=request.stop or (),
            log_probs=request.logprobs,
        )
        finished = await watch(session, events, make_view(request), PATIENCE.get(Offline(request.offline)))
        if request.logprobs and session.transcript is not None:
            tell(*log_prob_lines(session.transcript))
        if request.stats:
            tell(*lines(finished))
        return outcome(finished)

    def _command(self, text: str) -> None:
        words = text.split()
        try:
            match words:
                case ["/help" | "/?"]:
                    tell(HELP)
                case ["/clear"]:
                    self._fresh = True
                    tell("the conversation is forgotten")
                case ["/stats"]:
                    self.request = replace(self.request, stats=not self.request.stats)
                case ["/set", name, value] if name in _NUMBERS:
                    changed = replace(self.request, **{name: _NUMBERS[name](value)})
                    changed.sampling()
                    self.request = changed
                case ["/set", *_]:
                    tell(f"/set takes one of {', '.join(_NUMBERS)} and a number")
                case _:
                    tell(f"no command {words[0]}; /help lists them")
        except (ValueError, OutriderError) as error:
            tell(str(error))


async def _ask(prompt: str) -> str | None:
    """A line from stdin, None at its end. In a thread of its own, so that the link stays alive and Ctrl-C works."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()

    def deliver(line: str | None) -> None:
        if not answer.done():
            answer.set_result(line)

    def read() -> None:
        try:
            line: str | None = input(prompt)
        except (EOFError, KeyboardInterrupt):
            line = None
        with suppress(RuntimeError):  # the loop may be gone by now
            loop.call_soon_threadsafe(deliver, line)

    threading.Thread(target=read, name="outrider-stdin", daemon=True).start()
    return await answer
