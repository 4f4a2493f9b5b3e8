"""First contact with a verifier and what is fetched from it, with bounded retries. The only module that uses tenacity.

A `Decode` stream is never retried here: getting it back is the session machine's business, where it can be simulated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from outrider.client.bundle import Bundle, load_bundle
from outrider.client.cache import Cache
from outrider.client.channel import Channel, ChannelSettings, open_channel
from outrider.client.choice import AUTO, adapted, bundle_kind, pick
from outrider.client.fetch import fetch
from outrider.shared.errors import FingerprintMismatch, LinkError, OutriderError, Refused, surfaces
from outrider.shared.frames import PROTOCOL, Description
from outrider.shared.tokenizer import Tokenizer
from outrider.shared.transport import error_of
from outrider.shared.wire import description_from_wire
from outrider.v1 import verifier_pb2 as pb

T = TypeVar("T")
DESCRIBE_S = 5.0
"""Deadline of one Describe call, connecting included."""
PATIENCE_S = 600.0
"""How long a bundle is tried for in the background: an outage must not be the end of it."""


class Fetcher:
    """Describe, tokenizer and bundles of one verifier, each call on a connection of its own."""

    def __init__(
        self,
        settings: ChannelSettings,
        cache: Cache,
        expect: Tokenizer | None = None,
        drafter: str = AUTO,
    ) -> None:
        self.settings = settings
        self.cache = cache
        self.drafter = drafter
        """What ``--drafter`` asks for."""
        self.expect = expect
        """The tokenizer in use: a bundle made for another one is refused."""

    async def describe(self, patience_s: float = 0.0) -> Description:
        """What is served. Raises LinkError after ``patience_s`` seconds of trying, Refused … when refused."""
        return await self._retried(self._describe, patience_s)

    async def tokenizer(self, sha256: bytes, patience_s: float = 0.0) -> Tokenizer:
        """The verifier's tokenizer, from the cache where it is there."""
        known = self.cache.find_tokenizer(sha256)
        if known is None:
            known = await self._retried(lambda channel: fetch(channel, sha256, self.cache), patience_s)
        return Tokenizer.from_artefact(known.read_bytes())

    async def bundle(self, sha256: bytes = b"") -> Bundle:
        """A bundle by its digest; empty = of the kind asked for, else the recommended one. Keeps trying.

        Raises BundleError or FingerprintMismatch when what comes is of no use here, ConfigError for a kind not offered.
        """
        if not sha256:
            sha256 = self.choose(await self.describe(PATIENCE_S))
            if not sha256:
                raise Refused("the verifier serves no bundle")
        path = self.cache.find_bundle(sha256)
        if path is None:
            path = await self._retried(lambda channel: fetch(channel, sha256, self.cache), PATIENCE_S)
        bundle = adapted(load_bundle(path), self.drafter)
        if self.expect is not None and bundle.tokenizer.sha256 != self.expect.sha256:
            raise FingerprintMismatch("tokenizer", ours=self.expect.sha256, theirs=bundle.tokenizer.sha256)
        self.remember(bundle)
        return bundle

    def choose(self, described: Description) -> bytes:
        """SHA-256 of the bundle to use of those described; empty if none is. Raises ConfigError."""
        kind = bundle_kind(self.drafter)
        return pick(described.bundles, described.fingerprints.bundle, kind, self.settings.server)

    def remember(self, bundle: Bundle) -> None:
        """Note that this bundle is used with the verifier."""
        self.cache.remember(
            self.settings.server, bundle.kind, bundle=bundle.sha256, tokenizer=bundle.tokenizer.sha256
        )

    async def _retried(self, call: Callable[[Channel], Awaitable[T]], patience_s: float) -> T:
        retrying = AsyncRetrying(
            retry=retry_if_exception(_transient),
            wait=wait_random_exponential(multiplier=0.2, max=5.0),
            stop=stop_after_delay(patience_s),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                return await self._once(call)
        raise AssertionError("unreachable: tenacity returns or raises")

    async def _once(self, call: Callable[[Channel], Awaitable[T]]) -> T:
        try:
            async with open_channel(self.settings) as channel:
                await channel.ready(DESCRIBE_S)
                return await call(channel)
        except OutriderError:
            raise
        except OSError:
            raise
        except Exception as error:
            raise error_of(error) from error

    async def _describe(self, channel: Channel) -> Description:
        request = pb.DescribeRequest(protocol_min=1, protocol_max=PROTOCOL)
        answer = await channel.verifier.Describe(request, metadata=channel.metadata, timeout=DESCRIBE_S)
        return description_from_wire(answer)


def _transient(error: BaseException) -> bool:
    """Link errors and refusals that may pass; never wrong credentials or mismatches."""
    return isinstance(error, LinkError | Refused) and not surfaces(error)
