"""Whatever happens to the newest checkpoint, the one before it is used, and a line says why."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from statetrack.runs import checkpoints
from statetrack.runs.checkpoints import KEPT, newest, place
from statetrack.runs.writer import Writer
from tests.runs.folders import STEPS, flip, forge, interrupted, move, rows, tensors


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def become_a_file(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.touch()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "state truncated": lambda c: truncate(c / "state.safetensors"),
    "state one bit": lambda c: flip(c / "state.safetensors"),
    "state missing": lambda c: (c / "state.safetensors").unlink(),
    "state is no safetensors": lambda c: forge(c, state=b"?" * 100),
    "state is empty": lambda c: forge(c, state=b""),
    "position": lambda c: (c / "position.json").write_text('{"step": 2}'),
    "position is a list": lambda c: forge(c, position=b"[]"),
    "position is no json": lambda c: forge(c, position=b"?"),
    "position is deep": lambda c: forge(c, position=b"[" * 100_000),
    "position without step": lambda c: move(c, step=None),
    "position without records": lambda c: move(c, records_bytes=None),
    "position without their checksum": lambda c: move(c, records_sha256=None),
    "position without time": lambda c: move(c, wall_s=None),
    "time is no number": lambda c: move(c, wall_s="1"),
    "records of a negative size": lambda c: move(c, records_bytes=-1),
    "step of another": lambda c: move(c, step=2),
    "step behind the end": lambda c: move(c, step=10**9),
    "step is negative": lambda c: move(c, step=-4),
    "step is not whole": lambda c: move(c, step=4.0),
    "step is a word": lambda c: move(c, step="4"),
    "no marker": lambda c: (c / "COMPLETE").unlink(),
    "marker is a list": lambda c: (c / "COMPLETE").write_text("[]"),
    "marker is no json": lambda c: (c / "COMPLETE").write_text("?"),
    "marker is empty": lambda c: (c / "COMPLETE").write_text(""),
    "marker is deep": lambda c: (c / "COMPLETE").write_text("[" * 100_000),
    "marker is a folder": lambda c: ((c / "COMPLETE").unlink(), (c / "COMPLETE").mkdir()),
    "a file": become_a_file,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_previous_used(
    damage: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = interrupted(tmp_path, at=6)
    DAMAGES[damage](place(folder, 4))
    start = newest(folder, steps=STEPS)
    assert start is not None and start.step == 2
    assert torch.equal(start.tensors["weight"], tensors(2)["weight"])
    said = capfd.readouterr().err
    assert said.startswith(f"statetrack: checkpoint {place(folder, 4)} is passed over: ")
    assert said.count("\n") == 1


def test_the_newest_is_used_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = interrupted(tmp_path, at=8)
    assert KEPT == 2
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000006"]
    start = newest(folder, steps=STEPS)
    assert start is not None and start.step == 6
    older = newest(folder, steps=STEPS, before=6)
    assert older is not None and older.step == 4
    assert newest(folder, steps=STEPS, before=4) is None
    assert newest(tmp_path / "nothing", steps=STEPS) is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_kill_left_is_removed(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = interrupted(tmp_path)
    leftover = folder / "checkpoints" / ".tmp-step-00000006"
    leftover.touch() if kind == "file" else leftover.mkdir()
    assert newest(folder, steps=STEPS) is not None
    assert not leftover.exists() and capfd.readouterr().err == ""


def test_a_step_beyond_the_last_is_passed_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With forged sums, under the name that fits: a run from there would never end."""
    folder = interrupted(tmp_path)
    for step in (STEPS, 123456789):
        shutil.copytree(place(folder, 4), place(folder, step))
        move(place(folder, step), step=step)
    start = newest(folder, steps=STEPS)
    assert start is not None and start.step == 4
    said = capfd.readouterr().err.splitlines()
    assert "step-123456789 is passed" in said[0] and "step-00000010 is passed" in said[1]


LOSSES: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int | None]] = {
    "the last row": (lambda lines: lines[:-1], 4),  # it is of step 6, and written again
    "a later row": (lambda lines: lines[:3], 2),
    "all rows": (lambda lines: [], None),
    "a digit": (lambda lines: [lines[0].replace(b"0.5", b"0.6"), *lines[1:]], None),
    "a later digit": (
        lambda lines: [*lines[:2], lines[2].replace(b"0.25", b"0.26"), *lines[3:]],
        2,
    ),
    "a bit": (lambda lines: [b"z" + lines[0][1:], *lines[1:]], None),
    "a row twice": (lambda lines: [lines[0], *lines], None),
    "an order": (lambda lines: [lines[1], lines[0], *lines[2:]], None),
}


@pytest.mark.parametrize("lost", LOSSES)
def test_lost_records(lost: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The newest checkpoint is used whose records are whole."""
    folder = interrupted(tmp_path)
    records = folder / "records.jsonl"
    change, expected = LOSSES[lost]
    lines = records.read_bytes().splitlines(keepends=True)
    assert change(lines) != lines
    records.write_bytes(b"".join(change(lines)))
    start = newest(folder, steps=STEPS)
    assert (start.step if start else None) == expected
    said = capfd.readouterr().err.splitlines()
    assert len(said) == {4: 0, 2: 1, None: 2}[expected]
    word = "is shorter than" if "row" in lost and "twice" not in lost else "has changed since"
    assert all(f"{records} {word}" in line for line in said)


def test_a_lost_record_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = interrupted(tmp_path)
    (folder / "records.jsonl").unlink()
    assert newest(folder, steps=STEPS) is None
    assert capfd.readouterr().err.count("records.jsonl is shorter") == 2


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    big = 10**8
    for step in (big - 1, big):
        shutil.copytree(place(folder, 4), place(folder, step))
        move(place(folder, step), step=step)
    start = newest(folder, steps=2 * big)
    assert start is not None and start.step == big


def test_going_on_drops_what_lies_ahead(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A run that goes back to an older checkpoint, and is killed, finds no stale newer one."""
    folder = interrupted(tmp_path, at=8)
    start = newest(folder, steps=STEPS, before=6)
    with closing(Writer(folder, {}, start)):
        assert not place(folder, 6).exists() and place(folder, 4).exists()
    again = newest(folder, steps=STEPS)
    assert again is not None and again.step == 4
    with closing(Writer(folder, {}, again)) as writer:
        writer.write(rows(6))
        writer.keep(tensors(6), {"step": 6, "solved": False})
    last = newest(folder, steps=STEPS)
    assert last is not None and last.position["solved"] is False
    assert json.loads((place(folder, 6) / "position.json").read_text())["step"] == 6
    assert capfd.readouterr().err == ""
    checkpoints.clear(folder)
    checkpoints.clear(folder)
    assert not (folder / "checkpoints").exists()
