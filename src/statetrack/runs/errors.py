"""error.txt: written and removed only by whoever holds the run's lock, and never beside DONE."""

from pathlib import Path

from statetrack.runs.files import InUse, exclusive, write_atomically
from statetrack.runs.folder import ERROR, Run

__all__ = ["forget_error", "keep_error", "write_error"]


def write_error(folder: Path, text: str) -> None:
    """Writes error.txt for whoever holds the lock. A run that has finished did not fail."""
    if not Run(folder).finished:
        write_atomically(folder / ERROR, text.encode())


def keep_error(folder: Path, text: str) -> bool:
    """Writes `text` to error.txt, unless the run has finished or has an error already.

    False, and nothing is written, if another process works on the run: what becomes of it is that
    process's to say.
    """
    if not folder.exists():
        return True
    try:
        with exclusive(folder / "lock"):
            if not (folder / ERROR).exists():
                write_error(folder, text)
    except InUse:
        return False
    return True


def forget_error(folder: Path) -> bool:
    """Removes the error.txt of an earlier attempt; False if another process works on the run."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive(folder / "lock"):
            (folder / ERROR).unlink(missing_ok=True)
    except InUse:
        return False
    return True
