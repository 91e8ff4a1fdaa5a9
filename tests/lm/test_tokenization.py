"""Text to shards: nothing lost, nothing done twice, projects on one side of the split."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statetrack.lm import Manifest, Text, sources_of, tokenization, tokenize
from statetrack.lm.shards import Part
from tests.lm import corpus

MODULE = "statetrack.lm.tokenization"


def texts_in(manifest: Manifest, split: str, domain: str) -> list[str]:
    """The documents of a domain, read back token by token."""
    part = Part(manifest, split, domain)
    tokens = part.read(0, len(part))
    ends = np.flatnonzero(tokens == manifest.end)
    assert ends[-1] == len(tokens) - 1
    starts = [0, *(ends[:-1] + 1)]
    text = Text.read(manifest.folder / "tokenizer.json")
    return [text.decode(tokens[a:b].tolist()) for a, b in zip(starts, ends, strict=True)]


def test_every_text_is_there_once(manifest: Manifest) -> None:
    root = manifest.folder.parent / "text"
    for domain in ("code", "prose"):
        found = texts_in(manifest, "train", domain) + texts_in(manifest, "validation", domain)
        assert sorted(found) == sorted(p.read_text() for p in (root / domain).rglob("*.txt"))
    assert all("project2" in str(p) for p in root.rglob("*") if p.parent.name == "project2")
    held = {p.read_text() for p in root.rglob("project2/*")}
    read = texts_in(manifest, "validation", "code") + texts_in(manifest, "validation", "prose")
    assert set(read) == held


def test_counts(manifest: Manifest) -> None:
    (shard,) = manifest.splits["train"]["code"]
    texts = texts_in(manifest, "train", "code")
    assert shard.documents == len(texts)
    assert shard.text_bytes == sum(len(text.encode()) for text in texts)
    assert shard.tokens == shard.text_bytes + shard.documents  # bytes are the tokens
    assert manifest.dtype == "uint16" and manifest.vocab_size == 257


@pytest.mark.parametrize("size", [60, 10**6])
def test_lines_of_json(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file is cut into ranges of bytes: every line is in exactly one."""
    monkeypatch.setattr(f"{MODULE}.JOB_BYTES", size)
    rows = [{"text": f"text {i} é\n" * (1 + i % 3), "project": f"p{i % 4}"} for i in range(30)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = tokenize(
        sources_of([f"web={path}"]),
        tmp_path / "out",
        tokenizer=corpus.with_end(),
        hold_out_share=0.5,
        workers=0,
    )
    both = {split: texts_in(found, split, "web") for split in ("train", "validation")}
    assert sorted(both["train"] + both["validation"]) == sorted(row["text"] for row in rows)
    projects = {
        split: {row["project"] for row in rows if row["text"] in texts}
        for split, texts in both.items()
    }
    assert projects["train"] and not projects["train"] & projects["validation"]


def test_an_interrupted_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.JOB_BYTES", 500)
    whole = corpus.shards(tmp_path / "whole")
    from statetrack.lm.tokenization import _do

    done: list[Any] = []

    def dies(job: Any, settings: Any) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(job)
        return _do(job, settings)

    monkeypatch.setattr(f"{MODULE}._do", dies)
    with pytest.raises(KeyboardInterrupt):
        corpus.shards(tmp_path / "cut")
    assert not (tmp_path / "cut/shards/manifest.json").exists()
    again: list[Any] = []
    monkeypatch.setattr(f"{MODULE}._do", lambda job, s: again.append(job) or _do(job, s))
    text = tmp_path / "cut/text"
    found = tokenize(
        sources_of([text], by_folder=True),
        tmp_path / "cut/shards",
        tokenizer=corpus.with_end(),
        hold_out=["*/project2/*"],
        workers=0,
    )
    assert found.sha256 == whole.sha256
    assert not set(again) & set(done) and len(again) + len(done) > 6


def test_changed_text_is_read_again(tmp_path: Path) -> None:
    first = corpus.shards(tmp_path)
    path = next((tmp_path / "text/code").rglob("*.txt"))
    path.write_text("something else")
    os.utime(path, ns=(1, 1))
    again = tokenize(
        sources_of([tmp_path / "text"], by_folder=True),
        tmp_path / "shards",
        tokenizer=corpus.with_end(),
        workers=0,
    )
    assert again.sha256 != first.sha256
    assert "something else" in texts_in(again, "train", "code")


def test_shards_of_other_domains_are_not_lost(tmp_path: Path) -> None:
    first = corpus.shards(tmp_path)
    code = sources_of([tmp_path / "text/code"])
    with pytest.raises(ValueError, match="finished shards of prose, which would be lost"):
        tokenize(code, tmp_path / "shards", tokenizer=corpus.with_end(), workers=0)
    assert Manifest.read(first.folder).sha256 == first.sha256
    assert all(first.folder.joinpath(f"{one.name}.bin").exists() for one in first.shards())
    more = sources_of([f"{name}={tmp_path}/text" for name in ("code", "more", "prose")])
    again = tokenize(more, tmp_path / "shards", tokenizer=corpus.with_end(), workers=0)
    assert again.domains("train") == ["code", "more", "prose"]


@pytest.mark.slow
def test_processes_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = corpus.shards(tmp_path / "alone")
    seen: list[tuple[int, int, int]] = []
    together = corpus.shards(
        tmp_path / "together", workers=2, progress=lambda *numbers: seen.append(numbers)
    )
    assert together.sha256 == alone.sha256
    assert len(seen) == 2 and seen[-1][0] == seen[-1][1]


def test_special_tokens_in_a_text_are_words(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("before <|endoftext|> after")
    found = tokenize(
        sources_of([tmp_path / "a.txt"]), tmp_path / "out", tokenizer=corpus.with_end(), workers=0
    )
    assert texts_in(found, "train", "a") == ["before <|endoftext|> after"]


def test_a_tokenizer_is_trained_on_training_text_alone(tmp_path: Path) -> None:
    for name, words in (("a/1.txt", "lorem ipsum " * 50), ("b/2.txt", "zebrazebra " * 50)):
        (tmp_path / "text" / name).parent.mkdir(parents=True)
        (tmp_path / "text" / name).write_text(words)
    said: list[str] = []
    found = tokenize(
        sources_of([f"d={tmp_path / 'text'}"]),
        tmp_path / "out",
        vocab_size=300,
        hold_out=["d/b/*"],
        workers=0,
        say=said.append,
    )
    tokens = found.tokens
    assert found.end == 0 and "on 1 texts" in said[0]
    assert tokens("train")["d"] < 110 < 250 < tokens("validation")["d"]
    again = tokenize(
        sources_of([f"d={tmp_path / 'text'}"]),
        tmp_path / "out",
        vocab_size=300,
        hold_out=["d/b/*"],
        workers=0,
        say=said.append,
    )
    assert again.sha256 == found.sha256 and len(said) == 1  # not trained twice


def test_files_that_are_no_text_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text("fine")
    (tmp_path / "text/b.bin").write_bytes(b"\xff\xfe\xfa")
    said: list[str] = []
    found = tokenize(
        sources_of([tmp_path / "text"]),
        tmp_path / "out",
        tokenizer=corpus.with_end(),
        workers=0,
        say=said.append,
    )
    assert texts_in(found, "train", "text") == ["fine"]
    assert said == ["1 file is not UTF-8 and left out, the first is text/b.bin"]
    (tmp_path / "text/a.txt").unlink()
    with pytest.raises(ValueError, match="no text in any of the files; 1 file is not UTF-8"):
        tokenize(
            sources_of([tmp_path / "text"]),
            tmp_path / "again",
            tokenizer=corpus.with_end(),
            workers=0,
        )


def test_which_files_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing below a hidden folder; what is left out besides is said."""
    for name in ("code/a.txt", "code/.git/HEAD", ".cache/b.txt", "far/c.txt", "readme.md"):
        (tmp_path / "text" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "text" / name).write_text(name)
    (tmp_path / "text/code/link").symlink_to(tmp_path / "text/far")
    found = sources_of([tmp_path / "text"], by_folder=True)
    assert [(one.domain, one.name) for one in found] == [("code", "a.txt"), ("far", "c.txt")]
    said = capsys.readouterr().err
    assert "text/code/link is a link to a folder, which is not followed" in said
    assert "text/readme.md lies in no sub-folder" in said
    assert [one.name for one in sources_of([tmp_path / "text"])] == [
        "code/a.txt",
        "far/c.txt",
        "readme.md",
    ]


def test_shards_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")

    def again() -> None:
        tokenize(sources_of([tmp_path]), tmp_path / "out", tokenizer=corpus.with_end(), workers=0)

    again()
    with pytest.raises(ValueError, match="out/manifest.json would be read as text"):
        again()


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.jsonl").write_text('{"text": "x"}\n{"txt": 1}\n')
    with pytest.raises(ValueError, match="does not exist"):
        sources_of([tmp_path / "c.txt"])
    with pytest.raises(ValueError, match="no sub-folders"):
        (tmp_path / "empty").mkdir()
        sources_of([tmp_path / "empty"], by_folder=True)
    with pytest.raises(ValueError, match="a.txt is no folder: leave out --by-folder"):
        sources_of([tmp_path / "a.txt"], by_folder=True)
    with pytest.raises(ValueError, match="has a name already: leave out --by-folder"):
        sources_of([f"code={tmp_path}"], by_folder=True)
    with pytest.raises(ValueError, match="a.txt is given twice"):
        sources_of([f"x={tmp_path}", f"x={tmp_path}/empty/../a.txt"])
    one = sources_of([tmp_path / "a.txt"])
    with pytest.raises(ValueError, match="no token '<|endoftext|>'"):
        tokenize(one, tmp_path / "out", tokenizer=Text.of_bytes(), workers=0)
    with pytest.raises(ValueError, match="workers=-1 must be at least 0"):
        tokenize(one, tmp_path / "out", workers=-1)
    with pytest.raises(ValueError, match="vocab_size=256 must be at least 257"):
        tokenize(one, tmp_path / "out", vocab_size=256, workers=0)
    with pytest.raises(ValueError, match="nothing to hold out matches"):
        tokenize(one, tmp_path / "out", hold_out=["b/*"], workers=0)
    with pytest.raises(ValueError, match="b.jsonl, the line at byte 14: no JSON object"):
        tokenize(
            sources_of([tmp_path / "b.jsonl"]),
            tmp_path / "out",
            tokenizer=corpus.with_end(),
            workers=0,
        )


def test_the_sample_is_from_all_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long file a bit here and there, and of every domain by its size."""
    monkeypatch.setattr(f"{MODULE}.SAMPLE_BYTES", 20_000)
    monkeypatch.setattr(f"{MODULE}.SAMPLE_STEP", 2_000)
    rows = [{"text": f"{i:04} " * 20, "project": f"p{i // 250}"} for i in range(1000)]
    lines = [json.dumps(row) for row in rows]
    (tmp_path / "many.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "one.jsonl").write_text(json.dumps({"text": "x" * 120_000}) + "\n")
    jobs = tokenization._jobs(sources_of([tmp_path / "many.jsonl", tmp_path / "one.jsonl"]))
    sample = tokenization._sample(jobs, ("many/p3",), 0.0)
    sizes = {kind: sum(len(t) for t in sample if (t[0] == "x") == kind) for kind in (True, False)}
    assert sum(sizes.values()) == 20_000
    assert 8_000 < sizes[False] < 12_000
    numbers = {int(text[:4]) for text in sample if text[0] != "x"}
    assert {number // 250 for number in numbers} == {0, 1, 2}
