"""Whether a finished run is what it was when it finished.

`DONE` lists checksums of the files a run leaves; those are compared. One from before there were
checksums lists none: its numbers are then only looked at, and it may have lost its weights.
"""

import math
from pathlib import Path
from typing import Any

from statetrack.runs.files import checksum_of, read_json
from statetrack.runs.folder import CONFIG, DONE, MODEL, RECORDS, Run
from statetrack.runs.records import read_records

__all__ = ["damaged_numbers", "damaged_weights", "problems"]

SUMS = "sha256"


def problems(run: Run) -> list[str]:
    """What is wrong with a finished run: one line for each file, which it names."""
    return damaged_numbers(run) + damaged_weights(run)


def damaged_numbers(run: Run) -> list[str]:
    """Of `problems`, those for which no number of the run may be used."""
    if not run.finished:
        return []
    try:
        done = _read_done(run.folder / DONE)
    except (OSError, ValueError) as error:
        return [str(error)]
    if SUMS in done:
        return _changed(run.folder, done[SUMS], (CONFIG, RECORDS))
    return _implausible(run.folder / RECORDS, done["step"])


def damaged_weights(run: Run) -> list[str]:
    """Of `problems`, those with the final weights."""
    try:
        done = _read_done(run.folder / DONE)
    except (OSError, ValueError):  # not finished, or known not to be whole
        return []
    if SUMS in done:
        return _changed(run.folder, done[SUMS], (MODEL,)) if MODEL in done[SUMS] else []
    try:
        run.weights()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        return [str(error)]
    return []


def _read_done(path: Path) -> dict[str, Any]:
    done = read_json(path)
    seconds = done.get("wall_s")
    is_end = type(done.get("step")) is int and type(done.get("solved")) is bool
    is_time = type(seconds) is float and math.isfinite(seconds)
    if not (is_end and is_time and isinstance(done.get(SUMS, {}), dict)):
        raise ValueError(f"{path} does not say how the run ended")
    return done


def _changed(folder: Path, sums: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    found = []
    for name in names:
        path = folder / name
        if name not in sums:
            found.append(f"{folder / DONE} has no checksum of {name}")
        elif not path.is_file():
            found.append(f"{path} is missing")
        elif checksum_of(path) != sums[name]:
            found.append(f"{path} has changed since the run finished")
    return found


def _implausible(records: Path, step: int) -> list[str]:
    """Whether records cannot be those of a run that ended at `step`."""
    try:
        rows = read_records(records)
    except FileNotFoundError:
        return [f"{records} is missing"]
    except (OSError, ValueError) as error:
        return [str(error)]
    places = {
        (r.step, r.split, r.metric, r.length, r.length_min, r.operations, r.domain) for r in rows
    }
    if len(places) < len(rows):
        return [f"{records} has numbers twice"]
    if max((r.step for r in rows), default=0) != step:
        return [f"{records} does not end at step {step}, where the run did"]
    return []
