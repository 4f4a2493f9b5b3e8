"""What the device keeps between runs: bundles and tokenizer files by digest, and which verifier uses which.

::

    <cache>/device/bundles/<64 hex digits>.onnx       <cache>/device/tokenizers/<64 hex digits>.json
    <cache>/device/partial/<64 hex digits>            downloads that were cut
    <cache>/device/verifiers.json                     address → kind of drafter → digests

A file counts only under the digest of its content: it is checked when it is stored, and a name is only ever made of 32
bytes, never of text that came from elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_dir

from outrider.shared.errors import BundleError, ConfigError, InvalidField

Kind = Literal["bundle", "tokenizer"]

MAX_VERIFIERS = 64
"""Addresses remembered; the one used longest ago is forgotten first."""
MAX_KINDS = 16
"""Kinds of drafter remembered of one address."""

_PLACES: dict[Kind, tuple[str, str]] = {"bundle": ("bundles", ".onnx"), "tokenizer": ("tokenizers", ".json")}
_DIGITS = frozenset("0123456789abcdef")


def cache_dir() -> Path:
    """OUTRIDER_CACHE, or the user's cache folder."""
    chosen = os.environ.get("OUTRIDER_CACHE")
    return Path(chosen) if chosen else Path(user_cache_dir("outrider"))


@dataclass(frozen=True, slots=True)
class Known:
    """What was used with a verifier when it was last talked to."""

    kind: str
    """Of the drafter."""
    bundle: bytes
    tokenizer: bytes


class Cache:
    """See the module. Several processes may share one: files appear whole or not at all."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or cache_dir()) / "device"

    def find_bundle(self, sha256: bytes) -> Path | None:
        """The bundle of this digest; finding one marks it as used."""
        return self._find("bundle", sha256)

    def find_tokenizer(self, sha256: bytes) -> Path | None:
        """The tokenizer file of this digest."""
        return self._find("tokenizer", sha256)

    def latest_bundle(self, kind: str | None = None) -> Path | None:
        """The bundle found or stored most recently, of one ``kind`` of those remembered if asked for; or None."""
        folder, suffix = self.folder / _PLACES["bundle"][0], _PLACES["bundle"][1]
        if not folder.is_dir():
            return None
        whole = [path for path in folder.iterdir() if path.suffix == suffix and _is_digest(path.stem)]
        if kind is not None:
            wanted = {entry[kind][0] for entry in self._verifiers().values() if kind in entry}
            whole = [path for path in whole if path.stem in wanted]
        return max(whole, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)

    def path(self, kind: Kind, sha256: bytes) -> Path:
        """Where the file of a digest lies or would lie. Raises InvalidField unless it has 32 bytes."""
        if len(sha256) != 32:
            raise InvalidField("sha256", f"{len(sha256)} bytes, expected 32")
        folder, suffix = _PLACES[kind]
        return self.folder / folder / (sha256.hex() + suffix)

    def partial(self, sha256: bytes) -> Path:
        """Where a download of this digest grows."""
        return self.folder / "partial" / self.path("bundle", sha256).stem

    def store(self, kind: Kind, sha256: bytes, content: bytes) -> Path:
        """Keep a file. Raises BundleError if the digest is not its own, ConfigError if it cannot be written."""
        if hashlib.sha256(content).digest() != sha256:
            raise BundleError("the file does not have the digest it was asked for by")
        return self._write(self.path(kind, sha256), content)

    def adopt(self, kind: Kind, sha256: bytes, partial: Path) -> Path:
        """Move a complete, checked download to its place. Raises ConfigError if that fails."""
        target = self.path(kind, sha256)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial, target)
        except OSError as error:
            raise self._unwritable(error) from error
        return target

    def known(self, server: str, kind: str | None = None) -> Known | None:
        """What was used last with a verifier's address, of one ``kind`` of drafter if asked for."""
        entry = self._verifiers().get(server, {})
        found = kind if kind is not None else next(reversed(entry), "")
        if found not in entry:
            return None
        bundle, tokenizer = entry[found]
        return Known(found, bytes.fromhex(bundle), bytes.fromhex(tokenizer))

    def remember(self, server: str, kind: str, *, bundle: bytes, tokenizer: bytes) -> None:
        """Note what is used with a verifier. A cache that cannot be written is no reason to stop: nothing is noted."""
        entries = self._verifiers()
        entry = entries.pop(server, {})
        entry.pop(kind, None)
        entry[kind] = (bundle.hex(), tokenizer.hex())
        entries[server] = dict(list(entry.items())[-MAX_KINDS:])
        kept = dict(list(entries.items())[-MAX_VERIFIERS:])
        try:
            self._write(self._list, json.dumps(kept, indent=1).encode())
        except ConfigError:
            return

    @property
    def _list(self) -> Path:
        return self.folder / "verifiers.json"

    def _find(self, kind: Kind, sha256: bytes) -> Path | None:
        path = self.path(kind, sha256)
        if not path.is_file():
            return None
        try:
            os.utime(path)
        except OSError:
            pass  # a read-only cache serves all the same; only the order of use is lost
        return path

    def _verifiers(self) -> dict[str, dict[str, tuple[str, str]]]:
        """The list, or as much of it as can be believed; what was used last comes last."""
        try:
            found = json.loads(self._list.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {
            server: {
                kind: (pair[0], pair[1])
                for kind, pair in entry.items()
                if isinstance(pair, list) and len(pair) == 2 and all(map(_is_digest, pair))
            }
            for server, entry in found.items()
            if isinstance(entry, dict)
        }

    def _write(self, path: Path, content: bytes) -> Path:
        """Write beside the place, then rename: never half a file under a name that counts."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(name, path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise self._unwritable(error) from error
        return path

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(
            "OUTRIDER_CACHE",
            f"cannot write into {self.folder} ({error.strerror})",
            remedy="name a folder that can be written",
        )


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and _DIGITS.issuperset(text)
