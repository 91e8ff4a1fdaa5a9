"""A finished run that is not what it was is noticed, and the file is named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from statetrack.runs import Run, problems
from statetrack.runs.verify import damaged_numbers, damaged_weights
from statetrack.runs.writer import claim
from tests.runs.folders import Config, finished, flip, interrupted


def twice(path: Path) -> None:
    path.write_bytes(2 * path.read_bytes())


def say(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


NUMBERS: dict[str, Callable[[Path], object]] = {
    "records.jsonl missing": lambda f: (f / "records.jsonl").unlink(),
    "records.jsonl empty": lambda f: (f / "records.jsonl").write_bytes(b""),
    "records.jsonl doubled": lambda f: twice(f / "records.jsonl"),
    "records.jsonl one bit": lambda f: flip(f / "records.jsonl"),
    "records.jsonl NaN": lambda f: say(f / "records.jsonl", "0.1", "NaN"),
    "records.jsonl huge": lambda f: say(f / "records.jsonl", "0.1", "1e400"),
    "records.jsonl a digit": lambda f: say(f / "records.jsonl", "0.1", "0.2"),
    "DONE empty": lambda f: (f / "DONE").write_bytes(b""),
    "DONE an empty object": lambda f: (f / "DONE").write_text("{}"),
    "DONE a list": lambda f: (f / "DONE").write_text("[]"),
    "DONE a folder": lambda f: ((f / "DONE").unlink(), (f / "DONE").mkdir()),
    "DONE no step": lambda f: say(f / "DONE", "step", "stop"),
    "DONE a time that is none": lambda f: say(f / "DONE", '"wall_s": ', '"wall_s": 1e400, "x": '),
    "DONE no sums of records": lambda f: say(f / "DONE", "records.jsonl", "x"),
    "DONE sums are a list": lambda f: (f / "DONE").write_text(
        '{"step": 10, "solved": false, "wall_s": 1.0, "sha256": []}'
    ),
    "config.json empty": lambda f: (f / "config.json").write_bytes(b""),
    "config.json missing": lambda f: (f / "config.json").unlink(),
    "config.json another space": lambda f: say(f / "config.json", ": ", ":  "),
}
WEIGHTS: dict[str, Callable[[Path], object]] = {
    "model.safetensors missing": lambda f: (f / "model.safetensors").unlink(),
    "model.safetensors empty": lambda f: (f / "model.safetensors").write_bytes(b""),
    "model.safetensors one bit": lambda f: flip(f / "model.safetensors"),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != "lock"}


@pytest.mark.parametrize("damage", [*NUMBERS, *WEIGHTS])
def test_damage_is_named_and_training_is_refused(damage: str, tmp_path: Path) -> None:
    run = finished(tmp_path)
    assert problems(run) == []
    (NUMBERS | WEIGHTS)[damage](run.folder)
    (line,) = problems(Run(run.folder))
    assert line.startswith(str(run.folder)) or "[Errno" in line
    assert damage.split()[0] in line
    assert (damaged_numbers(run), damaged_weights(run)) == (
        ([line], []) if damage in NUMBERS else ([], [line])
    )
    before = contents(run.folder)
    if damage != "config.json missing":  # which is written again as it was
        with pytest.raises(ValueError, match=rf"Delete {run.folder} to train this run again$"):
            with claim(tmp_path, Config()):
                pass
        assert contents(run.folder) == before


def test_a_run_that_has_not_finished_has_no_problems(tmp_path: Path) -> None:
    assert problems(Run(interrupted(tmp_path))) == []
    assert problems(Run(tmp_path / "nothing")) == []


def from_before(folder: Path) -> None:
    """As if the run had finished before there were checksums."""
    done = json.loads((folder / "DONE").read_text())
    del done["sha256"]
    (folder / "DONE").write_text(json.dumps(done))


def test_a_run_from_before_checksums_is_looked_at(tmp_path: Path) -> None:
    run = finished(tmp_path)
    from_before(run.folder)
    assert problems(run) == []
    (run.folder / "model.safetensors").unlink()
    assert problems(run) == []  # weights were not always kept
    (run.folder / "model.safetensors").write_bytes(b"")
    assert "model.safetensors cannot be read" in problems(run)[0]


@pytest.mark.parametrize(
    "damage, line",
    [
        (lambda p: p.unlink(), "is missing"),
        (lambda p: p.write_bytes(b""), "does not end at step 10"),
        (twice, "has numbers twice"),
        (lambda p: p.write_text(p.read_text().replace("10", "8")), "does not end at step 10"),
        (lambda p: say(p, "0.1", "NaN"), "line 1, is no record"),
        (lambda p: say(p, "0.1", "1e400"), "line 1, is no record"),
    ],
)
def test_records_from_before_checksums(
    damage: Callable[[Path], object], line: str, tmp_path: Path
) -> None:
    run = finished(tmp_path)
    from_before(run.folder)
    damage(run.folder / "records.jsonl")
    (found,) = problems(run)
    assert found.startswith(str(run.folder / "records.jsonl")) and line in found
