"""From command-line options to a session: which bundle, which tokenizer, whether anybody has to be asked first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from outrider.client.bundle import Bundle, load_bundle
from outrider.client.cache import Cache
from outrider.client.channel import ChannelSettings
from outrider.client.choice import AUTO, NGRAM, adapted, bundle_kind
from outrider.client.drafters.ngram import NgramDrafter
from outrider.client.fetching import Fetcher
from outrider.client.journal import Restored, restore
from outrider.client.journal_file import JournalFile, read_journal
from outrider.client.machine_settings import Offline, Reconcile
from outrider.client.pacing import make_pacing
from outrider.client.session import SessionConfig
from outrider.shared.errors import ConfigError, LinkError
from outrider.shared.tokenizer import Tokenizer

CONTACT_S = 3.0
"""How long first contact is tried for, where nothing can be done without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """What the command line says about the device and its link."""

    channel: ChannelSettings | None = None
    draft: str = "tree"
    """"chain", "tree" or "none"."""
    drafter: str = AUTO
    """"auto", a kind of drafter, "ngram" or "hybrid" (`outrider.client.choice`)."""
    pacing: str = "auto"
    """"auto" or "edge"."""
    offline: Offline = Offline.AUTO
    reconcile: Reconcile = Reconcile.REVISE
    bundle: Path | None = None
    journal: Path | None = None
    resume: bool = False
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A session's configuration, and what to tell the user about how it came about."""

    config: SessionConfig
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """What there is to draft with."""

    bundle: Bundle | None
    tokenizer: Tokenizer
    notes: tuple[str, ...] = ()
    fetch: bool = True
    """A bundle may be fetched during the session."""


async def prepare(options: DeviceOptions, cache: Cache | None = None) -> Prepared:
    """Find drafter and tokenizer; ask the verifier only where nothing is known about it yet.

    Raises ConfigError (nothing to draft with, unreadable files), LinkError (nobody answers and it matters), Refused …
    """
    cache = cache or Cache()
    fetcher = Fetcher(options.channel, cache, drafter=options.drafter) if options.channel else None
    if options.offline is Offline.ALWAYS:
        fetcher = None
    elif fetcher is None:
        raise ConfigError(
            "--server", "is needed", remedy="give host:port, or --offline always to draft alone"
        )
    restored = restore(read_journal(options.journal)) if options.journal and options.resume else None
    found = await _find(options, cache, fetcher)
    if fetcher is not None:
        fetcher.expect = found.tokenizer
    return Prepared(_config(options, found, fetcher, restored), found.notes)


async def _find(options: DeviceOptions, cache: Cache, fetcher: Fetcher | None) -> _Found:
    if options.bundle is not None:
        bundle = adapted(load_bundle(options.bundle), options.drafter)
        return _Found(bundle, bundle.tokenizer, fetch=False)
    kind = bundle_kind(options.drafter)
    if fetcher is None:
        path = cache.latest_bundle(kind)
        if path is None:
            raise ConfigError(
                "--offline always" if kind is None else "--drafter",
                f"there is no {'bundle' if kind is None else f'{kind!r} bundle'} on this device yet",
                remedy="connect once with --server, or give --bundle FILE",
            )
        bundle = adapted(load_bundle(path), options.drafter)
        return _Found(bundle, bundle.tokenizer, fetch=False)
    known = cache.known(fetcher.settings.server, kind)
    if known is not None and options.offline is not Offline.NEVER:
        path = cache.find_bundle(known.bundle)
        if path is not None:
            bundle = adapted(load_bundle(path), options.drafter)
            fetcher.remember(bundle)
            return _Found(bundle, bundle.tokenizer)
    return await _first_contact(options, cache, fetcher)


async def _first_contact(options: DeviceOptions, cache: Cache, fetcher: Fetcher) -> _Found:
    try:
        described = await fetcher.describe(CONTACT_S)
        tokenizer = await fetcher.tokenizer(described.fingerprints.tokenizer, CONTACT_S)
    except LinkError:
        path = cache.latest_bundle(bundle_kind(options.drafter))
        if options.offline is Offline.NEVER or path is None:
            raise
        bundle = adapted(load_bundle(path), options.drafter)
        notes: tuple[str, ...] = ("nobody answers; drafting alone with the bundle used last",)
        return _Found(bundle, bundle.tokenizer, notes)
    wanted = fetcher.choose(described)
    path = cache.find_bundle(wanted) if wanted else None
    if path is not None:
        bundle = adapted(load_bundle(path), options.drafter)
        fetcher.remember(bundle)
        return _Found(bundle, bundle.tokenizer)
    fetching = bool(wanted) and options.draft != "none" and options.drafter != NGRAM
    notes = ("no bundle here yet: streaming with n-gram drafts while it is fetched",) if fetching else ()
    return _Found(None, tokenizer, notes, fetching)


def _config(
    options: DeviceOptions, found: _Found, fetcher: Fetcher | None, restored: Restored | None
) -> SessionConfig:
    journal = JournalFile(options.journal) if options.journal is not None else None
    config = SessionConfig(
        tokenizer=found.tokenizer,
        pacing=make_pacing(options.draft, options.pacing),
        channel=options.channel,
        offline=options.offline,
        reconcile=options.reconcile,
        journal=journal,
        restored=restored,
        seed=options.seed,
    )
    if options.draft == "none":
        return config
    if options.drafter == NGRAM:
        return replace(config, drafter=NgramDrafter())
    bundle = found.bundle
    config = replace(config, fetch=fetcher.bundle if fetcher is not None and found.fetch else None)
    if bundle is None:
        return replace(config, drafter=NgramDrafter())
    return replace(config, drafter=bundle.drafter(), bundle=bundle.sha256, num_planes=len(bundle.planes))
