"""Tokenizers: whole characters in a stream, bytes as tokens, files that are none."""

import json
from pathlib import Path

import pytest

from statetrack.lm import Text, load_text, read_documents
from tests.models.test_causal_lm import build

SAMPLE = "naïve π\n日本 \t end"


@pytest.mark.parametrize("kind", ["bytes", "trained"])
def test_there_and_back(kind: str, tmp_path: Path) -> None:
    text = Text.of_bytes() if kind == "bytes" else Text.train([SAMPLE] * 3 + ["other"], 300)
    tokens = text.encode(SAMPLE)
    assert text.decode(tokens) == SAMPLE
    assert "".join(text.stream(tokens)) == SAMPLE
    assert BROKEN not in "".join(text.stream(tokens))
    text.save(tmp_path / "tokenizer.json")
    assert Text.read(tmp_path / "tokenizer.json").encode(SAMPLE) == tokens


BROKEN = "\ufffd"


def test_bytes_are_tokens() -> None:
    text = Text.of_bytes()
    assert len(text) == 256
    assert text.encode(SAMPLE) == list(SAMPLE.encode())


def test_trained_tokenizer_is_shorter_than_bytes() -> None:
    text = Text.train(["the cat and the hat " * 20], 280)
    assert len(text) <= 280 and text.tokenizer.token_to_id("<|endoftext|>") == 0
    assert len(text.encode("the cat and the hat")) < 10


def test_tokenizer_of_a_model(tmp_path: Path) -> None:
    model = build("DeltaNet")
    with pytest.raises(ValueError, match="has no tokenizer.json"):
        load_text(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="is not a tokenizer"):
        load_text(tmp_path)
    Text.of_bytes().save(tmp_path / "tokenizer.json")
    assert len(load_text(tmp_path)) == 256
    with pytest.raises(ValueError, match="tokens up to 255 and the model knows 0 to 22"):
        load_text(tmp_path, model)


def test_documents(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("two\nlines")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "one"}) + "\n" + '{"text": "more"}\n')
    assert list(read_documents(tmp_path)) == ["one", "more", "two\nlines"]
    with pytest.raises(ValueError, match="does not exist"):
        list(read_documents(tmp_path / "c"))
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(ValueError, match='line 1: no JSON object with a "text"'):
        list(read_documents(tmp_path / "a.jsonl"))
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not text in UTF-8"):
        list(read_documents(tmp_path / "b.txt"))
