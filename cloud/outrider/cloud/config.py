"""Settings of `outrider-cloud serve`, checked before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from outrider.cloud.kinds.settings import FIRST_KIND, SETTINGS_FILE
from outrider.cloud.listener import ListenerSettings
from outrider.cloud.logs import LEVELS
from outrider.cloud.rules import served_names
from outrider.cloud.rules.book import LOSSLESS
from outrider.cloud.secret import coin_secret
from outrider.shared.errors import ConfigError

DEFAULT_PORT = 7601
DEFAULT_TARGET = "smollm2"
DTYPES = ("float32", "bfloat16")
PADDINGS = ("off", "bucket")

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """What one verifier serves, to whom, and within which bounds."""

    listener: ListenerSettings = field(
        default_factory=lambda: ListenerSettings(listen=f"127.0.0.1:{DEFAULT_PORT}")
    )
    """Address, TLS, tokens."""
    target: str = DEFAULT_TARGET
    """The embedded target's name, or a local folder."""
    dtype: str = "float32"
    """What the target computes in: one of ``DTYPES``."""
    threads: int = 0
    """Threads of a target pass; 0 leaves it to torch."""
    drafters: tuple[Path, ...] = ()
    """Folders of drafter weights that are served, the recommended one first; none: no rows and no bundles."""
    bundle: Path | None = None
    """Bundle file to serve for the drafter it was made from; other bundles are exported into the cache."""
    rules: tuple[str, ...] = (LOSSLESS,)
    """Rules that clients may ask for: names, ``lossless`` or ``all``; see `outrider.cloud.rules.book`."""
    judge: Path | None = None
    """File of a judge's head; with one, the rule `judge` is served as well."""
    coin_secret_file: Path | None = None
    """What rules' coins come from, shared by replicas (`outrider.cloud.secret`); None: drawn for this process."""
    kv_budget_mib: int = 2048
    """Budget of all KV caches together, MiB."""
    max_sessions: int = 64
    """Sessions attached at once."""
    max_context: int = 0
    """Longest sequence in tokens; 0 is the target's own limit, at most 8192."""
    reflection: bool = False
    """Serve gRPC reflection."""
    padding: str = "off"
    """Padding profile offered to devices: one of ``PADDINGS``."""
    metrics_port: int | None = None
    """Port for Prometheus; 0 picks one, None serves no metrics."""
    metrics_host: str = "127.0.0.1"
    """Address for Prometheus. Metrics are plain text: open it only towards a trusted network."""
    selfcheck: bool = True
    """Check width invariance at start-up; without it, it is not advertised."""
    drain_s: float = 20.0
    """Seconds that open streams get after a signal to leave."""
    log_level: str = "info"
    """One of `outrider.cloud.logs.LEVELS`."""

    @property
    def kv_budget_bytes(self) -> int:
        """The budget in bytes."""
        return self.kv_budget_mib * _MIB

    def check(self) -> None:
        """Raises ConfigError for a setting that cannot work; files are looked at, nothing is loaded."""
        _one_of("--dtype", self.dtype, DTYPES)
        _one_of("--padding", self.padding, PADDINGS)
        _one_of("--log-level", self.log_level, LEVELS)
        _at_least("--threads", self.threads, 0)
        _at_least("--kv-budget-mib", self.kv_budget_mib, 16)
        _at_least("--max-sessions", self.max_sessions, 1)
        if self.max_context:
            _at_least("--max-context", self.max_context, 16)
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65_535:
            raise ConfigError("--metrics-port", f"{self.metrics_port} is not a port (0 to 65535)")
        served_names(self.rules)
        if self.judge is not None and not self.judge.is_file():
            raise ConfigError("--judge", f"{self.judge} is not a file")
        coin_secret(self.coin_secret_file)
        self._check_drafters()

    def _check_drafters(self) -> None:
        seen: set[Path] = set()
        for folder in self.drafters:
            if not folder.is_dir():
                raise ConfigError("--drafter", f"{folder} is not a folder", remedy="or say --drafter none")
            if folder.resolve() in seen:
                raise ConfigError("--drafter", f"{folder} is given twice")
            seen.add(folder.resolve())
        if self.bundle is not None and not self.bundle.is_file():
            raise ConfigError("--bundle", f"{self.bundle} is not a file")
        if self.bundle is not None and not self.drafters:
            raise ConfigError(
                "--bundle",
                "state rows for a bundle need the weights it was made from",
                remedy="give --drafter as well",
            )


def _one_of(setting: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(setting, f"{value!r} is not one of {', '.join(known)}")


def _at_least(setting: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(setting, f"{value} is less than {least}")


def shipped_drafter() -> Path | None:
    """Folder of the drafter weights that come with a checkout, MoA's before others; None without a checkout."""
    models = Path(__file__).resolve().parents[3] / "models"
    found = sorted(path.parent for path in models.glob("*/*.safetensors"))
    return min(found, key=lambda folder: (_kind_of(folder) != FIRST_KIND, folder.name), default=None)


def _kind_of(folder: Path) -> str:
    """The kind a weights folder says it holds; empty if it cannot be read."""
    try:
        return str(json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8")).get("kind", FIRST_KIND))
    except (OSError, ValueError, AttributeError):
        return ""
