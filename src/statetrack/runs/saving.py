"""Checkpoints that are written beside the training, one at a time.

What is saved is copied first, so the training goes on at once. Every process of a run has a `Saver`
and calls it at the same steps.
"""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from statetrack.runs import checkpoints, ranks
from statetrack.runs.checkpoints import Checkpoint

__all__ = ["Saver"]


class Saver:
    """Writes the checkpoints of one run; an error is raised by the next call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, tensors: dict[str, Tensor], position: dict[str, Any]) -> None:
        """Begins to write; `position` counts on rank 0 alone."""
        self.wait()
        if ranks.world() == 1:
            copies = {name: value.detach().cpu().clone() for name, value in tensors.items()}
            self._begin(lambda: checkpoints.save(self._folder, Checkpoint(copies, position)))
            return
        from torch.distributed import checkpoint as distributed  # slow to import

        place = ranks.once(lambda: checkpoints.begin_parts(self._folder, position["step"]))
        writer = distributed.HuggingFaceStorageWriter(str(place), save_distributed=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            future: Any = distributed.async_save(
                tensors, storage_writer=writer, process_group=ranks.saving()
            )

        def finish() -> None:
            future.result()
            if ranks.is_first():
                checkpoints.end_parts(self._folder, place, position)

        self._begin(finish)

    def wait(self) -> None:
        """Returns when all that was begun is on the disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if type(error).__name__ == "CheckpointException":  # of torch, a BaseException
            failures: dict[int, Any] = getattr(error, "failures", {})
            reasons = sorted({str(reason[0]) for reason in failures.values()})
            raise OSError(f"the checkpoint could not be written: {'; '.join(reasons)}")
        if error is not None:
            raise error

    def _begin(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="statetrack-saver")
        self._thread.start()
