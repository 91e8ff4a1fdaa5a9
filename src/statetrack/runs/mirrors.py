"""Optional copies of the records, for those who watch elsewhere. The JSON lines stay the truth."""

from importlib import import_module
from pathlib import Path
from typing import Any

from statetrack._extras import needs
from statetrack.runs.records import Record

__all__ = ["TensorBoard", "WeightsAndBiases"]


def tag(record: Record) -> str:
    """`validation/accuracy`, or `validation/accuracy/length_64` for one length.

    >>> tag(Record(1, "test", "accuracy", 1.0, length=64))
    'test/accuracy/length_64'
    """
    place = "" if record.length is None else f"/length_{record.length}"
    place += "" if record.operations is None else f"/operations_{record.operations}"
    place += "" if record.domain is None else f"/{record.domain}"
    return f"{record.split}/{record.metric}{place}"


class TensorBoard:
    """Writes event files to `folder`. Needs tensorboard."""

    def __init__(self, folder: Path | str) -> None:
        with needs("the TensorBoard mirror", "tensorboard", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer: Any = SummaryWriter(str(folder))

    def write(self, records: list[Record]) -> None:
        for record in records:
            self._writer.add_scalar(tag(record), record.value, record.step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """Logs to a Weights & Biases project, under the run's fingerprint. Needs wandb.

    `mode="offline"`, or WANDB_MODE=offline, writes to `folder` alone, without an account.
    """

    def __init__(
        self, config: Any, *, project: str, folder: Path | str = ".", mode: str | None = None
    ) -> None:
        with needs("the Weights & Biases mirror", "wandb", "wandb"):
            wandb = import_module("wandb")
        self._run: Any = wandb.init(
            project=project,
            id=config.fingerprint,
            config=config.to_dict(),
            dir=str(folder),
            mode=mode,
            resume="allow",
        )

    def write(self, records: list[Record]) -> None:
        for step in sorted({record.step for record in records}):
            rows = {tag(record): record.value for record in records if record.step == step}
            self._run.log(rows, step=step)

    def close(self) -> None:
        self._run.finish()
