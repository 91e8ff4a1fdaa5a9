"""What the numbers of a run may depend on besides its config: code, versions, hardware."""

import functools
import os
import platform
import subprocess
import sys
import time
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch

__all__ = ["code", "environment"]

PACKAGE = Path(__file__).parents[1]
PACKAGES = ("torch", "numpy", "numba", "triton", "safetensors")


def environment(device: torch.device | str) -> dict[str, Any]:
    """Of a run that starts now, on `device`."""
    device = torch.device(device)
    versions = {name: version for name in PACKAGES if (version := _version(name)) is not None}
    return {
        "code": code(),
        "versions": {"python": platform.python_version()} | versions,
        "device": device.type,
        "hardware": {
            "machine": platform.machine(),
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        },
        "threads": torch.get_num_threads(),
        "platform": sys.platform,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def code() -> dict[str, Any]:
    """The statetrack that runs: its version, and its commit where it lies in a git checkout.

    `dirty` says whether files of the package differ from the commit. Both are None outside git.
    """
    return {"version": import_module("statetrack").__version__} | _checkout(PACKAGE)


@functools.cache
def _checkout(package: Path) -> dict[str, Any]:
    """Commit and dirty flag; asked once, so that they are those of the code when it was loaded."""
    try:
        # A package that is installed inside another project's checkout is not tracked there.
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        commit = _git(package, "rev-parse", "HEAD").strip()
        changes = _git(package, "status", "--porcelain", "--", ".").strip()
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": changes != ""}


def _git(folder: Path, *words: str) -> str:
    """What git says about the repository around `folder`, whatever the environment points at."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        env=own | {"GIT_OPTIONAL_LOCKS": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=10,
        check=True,
    )
    return done.stdout.decode(errors="replace")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The CPU's name where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
