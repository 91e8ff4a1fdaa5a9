"""Shards and their manifest: what is written is read, and what has changed is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from statetrack.lm import Manifest
from statetrack.lm.shards import MANIFEST, VERIFIED, Part, verify
from statetrack.runs.files import checksum_of
from tests.lm import corpus


@pytest.fixture
def own(manifest: Manifest, tmp_path: Path) -> Manifest:
    """A copy to spoil."""
    shutil.copytree(manifest.folder, tmp_path / "shards")
    return Manifest.read(tmp_path / "shards")


def test_the_hash_is_of_the_content(own: Manifest, manifest: Manifest, tmp_path: Path) -> None:
    assert own.sha256 == manifest.sha256
    assert corpus.shards(tmp_path, hold_out=[]).sha256 != manifest.sha256


def test_a_part_reads_across_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Part(corpus.shards(tmp_path / "one"), "train", "code")
    monkeypatch.setattr("statetrack.lm.tokenization.JOB_BYTES", 300)
    cut = Part(corpus.shards(tmp_path / "many"), "train", "code")
    assert len(whole.shards) == 1 and len(cut.shards) > 3 and len(whole) == len(cut)
    everything = whole.read(0, len(whole))
    assert np.array_equal(cut.read(0, len(cut)), everything)
    for first, count in ((0, 1), (100, 700), (len(whole) - 5, 5)):
        assert np.array_equal(cut.read(first, count), everything[first : first + count])


def test_where_names_the_document(manifest: Manifest) -> None:
    part = Part(manifest, "train", "prose")
    tokens = part.read(0, len(part))
    ends = np.flatnonzero(tokens == manifest.end)
    at = int(ends[2]) + 3
    assert part.where(at, 5) == f"train/prose/00000.bin at token {at} (document 3)"
    assert part.where(at, int(ends[4]) - at + 2).endswith("(documents 3 to 5)")


def test_an_unknown_domain(manifest: Manifest) -> None:
    with pytest.raises(ValueError, match="no train text of domain 'cod'; did you mean"):
        Part(manifest, "train", "cod")


@pytest.mark.parametrize("harm", ["missing", "longer", "changed", "tokenizer"])
def test_spoilt_shards_are_refused(own: Manifest, harm: str) -> None:
    verify(own)
    assert (own.folder / VERIFIED).exists()
    path = own.folder / ("tokenizer.json" if harm == "tokenizer" else "train/code/00000.bin")
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "longer":
        path.write_bytes(content + b"\0\0")
    else:
        path.write_bytes(content[:-2] + b"\1\1")
    message = "is missing, which" if harm == "missing" else "has changed since"
    with pytest.raises(ValueError, match=f"{path.name} {message}"):
        verify(own)


def test_verified_once(own: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(
        "statetrack.lm.shards.checksum_of",
        lambda path, of=checksum_of: asked.append(path) or of(path),
    )
    (own.folder / VERIFIED).unlink(missing_ok=True)
    verify(own)
    first = len(asked)
    verify(own)
    assert len(asked) == first == 2 * len(own.shards()) + 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9, "dtype": "uint16"}'])
def test_a_broken_manifest(text: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ValueError, match="is not a manifest"):
        Manifest.read(tmp_path)


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="statetrack lm tokenize"):
        Manifest.read(tmp_path)


def test_people_s_words_are_no_part_of_the_hash(own: Manifest) -> None:
    path = own.folder / MANIFEST
    content = json.loads(path.read_text())
    assert content.pop("about")["hold_out"] == ["*/project2/*"]
    path.write_text(json.dumps(content))
    assert Manifest.read(own.folder).sha256 == own.sha256


def test_windows_are_apart_and_inside(manifest: Manifest) -> None:
    part = Part(manifest, "train", "code")
    whole = part.read(0, len(part))
    for length, most in ((7, 4), (len(part), 3), (len(part) // 3, 100)):
        found = part.windows(length, most)
        assert len(found) == min(most, len(part) // length)
        step = (len(part) - length) // max(1, len(found) - 1)
        assert len(found) == 1 or step >= length
        for place, window in enumerate(found):
            assert (window == whole[place * step :][:length]).all()
    assert part.windows(len(part) + 1, 3) == []
