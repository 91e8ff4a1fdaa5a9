"""Tokenizers: whole characters in a stream, bytes as tokens, files that are none."""

import json
import re
from pathlib import Path

import pytest
import tokenizers
import torch

from statetrack.automata import read
from statetrack.lm import Text, constraint, load_text, read_documents
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig, Sampling
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
    odd = "two\r\nlines\u2028and\x85more"
    (tmp_path / "b.txt").write_bytes(odd.encode())
    (tmp_path / "a.jsonl").write_bytes(json.dumps({"text": odd}, ensure_ascii=False).encode())
    assert list(read_documents(tmp_path)) == [odd, odd]
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text("no text")
    assert list(read_documents(tmp_path)) == [odd, odd]
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(ValueError, match='line 1: no JSON object with a "text"'):
        list(read_documents(tmp_path / "a.jsonl"))
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not text in UTF-8"):
        list(read_documents(tmp_path / "b.txt"))


def small(vocab_size: int) -> CausalLM:
    backbone = BackboneConfig(mixers=["DeltaNet"], d_model=16, mlp_dim=16)
    config = CausalLMConfig(vocab_size=vocab_size, backbone=backbone)
    return CausalLM(config, generator=torch.Generator().manual_seed(0))


def sentencepiece() -> Text:
    """A tokenizer with ▁ for a space and bytes for the rest, as Llama's."""
    tokens = {"</s>": 0, "<0x0A>": 1, "▁": 2, "a": 3, "▁a": 4, "é": 5}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(tokens, [("▁", "a")]))
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
        ]
    )
    tokenizer.add_special_tokens(["</s>"])
    return Text(tokenizer)


def test_vocabulary_is_what_tokens_write() -> None:
    text = Text.train(["naïve words, naïve words again"], vocab_size=280)
    vocabulary = text.vocabulary()
    assert vocabulary[0] is None and len(vocabulary) == len(text)
    for sample in ("naïve words", "a\n\tb", "…"):
        assert b"".join(vocabulary[i] or b"" for i in text.encode(sample)) == sample.encode()
    assert sentencepiece().vocabulary() == [None, b"\n", b" ", b"a", b" a", "é".encode()]
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(ValueError, match="its decoder is missing"):
        Text(words).vocabulary()


def test_constraint_writes_dates_alone() -> None:
    text = Text.train(["2024-01-31 and 1999-12-07 and 0.25"] * 4, vocab_size=300)
    dates = read("[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]")
    made = constraint(dates, text)
    model = small(len(text))
    hot = Sampling(temperature=2.0)
    generator = torch.Generator().manual_seed(0)
    found = model.generate(
        [text.encode("on ")] * 8,
        max_new_tokens=11,
        sampling=hot,
        generator=generator,
        constraint=made,
    )
    written = {text.decode(row[:-1].tolist()) for row in found}
    assert all(re.fullmatch(r"\d{4}-[01]\d-[0-3]\d", date) for date in written)
    assert len(written) > 4
    with pytest.raises(ValueError, match="no token '</s>'"):
        constraint(dates, text, end="</s>")
    with pytest.raises(ValueError, match="accepting states"):
        constraint(read("counter_5"), text)
