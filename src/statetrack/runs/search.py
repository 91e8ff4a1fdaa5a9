"""Runs below a folder, whether they have folders of their own or lie in archives."""

from pathlib import Path

from statetrack.runs.archive import archived_runs
from statetrack.runs.folder import run_folders
from statetrack.runs.stored import StoredRun

__all__ = ["find", "find_runs"]


def find_runs(root: Path | str) -> list[StoredRun]:
    """All runs in `root` and below: first those of archives, then those that have a folder."""
    return [*archived_runs(root), *run_folders(root)]


def find(root: Path | str, fingerprint: str) -> StoredRun:
    """The run that has this fingerprint, or had it under an earlier schema."""
    for run in find_runs(root):
        if fingerprint in run.fingerprints:
            return run
    raise ValueError(f"no run in {root} has, or ever had, the fingerprint {fingerprint}")
