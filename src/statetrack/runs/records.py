"""Records: one labelled number per row, kept as JSON lines. A missing number is a missing row."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from statetrack.runs.files import naming

__all__ = ["JsonLines", "Record", "Sink", "checked", "read_records"]


@dataclass(frozen=True, slots=True)
class Record:
    """One number.

    Attributes:
        step: how many optimiser steps the model had taken.
        split: `train`, `validation` or `test`; `machine` for what depends on the hardware and the
            hour, which no resumed run repeats.
        metric: `loss`, `accuracy`, `scaled_accuracy`, `sequence_accuracy`, `lr`, `grad_norm`,
            `spike`; of the machine `tokens_per_s`, `mfu`, `memory_gb`;
            `window_accuracy` is not the model's, but that of an oracle.
        value: the number.
        length: how many tokens the model had read, [BOS] among them; `None` for a number over all
            lengths.
        length_min: where the number is for a range of lengths `length_min .. length`, its start.
        count: how many answers an accuracy is the mean of.
        operations: where the number is for answers that so many operations have changed since they
            were last shown, their number; of a range (3..4, 5..8, ...) its end. For an oracle the
            number of operations that it knows.
        domain: where the number is for one kind of text, its name.
    """

    step: int
    split: str
    metric: str
    value: float
    length: int | None = None
    length_min: int | None = None
    count: int | None = None
    operations: int | None = None
    domain: str | None = None

    @property
    def overall(self) -> bool:
        """Whether it is over all lengths, operations and domains."""
        return (self.length, self.operations, self.domain) == (None, None, None)

    def to_json(self) -> str:
        """One line without its end. Optional fields that say nothing are left out."""
        row: dict[str, Any] = {"step": self.step, "split": self.split, "length": self.length}
        row |= {"metric": self.metric, "value": self.value}
        for name in ("length_min", "count", "operations", "domain"):
            if getattr(self, name) is not None:
                row[name] = getattr(self, name)
        return json.dumps(row, allow_nan=False)


@runtime_checkable
class Sink(Protocol):
    """Somewhere records go."""

    def write(self, records: list[Record]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """The file the records live in. Opening it drops whatever stands after byte `keep`."""

    def __init__(self, path: Path, *, keep: int = 0) -> None:
        path.touch()
        self._path = path
        self._file = path.open("r+b")
        self._sum = hashlib.sha256(self._file.read(keep))
        self._file.truncate(keep)
        self._file.seek(keep)

    def write(self, records: list[Record]) -> None:
        content = "".join(record.to_json() + "\n" for record in records).encode()
        with naming(self._path):
            self._file.write(content)
            self._file.flush()
        self._sum.update(content)

    def sync(self) -> None:
        """Returns when all that was written is on the disk."""
        with naming(self._path):
            os.fsync(self._file.fileno())

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    @property
    def checksum(self) -> str:
        """sha256 of what was written so far."""
        return self._sum.hexdigest()

    def close(self) -> None:
        with naming(self._path):
            self._file.close()


def read_records(path: Path | str) -> list[Record]:
    """The rows of a file; a last line that was cut off by a kill is no row.

    A line that is no record is a `ValueError` with the file and the line's number.
    """
    lines = Path(path).read_bytes().splitlines(keepends=True)
    return list(parse_records(lines, source=str(path)))


def parse_records(lines: Iterable[bytes], *, source: str = "records") -> Iterator[Record]:
    """Rows of whole lines."""
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\n"):
            try:
                yield checked(Record(**json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:
                raise ValueError(f"{source}, line {number}, is no record: {error}") from None


def checked(record: Record) -> Record:
    """The record; a `ValueError` if it cannot be one."""
    if type(record.step) is not int or type(record.length) not in (int, type(None)):
        raise ValueError(f"step {record.step!r} and length {record.length!r} must be whole numbers")
    if type(record.domain) not in (str, type(None)):
        raise ValueError(f"domain {record.domain!r} must be a text")
    if not abs(record.value) < math.inf:  # JSON as Python reads it has NaN and Infinity
        raise ValueError(f"its value is {record.value}")
    return record
