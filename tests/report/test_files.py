"""A finished run that has changed since is not reported silently."""

from pathlib import Path

import pytest

from statetrack.report.files import read_runs
from statetrack.runs.files import checksum_of, read_json, write_json
from tests.report.folders import parity, scores, write_run


def test_changed_numbers_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path, parity(), scores(0.5)).folder
    assert len(read_runs([tmp_path])) == 1
    text = (folder / "records.jsonl").read_text()
    for changed in (text.replace("0.5", "0.6", 1), text + text, ""):
        (folder / "records.jsonl").write_text(changed)
        with pytest.raises(ValueError, match=r"is broken: .*records\.jsonl has changed since"):
            read_runs([tmp_path])
    (folder / "records.jsonl").unlink()
    with pytest.raises(ValueError, match=r"is broken: .*records\.jsonl is missing"):
        read_runs([tmp_path])
    (folder / "records.jsonl").write_text(text)
    (folder / "DONE").write_text("")
    with pytest.raises(ValueError, match="is broken: .*DONE cannot be read"):
        read_runs([tmp_path])


def test_lost_weights_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path, parity(), scores(0.5)).folder
    weights = folder / "model.safetensors"
    weights.write_bytes(b"weights")
    done = read_json(folder / "DONE")
    done["sha256"]["model.safetensors"] = checksum_of(weights)
    write_json(folder / "DONE", done)
    read_runs([tmp_path, folder])
    assert capsys.readouterr().err == ""
    weights.unlink()
    assert len(read_runs([tmp_path, folder])) == 1
    assert capsys.readouterr().err == f"statetrack: {weights} is missing\n"
