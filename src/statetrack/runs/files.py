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
    "checksum_of",
    "exclusive",
    "json_bytes",
    "naming",
    "read_json",
    "remove",
    "write_atomically",
    "write_folder_atomically",
    "write_json",
]

TEMPORARY = ".tmp-"
BLOCK = 2**20


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
    remove(temporary)
    temporary.mkdir(parents=True)
    for name, content in files.items():
        _write(temporary / name, content)
    remove(path)  # only a damaged one is there: a whole folder is never written twice
    os.replace(temporary, path)


def remove(path: Path) -> None:
    """Whatever lies there, a file or a whole folder, is gone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a `ValueError` that names the file where there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} cannot be read: it holds no JSON object")
    return value


def checksum(content: bytes) -> str:
    """sha256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def checksum_of(path: Path, size: int | None = None) -> str:
    """sha256 of a file, or of its first `size` bytes (of all of it where it is shorter)."""
    total, left = hashlib.sha256(), path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, BLOCK))):
            total.update(block)
            left -= len(block)
    return total.hexdigest()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An error of the system says which file it is about, as that of a full disk does not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _write(path: Path, content: bytes) -> None:
    try:
        with naming(path), path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink(missing_ok=True)  # half a file is of no use, least of all on a full disk
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
            raise InUse(f"{path.parent} is in use: another process is working in it") from None
        yield
