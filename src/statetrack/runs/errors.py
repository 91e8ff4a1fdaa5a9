"""error.txt: written and removed only by whoever holds the run's lock, and never beside DONE."""

from pathlib import Path

from statetrack.runs.files import InUse, exclusive, write_atomically
from statetrack.runs.folder import ERROR, Run

__all__ = ["forget_error", "keep_error", "reason_of", "write_error"]


def reason_of(error: str) -> str:
    """The one line that says why: of a traceback the first of what was raised.

    What follows it is advice, as with errors of CUDA. Of any other text it is the last line.

    >>> reason_of('Traceback:\\n  File "run.py"\\n    step()\\nRuntimeError: broken\\nTry again.')
    'RuntimeError: broken'
    """
    lines = error.strip().splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    behind = lines[places[-1] + 1 :] if places else []
    return next((line for line in behind if line and not line[0].isspace()), lines[-1])


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
