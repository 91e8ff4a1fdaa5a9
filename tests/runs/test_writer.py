"""The life of a run's folder."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from statetrack.runs import Record, Run
from statetrack.runs.checkpoints import newest
from statetrack.runs.errors import write_error
from statetrack.runs.files import checksum_of
from statetrack.runs.folder import config_file
from statetrack.runs.writer import Writer, claim, clean
from tests.runs.folders import STEPS, Config, finished, interrupted, rows, tensors


class Mirror:
    def __init__(self) -> None:
        self.rows: list[Record] = []
        self.closed = False

    def write(self, records: list[Record]) -> None:
        self.rows += records

    def close(self) -> None:
        self.closed = True


def test_from_claim_to_done(tmp_path: Path) -> None:
    mirror = Mirror()
    with claim(tmp_path, Config()) as run:
        assert not run.finished and run.folder == tmp_path / Config().fingerprint
        writer = Writer(run.folder, {"device": "cpu"}, mirrors=[mirror])
        with closing(writer):
            writer.write(rows(2))
            writer.keep(tensors(2), {"step": 2})
            writer.write(rows(STEPS))
            assert not run.finished
            used = {"delta_rule": ["torch", "triton"]}
            writer.finish(tensors(STEPS), step=STEPS, solved=True, backends=used)
    assert mirror.rows == run.records == rows(2) + rows(STEPS) and mirror.closed
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        *("config.json", "run.json", "records.jsonl", "model.safetensors", "DONE", "lock")
    }
    done = json.loads((run.folder / "DONE").read_text())
    assert (done["step"], done["solved"]) == (STEPS, True)
    listed = ("config.json", "records.jsonl", "model.safetensors")
    assert done["sha256"] == {name: checksum_of(run.folder / name) for name in listed}
    info = {"device": "cpu", "resumed_at": 0, "wall_s": done["wall_s"], "backends": used}
    assert run.info == info


def test_nobody_hands_in_backends_that_were_not_used(tmp_path: Path) -> None:
    assert "backends" not in finished(tmp_path).info


def test_done_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    replace = os.replace

    def note(source: Any, target: Any) -> None:
        written.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", note)
    finished(tmp_path)
    assert written == ["config.json", "run.json", "model.safetensors", "run.json", "DONE"]


def test_records_are_on_the_disk_before_what_speaks_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(number: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{number}")).name)
        fsync(number)

    def replaced(source: Any, target: Any) -> None:
        order.append(Path(target).name)
        replace(source, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    with claim(tmp_path, Config()) as run, closing(Writer(run.folder, {})) as writer:
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)
        writer.write(rows(2))
        writer.keep(tensors(2), {"step": 2})
        writer.write(rows(4))
        writer.finish(tensors(4), step=4, solved=False)
    assert order[0] == "records.jsonl" and order.index("step-00000002") > 0
    later = order[order.index("step-00000002") :]
    assert later.index("records.jsonl") < later.index("DONE")


def test_going_on_keeps_the_records_of_the_start_and_the_time(tmp_path: Path) -> None:
    folder = interrupted(tmp_path, at=6)
    start = newest(folder, steps=STEPS)
    assert start is not None and start.step == 4
    start.position["wall_s"] = 1000.0
    with claim(tmp_path, Config()) as run, closing(Writer(folder, {}, start)) as writer:
        assert run.records == rows(2) + rows(4)
        writer.write(rows(STEPS))
        writer.finish(tensors(STEPS), step=STEPS, solved=False)
    assert Run(folder).records == rows(2) + rows(4) + rows(STEPS)
    assert Run(folder).info["resumed_at"] == 4 and Run(folder).info["wall_s"] > 1000.0


def test_a_finished_run_is_never_written_again(tmp_path: Path) -> None:
    run = finished(tmp_path)
    before = (run.folder / "records.jsonl").read_bytes(), (run.folder / "run.json").read_bytes()
    with pytest.raises(ValueError, match="has finished; its records are never written again"):
        Writer(run.folder, {})
    after = (run.folder / "records.jsonl").read_bytes(), (run.folder / "run.json").read_bytes()
    assert after == before


def test_what_was_left_beside_done_goes_with_the_next_look(tmp_path: Path) -> None:
    """Killed between DONE and the clean-up, or an error by one who lost the race."""
    for look in ("claim", "clean"):
        run = finished(tmp_path / look)
        (run.folder / "checkpoints" / "step-00000002").mkdir(parents=True)
        (run.folder / "error.txt").write_text("in use")
        if look == "clean":
            clean(run)
        else:
            with claim(tmp_path / look, Config()):
                pass
        assert not (run.folder / "checkpoints").exists() and run.error is None


def test_clean_leaves_a_run_that_has_not_finished(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    write_error(folder, "why")
    clean(Run(folder))
    assert newest(folder, steps=STEPS) is not None and Run(folder).error == "why"


def test_an_error_is_kept_until_the_next_attempt_and_never_beside_done(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    write_error(folder, "why")
    assert Run(folder).error == "why"
    with claim(tmp_path, Config()) as run:
        assert run.error is None
    done = finished(tmp_path / "other")
    write_error(done.folder, "why")
    assert done.error is None


def test_a_folder_of_another_config_is_never_touched(tmp_path: Path) -> None:
    folder = tmp_path / Config().fingerprint
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_file(Config(seed=1))))
    with pytest.raises(ValueError, match="belongs to another config"), claim(tmp_path, Config()):
        pass
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "lock"]


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = interrupted(tmp_path)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read.*Delete .* to train"):
        with claim(tmp_path, Config()):
            pass


def test_a_claim_is_held(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with claim(tmp_path, Config()):
        with pytest.raises(ValueError, match="in use"), claim(tmp_path, Config()):
            pass
