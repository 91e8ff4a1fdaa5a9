"""Records of a run that another process trains, as they grow."""

from pathlib import Path

from statetrack.runs.folder import RECORDS
from statetrack.runs.records import Record, parse_records

__all__ = ["Tail"]


class Tail:
    """What a run, trained elsewhere, has written since one last looked."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORDS
        self._read = self._path.stat().st_size if self._path.exists() else 0

    def rows(self) -> list[Record]:
        """The whole lines that are new."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            if self._path.stat().st_size < self._read:  # a resumed run has cut its records
                self._read = self._path.stat().st_size
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        try:
            return list(parse_records(whole.splitlines(keepends=True)))
        except ValueError:  # it was cut and written again while we read
            return []
