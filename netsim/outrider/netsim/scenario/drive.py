"""Drives the real client and a real verifier through the proxy, as a scenario says.

Every question has a session of its own, as `outrider generate` would; all of them share one ride. The bundle is
fetched before the ride begins, over the clean link.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from outrider.client.answers import Finished, LinkNote, SessionEvent
from outrider.client.channel import ChannelSettings
from outrider.client.commands import watch
from outrider.client.eventlog import Line, Run
from outrider.client.prepare import DeviceOptions
from outrider.client.recorder import Recorder
from outrider.client.recording import header
from outrider.client.rules import asked_rule
from outrider.client.session import Session, SessionConfig
from outrider.client.views import View
from outrider.netsim.proxy import Proxy
from outrider.netsim.scenario.capacity import STEP_S, Carried
from outrider.netsim.scenario.device import Server, configured, draft_of, equip
from outrider.netsim.scenario.meter import Measured, Meter, Several
from outrider.netsim.scenario.model import DeviceSpec, Question, Scenario
from outrider.netsim.scenario.ride import Ride
from outrider.netsim.scenario.summary import Outcome, common
from outrider.shared.frames import CostCurve
from outrider.shared.sampling import Sampling

OFFLINE, OVER = "offline", "ride over"
"""Why an answer ended before the target's end of it: the device's patience, or the ride's end."""


class Quiet:
    """A view that shows nothing."""

    def show(self, event: SessionEvent, transcript: object) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """Who looks on."""

    put: Callable[[Line], None] | None = None
    """Takes the lines of the event log."""
    text: bool = False
    """The log may hold the text of answers."""
    view: Callable[[Question], View] = lambda question: Quiet()
    """Makes the view of an answer."""
    say: Callable[[str], None] = lambda text: None
    """Takes what the link does, for people."""


def drive(
    scenario: Scenario, server: Server, watching: Watching | None = None, *, check: bool = False
) -> Outcome:
    """Run a scenario; what it came to. `check` compares every answer with the target's own text afterwards.

    Ctrl-C ends the answer under way and the run, with what was measured. Raises LinkError when the verifier cannot be
    reached at the start, OutriderError when it ends an answer with an error.
    """
    return asyncio.run(_Drive(scenario, server, watching or Watching()).run(check))


def run_header(scenario: Scenario) -> Run:
    """First line of the event log."""
    spec = scenario.device
    made = header(
        draft=draft_of(spec), pacing="edge", drafter=spec.drafter, seed=scenario.seed, link=scenario.name
    )
    links = {phase.link.rtt_s for phase in scenario.phases}
    return replace(made, mode=spec.mode, rtt_ms=links.pop() * 1e3 if len(links) == 1 else None)


class _Drive:
    """One run."""

    def __init__(self, scenario: Scenario, server: Server, watching: Watching) -> None:
        self._scenario = scenario
        self._spec: DeviceSpec = scenario.device
        self._server = server
        self._watching = watching
        self._ride = Ride(scenario)
        self._carried = Carried(self._ride)
        seed = scenario.seed if self._spec.temperature else 0
        self._sampling = Sampling(temperature=self._spec.temperature, seed=seed)
        self._session: Session | None = None
        self._view: View | None = None
        self._over = False

    async def run(self, check: bool) -> Outcome:
        """See `drive`."""
        options = await equip(self._spec, self._server, self._scenario.seed)
        # Loading takes seconds, and whatever is wrong is to be wrong before the ride begins.
        self._first: SessionConfig | None = await configured(self._spec, options, self._server.address)
        if self._watching.put is not None:
            self._watching.put(run_header(self._scenario))
        proxy = Proxy(
            self._server.host_port,
            link=self._ride.link,
            faults=self._ride.schedule(),
            seed=self._scenario.seed,
            watch=self._changed,
        )
        async with proxy:
            self._proxy = proxy
            meter, interrupted = await self._ask_all(options)
            link = proxy.stats
        if check and not interrupted:
            self._watching.say("over; asking the target alone, over the clean link, what it says …")
            for answer in meter.answers:
                answer.identical = await self._compare(answer, options)
        return Outcome(tuple(meter.answers), link, interrupted)

    async def _ask_all(self, options: DeviceOptions) -> tuple[Meter, bool]:
        loop = asyncio.get_running_loop()
        self._began_at = time.monotonic()
        meter = Meter(self._proxy.on_token)
        recorder = None
        if self._watching.put is not None:
            recorder = Recorder(self._watching.put, self._began_at, text=self._watching.text)
        timers = [loop.call_later(STEP_S, self._tick)]
        if self._ride.end_s < float("inf"):
            timers.append(loop.call_later(self._ride.end_s, self._end_of_ride))
        self._note_capacity()
        try:
            for question in self._scenario.questions:
                finished = await self._ask(question, meter, recorder, options)
                if finished.error is not None:
                    raise finished.error
                if finished.reason == "cancelled":
                    return meter, True
                if self._over:
                    break
        finally:
            self._over = True
            for timer in timers:
                timer.cancel()
        return meter, False

    async def _ask(
        self, question: Question, meter: Meter, recorder: Recorder | None, options: DeviceOptions
    ) -> Finished:
        listeners: list[Any] = [meter]
        if recorder is not None:
            recorder.describe(question.category, question.name)
            listeners.append(recorder)
        config, self._first = self._first, None
        if config is None:
            config = await configured(self._spec, options, self._proxy.address)
        channel = ChannelSettings(server=self._proxy.address)
        prompt = config.tokenizer.chat([{"role": "user", "content": question.text}])
        meter.ask(question, prompt)
        view = self._view = self._watching.view(question)
        async with Session(replace(config, channel=channel, listener=Several(listeners))) as session:
            self._session = session
            meter.cost = lambda: _cost(session)
            events = session.generate(
                prompt,
                max_new=self._spec.max_tokens,
                sampling=self._sampling,
                rule=asked_rule(self._spec.rule, self._sampling),
            )
            try:
                return await watch(session, events, view, (self._spec.patience_s, OFFLINE))
            finally:
                self._session = self._view = None

    async def _compare(self, answer: Measured, options: DeviceOptions) -> bool:
        """Whether the text is that of plain streaming over the clean link, by the rule of the target alone.

        Of an answer that did not end by itself only what the target has decided counts.
        """
        alone = replace(self._spec, mode="stream", rule="auto")
        config = await configured(alone, replace(options, draft="none"), self._server.address)
        config = replace(config, channel=self._server.channel)
        async with Session(config) as session:
            events = session.generate(answer.prompt, max_new=self._spec.max_tokens, sampling=self._sampling)
            async for event in events:
                if isinstance(event, Finished) and event.error is not None:
                    raise event.error
            ids = session.transcript.ids if session.transcript is not None else ()
        if answer.complete:
            return answer.ids == ids
        return common(answer.ids, ids) >= answer.verified

    # --------------------------------------------------------------------------------------------------------- the link

    def _changed(self, record: dict[str, Any]) -> None:
        """A record of the proxy's."""
        if not self._carried.take(record):
            return
        self._note_capacity()
        phase = self._carried.phase
        if record["event"] == "fault-end":
            self._tell(f"{record['fault']} over")
        elif record["fault"] == "relink":
            self._tell(f"now {phase.name}: {phase.link_name}")
        else:
            length = "for good" if record["for_s"] is None else f"for {record['for_s']:.1f} s"
            self._tell(f"{record['fault']} {length}")

    def _tell(self, text: str) -> None:
        session, view = self._session, self._view
        if session is None or view is None or session.transcript is None:
            self._watching.say(text)
        else:
            view.show(LinkNote(session.machine.link, f"ride: {text}"), session.transcript)

    def _note_capacity(self) -> None:
        if self._watching.put is not None and not self._over:
            at_s = max(time.monotonic() - self._began_at, 0.0)
            self._watching.put(self._carried.line(at_s, self._proxy.now()))

    def _tick(self) -> None:
        if not self._over:
            if self._carried.traced:
                self._note_capacity()
            asyncio.get_running_loop().call_later(STEP_S, self._tick)

    def _end_of_ride(self) -> None:
        self._over = True
        if self._session is not None:
            self._session.stop(OVER)


def _cost(session: Session) -> CostCurve | None:
    """What the verifier said about its passes when it admitted the session."""
    active = session.machine.active
    return active.opened.cost if active is not None and active.opened is not None else None
