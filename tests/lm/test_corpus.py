"""Text out of packages, with its project and licence."""

import gzip
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from statetrack.lm import corpus
from statetrack.lm.corpus import Package, gather

BODY = b"def f(x):\n    return x\n" * 20


def packed(files: dict[str, bytes]) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return found.getvalue()


def test_a_wheel_and_a_deb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives made here stand for those that pip and apt would bring."""
    inner = gzip.compress(packed({"linux/fs/ext4/a.c": BODY, "linux/gen/b.c": BODY}))
    deb = {"./usr/src/linux.tar.gz": inner, "./usr/share/doc/notes.txt.gz": gzip.compress(BODY)}

    def downloaded(package: Package, folder: Path) -> Path:
        path = folder / package.name
        if package.kind == "deb":
            path.write_bytes(packed(deb))
            return path
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tool/a.py", BODY)
            archive.writestr("tool/short.py", b"x")
            archive.writestr("tool/binary.py", b"\xff" * 400)
            archive.writestr("tool/data.json", BODY)
        return path

    def of_deb(path: Path) -> Any:
        return corpus._of_tar(io.BytesIO(path.read_bytes()))

    monkeypatch.setattr(corpus, "_downloaded", downloaded)
    monkeypatch.setattr(corpus, "_of_deb", of_deb)
    packages = [
        Package("code", "wheel", "tool", "1.0", "MIT", ("*.py",)),
        Package("code", "deb", "linux", "6.1", "GPL-2", ("*.c",), but=("*/gen/*",), by_folder=2),
        Package("prose", "deb", "linux", "6.1", "GPL-2", ("*.txt",), by_folder=0),
    ]
    sizes = gather(tmp_path, packages)
    rows = [json.loads(line) for line in (tmp_path / "code.jsonl").read_text().splitlines()]
    assert [(row["project"], row["licence"]) for row in rows] == [
        ("tool", "MIT"),
        ("linux/fs", "GPL-2"),
    ]
    assert all(row["text"].encode() == BODY for row in rows)
    assert json.loads((tmp_path / "prose.jsonl").read_text())["project"] == "linux/notes"
    assert sizes == {"code": 2 * len(BODY), "prose": len(BODY)}


def test_what_cannot_be_had_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(command: list[str], **_: Any) -> None:
        assert command == ["apt-get", "download", "x=1"]
        raise subprocess.CalledProcessError(
            100, command, stderr=b"\nE: Version '1' was not found\n"
        )

    monkeypatch.setattr(subprocess, "run", fails)
    said: list[str] = []
    assert gather(tmp_path, [Package("code", "deb", "x", "1", "MIT", ("*",))], say=said.append) == {
        "code": 0
    }
    assert said == ["x 1 is left out: E: Version '1' was not found (`apt-get update` may find it)"]


def test_a_share_is_even_and_always_the_same() -> None:
    texts = [(f"project{i % 2}", f"text {i:04} " * 10) for i in range(2000)]
    size = sum(len(text) for _, text in texts)
    some = corpus._share(texts, size / 4)
    assert some == corpus._share(texts, size / 4)
    assert 0.2 < sum(len(text) for _, text in some) / size < 0.3
    for project in ("project0", "project1"):
        assert 0.4 < sum(name == project for name, _ in some) / len(some) < 0.6
    assert corpus._share(texts, size + 1.0) == texts
