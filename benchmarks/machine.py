"""What a figure was measured on: every benchmark writes this beside its numbers."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("outrider", "torch", "transformers", "onnxruntime", "grpcio", "numpy")


def cpu_name() -> str:
    """The processor's name and the extensions that decide how fast int8 and bfloat16 are here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    wanted = {"avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"}
    found = sorted(wanted & set(named.get("flags", "").split()))
    return f"{named.get('model name', platform.machine())} ({', '.join(found) or 'no AVX2'})"


def commit() -> str:
    """The checked-out commit, with ``+`` when the tree differs from it; "unknown" outside a checkout."""
    try:
        return _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    here = Path(__file__).parent
    done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def machine(**settings: object) -> dict[str, object]:
    """Processor, cores, system, versions and commit, plus the run's own settings (dtype, threads, seeds …)."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit(),
        **settings,
    }
