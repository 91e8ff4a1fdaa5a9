"""Files are whole or not there."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from statetrack.runs import files
from statetrack.runs.files import (
    checksum,
    checksum_of,
    exclusive,
    read_json,
    remove,
    write_atomically,
    write_folder_atomically,
    write_json,
)


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left") as caught:
            write_atomically(path, b"new")
    assert caught.value.filename == str(tmp_path / ".tmp-file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("leftover", ["file", "folder", "nothing"])
def test_a_folder_replaces_what_a_kill_left(leftover: str, tmp_path: Path) -> None:
    for name in (".tmp-one", "one"):
        if leftover == "file":
            (tmp_path / name).write_text("half")
        elif leftover == "folder":
            (tmp_path / name).mkdir()
            (tmp_path / name / "half").touch()
    write_folder_atomically(tmp_path / "one", {"a": b"1", "b": b"2"})
    assert {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir()} == {"a": b"1", "b": b"2"}
    assert [p.name for p in tmp_path.iterdir()] == ["one"]


def test_remove_takes_anything_and_follows_no_link(tmp_path: Path) -> None:
    inside = tmp_path / "folder" / "inside"
    inside.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    remove(tmp_path / "link")
    assert inside.exists() and not (tmp_path / "link").is_symlink()
    remove(tmp_path / "folder")
    (tmp_path / "file").touch()
    remove(tmp_path / "file")
    remove(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [None, 0, 1, 99, 100, 1000])
def test_checksum_of_a_file_and_of_its_beginning(
    size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK", 7)
    content = bytes(range(100))
    (tmp_path / "file").write_bytes(content)
    expected = hashlib.sha256(content[:size]).hexdigest()
    assert checksum_of(tmp_path / "file", size) == expected == checksum(content[:size])


@pytest.mark.parametrize("content", ["", "?", "[1]", "1", "[" * 100_000, "\xff"])
def test_json_that_is_no_object_names_its_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"it\.json cannot be read"):
        read_json(path)


def test_json_round_trip_has_no_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "it.json", {"b": [1, None], "a": 0.1})
    assert read_json(tmp_path / "it.json") == {"b": [1, None], "a": 0.1}
    with pytest.raises(ValueError):
        write_json(tmp_path / "it.json", {"a": float("nan")})
    assert read_json(tmp_path / "it.json") == {"b": [1, None], "a": 0.1}


def test_a_lock_is_held_once_and_given_back(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with exclusive(tmp_path / "lock"):
        with pytest.raises(ValueError, match="is in use"), exclusive(tmp_path / "lock"):
            pass
    with exclusive(tmp_path / "lock"):
        pass
