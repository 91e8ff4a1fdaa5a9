"""The life of a run's folder: claimed, written to, finished or failed.

with claim(root, config) as run:                # locked, and known to be this config's and whole
    if not run.finished:
        start = checkpoints.newest(run.folder, steps=config.steps)
        with closing(Writer(run.folder, environment(device), start)) as writer:
            writer.write(rows)                  # as often as there are some
            writer.keep(tensors, position)      # now and then
            writer.finish(weights, step=step, solved=solved)
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from statetrack.runs import checkpoints
from statetrack.runs.checkpoints import Checkpoint
from statetrack.runs.files import (
    checksum,
    checksum_of,
    exclusive,
    remove,
    write_atomically,
    write_json,
)
from statetrack.runs.folder import (
    CONFIG,
    DONE,
    ERROR,
    INFO,
    MODEL,
    RECORDS,
    Run,
    config_file,
    read_config,
)
from statetrack.runs.identity import RunDescription
from statetrack.runs.records import JsonLines, Record, Sink
from statetrack.runs.saving import Saver
from statetrack.runs.tensors import save_tensors
from statetrack.runs.verify import SUMS, problems

__all__ = ["Follower", "Writer", "claim", "clean"]


@contextlib.contextmanager
def claim(root: Path | str, config: RunDescription) -> Iterator[Run]:
    """Holds the run of `config` in `root`: no other process may work on it meanwhile.

    A `ValueError` says why not: it is in use, of another config, or finished and damaged since. An
    error of an earlier attempt is forgotten, and so are checkpoints that a finished run has left.
    """
    folder = Path(root) / config.fingerprint
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder)
    with exclusive(folder / "lock"):
        _check_config(folder, config)
        found = problems(run)
        if found:
            raise ValueError(_damaged(folder, found))
        if run.finished:
            clean(run)
        else:
            remove(folder / ERROR)
        yield run


def _check_config(folder: Path, config: RunDescription) -> None:
    """Writes the config, or checks that the one already there is of the same run.

    How often one logs or saves may have changed since.
    """
    path = folder / CONFIG
    if path.exists():
        try:
            stored = read_config(path)
        except ValueError as error:
            raise ValueError(_damaged(folder, [str(error)])) from None
        if stored.fingerprint != config.fingerprint:
            raise ValueError(f"{folder} belongs to another config; nothing in it was touched")
        if stored == config or Run(folder).finished:
            return
    write_json(path, config_file(config))


def _damaged(folder: Path, found: Sequence[str]) -> str:
    return f"{'; '.join(found)}. Delete {folder} to train this run again"


def clean(run: Run) -> None:
    """Removes what has no meaning beside DONE, left by a kill or by an attempt that lost a race."""
    if run.finished:
        with contextlib.suppress(OSError):  # someone else cleans, too, or it has to wait
            checkpoints.clear(run.folder)
            remove(run.folder / ERROR)


class Writer:
    """Where the numbers of one run go while it trains; the folder must be claimed.

    Its records go on after those of `start`, or begin anew. `info` is what run.json says. With
    `beside`, checkpoints are written beside the training.
    """

    def __init__(
        self,
        folder: Path,
        info: Mapping[str, Any],
        start: Checkpoint | None = None,
        *,
        mirrors: Sequence[Sink] = (),
        beside: bool = False,
    ) -> None:
        if Run(folder).finished:
            raise ValueError(f"{folder} has finished; its records are never written again")
        position = {"wall_s": 0.0, "records_bytes": 0, "step": 0}
        position |= {} if start is None else start.position
        self._folder, self._mirrors = folder, mirrors
        self._saver = Saver(folder) if beside else None
        self._started = time.monotonic() - position["wall_s"]
        self._info = {**info, "resumed_at": position["step"]}
        checkpoints.drop_after(folder, int(position["step"]))  # their records are cut off next
        write_json(folder / INFO, self._info)
        self._lines = JsonLines(folder / RECORDS, keep=int(position["records_bytes"]))

    def write(self, rows: list[Record]) -> None:
        self._lines.write(rows)
        for mirror in self._mirrors:
            mirror.write(rows)

    def keep(self, tensors: dict[str, Tensor], position: dict[str, Any]) -> None:
        """A checkpoint; `position` has the `step`, and whatever else is needed to go on."""
        self._lines.sync()
        own = {
            "records_bytes": self._lines.size,
            "records_sha256": self._lines.checksum,
            "wall_s": self._wall_s,
        }
        if self._saver is not None:
            self._saver.save(tensors, position | own)
        else:
            checkpoints.save(self._folder, Checkpoint(tensors, position | own))

    def finish(
        self,
        weights: dict[str, Tensor],
        *,
        step: int,
        solved: bool,
        backends: Mapping[str, Sequence[str]] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """The run has ended; `backends` are those its ops have used, by op.

        `files` go beside the weights.
        """
        if self._saver is not None:
            self._saver.wait()
        wall_s, model = self._wall_s, save_tensors(weights)
        self._lines.sync()
        for name, content in (files or {}).items():
            write_atomically(self._folder / name, content)
        write_atomically(self._folder / MODEL, model)
        used = {} if backends is None else {"backends": dict(backends)}
        write_json(self._folder / INFO, self._info | used | {"wall_s": wall_s})
        sums = {
            CONFIG: checksum_of(self._folder / CONFIG),
            RECORDS: self._lines.checksum,
            MODEL: checksum(model),
        }
        done = {"step": step, "solved": solved, "wall_s": wall_s, SUMS: sums}
        write_json(self._folder / DONE, done)
        clean(Run(self._folder))

    def close(self) -> None:
        if self._saver is not None:
            self._saver.wait()
        self._lines.close()
        for mirror in self._mirrors:
            mirror.close()

    @property
    def _wall_s(self) -> float:
        return time.monotonic() - self._started


class Follower:
    """What the other processes of a run have in place of a `Writer`: their part of checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._saver = Saver(folder)

    def write(self, rows: list[Record]) -> None:
        pass

    def keep(self, tensors: dict[str, Tensor], position: dict[str, Any]) -> None:
        self._saver.save(tensors, position)

    def finish(
        self,
        weights: dict[str, Tensor],
        *,
        step: int,
        solved: bool,
        backends: Mapping[str, Sequence[str]] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self._saver.wait()

    def close(self) -> None:
        self._saver.wait()
