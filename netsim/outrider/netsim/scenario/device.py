"""The device of a scenario: how it decodes, and a verifier it can reach."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider.client.cache import Cache
from outrider.client.channel import ChannelSettings
from outrider.client.choice import NGRAM
from outrider.client.fetching import Fetcher
from outrider.client.pacing import make_pacing
from outrider.client.plan import STREAMING, FixedPacing, Pacing, Plan
from outrider.client.prepare import CONTACT_S, DeviceOptions, prepare
from outrider.client.session import SessionConfig
from outrider.netsim.scenario.model import DeviceSpec

UNARY = FixedPacing(Plan(0, 0, reason="one call a token"))
"""Empty drafts and no run-ahead: every token takes a round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A verifier as the proxy sees it: over a clean link. Plain text only, since the proxy reads no TLS name."""

    address: str
    insecure: bool = False
    """It is not on loopback, and may be spoken to in plain text nevertheless."""

    @property
    def channel(self) -> ChannelSettings:
        """To reach it without the link."""
        return ChannelSettings(server=self.address, insecure=self.insecure)

    @property
    def host_port(self) -> tuple[str, int]:
        """Where the proxy forwards to."""
        host, _, port = self.address.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)


def pacing_of(spec: DeviceSpec) -> Pacing:
    """What the mode means for the session."""
    if spec.mode == "stream":
        return STREAMING
    if spec.mode == "unary":
        return UNARY
    if spec.depth is not None:
        tree = spec.mode == "tree"
        return FixedPacing(Plan(spec.depth, spec.nodes or spec.depth, tree=tree, reason="fixed drafts"))
    if spec.mode == "auto":
        return make_pacing("tree", "auto")
    return make_pacing(spec.mode, "edge")


def draft_of(spec: DeviceSpec) -> str:
    """The mode as the device's ``--draft`` says it."""
    return {"stream": "none", "unary": "none", "chain": "chain"}.get(spec.mode, "tree")


async def equip(spec: DeviceSpec, server: Server, seed: int) -> DeviceOptions:
    """Fetch the bundle over the clean link, as an app does at its first start.

    Raises LinkError when nobody answers, ConfigError for a drafter that is not served.
    """
    options = DeviceOptions(
        channel=server.channel, draft=draft_of(spec), drafter=spec.drafter, pacing="edge", seed=seed
    )
    if options.draft == "none" or spec.drafter == NGRAM:
        return options
    fetcher = Fetcher(server.channel, Cache(), drafter=spec.drafter)
    wanted = fetcher.choose(await fetcher.describe(CONTACT_S))
    return replace(options, bundle=(await fetcher.bundle(wanted)).path) if wanted else options


async def configured(spec: DeviceSpec, options: DeviceOptions, address: str) -> SessionConfig:
    """A session's configuration, with a drafter of its own, that dials `address`: the proxy's."""
    prepared = await prepare(options)
    return replace(
        prepared.config, pacing=pacing_of(spec), channel=ChannelSettings(server=address), fetch=None
    )
