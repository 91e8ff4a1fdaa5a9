"""Processes that die at chosen points of a run."""

import functools
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from statetrack.runs import files as files_module
from statetrack.runs.records import JsonLines


def die_at(points: int, root: Path, work: Callable[[], None], executors: Sequence[type]) -> int:
    """Does `work` in a fork of this process that dies at a point; its exit code.

    If it ends before, `root`/points says how many points there were.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fork of a process with threads: none of them is used
        child = os.fork()
    if child == 0:
        try:
            left = count_down(points, executors)
            work()
            (root / "points").write_text(str(points - left[0]))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def count_down(points: int, executors: Sequence[type]) -> list[int]:
    """Makes this process die, without a farewell, at the given one of all its points.

    Returns the count that is left, in a list that is kept up to date.

    Points are: before and after every optimiser step, write, flush to disk and rename, and halfway
    through every write of a record or a file.
    """
    left = [points]

    def point() -> None:
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)

    def around(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            point()
            result = original(*args, **kwargs)
            point()
            return result

        setattr(owner, name, wrapped)

    for executor in executors:
        around(executor, "_train_step")
    around(JsonLines, "write")
    around(os, "replace")
    around(os, "fsync")
    around(shutil, "rmtree")
    write = files_module._write

    def torn_write(path: Path, content: bytes) -> None:
        path.write_bytes(content[: len(content) // 2])
        point()
        write(path, content)

    files_module._write = torn_write
    write_rows = JsonLines.write

    def torn_rows(self: JsonLines, records: list[Any]) -> None:
        self._file.write(records[0].to_json().encode()[:20])
        self._file.flush()
        point()
        self._file.seek(-20, os.SEEK_CUR)
        write_rows(self, records)

    JsonLines.write = torn_rows  # type: ignore[method-assign]
    return left
