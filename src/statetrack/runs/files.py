"""Files that are either whole or not there."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "InUse",
    "checksum",
    "exclusive",
    "write_atomically",
    "write_folder_atomically",
    "write_json",
]

TEMPORARY = ".tmp-"


def write_atomically(path: Path, content: bytes) -> None:
    """Writes `content` under a temporary name and renames it: readers see all of it or nothing."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    _write(temporary, content)
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """`write_atomically` for JSON."""
    write_atomically(path, json_bytes(value))


def write_folder_atomically(path: Path, files: dict[str, bytes]) -> None:
    """A folder with `files`, written in their order, that appears under its name when whole."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True)
    for name, content in files.items():
        _write(temporary / name, content)
    if path.exists():  # only a damaged one: a whole folder is never written twice
        shutil.rmtree(path)
    os.replace(temporary, path)


def json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, content: bytes) -> None:
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)  # half a file is of no use, least of all on a full disk
        error.filename = error.filename or str(path)
        raise


class InUse(ValueError):
    """Another process holds the lock."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds a lock on `path`, which the system drops when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such lock on this system
        yield
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUse(
                f"{path.parent} is in use: another process is working on this run"
            ) from None
        yield
