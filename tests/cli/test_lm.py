"""The commands about language models."""

import io
import json
import re
from pathlib import Path

import pytest
import torch

from statetrack.cli import main
from statetrack.lm import Text
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    backbone = BackboneConfig(mixers=["DeltaNet", "Attention"], d_model=16, mlp_dim=16)
    config = CausalLMConfig(vocab_size=256, backbone=backbone, embedding_std=1.0)
    CausalLM(config, generator=torch.Generator().manual_seed(0)).save(tmp_path / "model")
    Text.of_bytes().save(tmp_path / "model" / "tokenizer.json")
    return tmp_path / "model"


def test_generate_writes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["lm", "generate", str(folder), "--prompt", "ab", "--max-new-tokens", "8"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert first.startswith("ab") and len(first.encode()) > 4
    assert main(command) == 0 and capsys.readouterr().out == first, "the seed decides"
    assert main([*command, "--seed", "1"]) == 0 and capsys.readouterr().out != first


def test_generate_reads_the_standard_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("xyz"))
    assert main(["lm", "generate", str(folder), "--max-new-tokens", "1"]) == 0
    assert capsys.readouterr().out.startswith("xyz")


def test_mistakes_are_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(words: str, *command: str) -> None:
        assert main(["lm", *command]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1

    refused("there is no such folder", "generate", str(tmp_path / "none"), "--prompt", "a")
    refused("the prompt is empty", "generate", str(folder), "--prompt", "")
    refused("top_p", "generate", str(folder), "--prompt", "a", "--top-p", "2")
    refused("give the folder of a language model", "evaluate", "--data", str(tmp_path))
    refused("does not exist", "evaluate", str(folder), "--data", str(tmp_path / "none"))
    (folder / "tokenizer.json").unlink()
    refused("has no tokenizer.json", "generate", str(folder), "--prompt", "a")


def test_convert_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backbone = BackboneConfig(
        mixers=[("DeltaNet", {"qk_eps": 1e-6, "eigen_range": (0.0, 1.0)})], d_model=16, mlp_dim=16
    )
    model = CausalLM(CausalLMConfig(vocab_size=256, backbone=backbone))
    model.save(tmp_path / "ours")
    Text.of_bytes().save(tmp_path / "ours" / "tokenizer.json")
    command = ["lm", "convert", str(tmp_path / "ours"), str(tmp_path / "fla"), "--to", "fla"]
    assert main(command) == 0 and "tokenizer.json" in capsys.readouterr().out
    assert json.loads((tmp_path / "fla" / "config.json").read_text())["model_type"] == "delta_net"
    back = ["lm", "convert", str(tmp_path / "fla"), str(tmp_path / "back")]
    assert main(back) == 0
    again = CausalLM.load(tmp_path / "back")
    tokens = torch.randint(256, (1, 9))
    assert torch.allclose(again(tokens)[0], model(tokens)[0], atol=1e-6)
    assert main([*back[:-1], str(tmp_path / "open"), "--open-range"]) == 0
    opened = CausalLM.load(tmp_path / "open")
    assert opened.config.backbone.mixers[0].options["learn_range"]
    assert main(["lm", "convert", str(tmp_path / "ours"), str(tmp_path / "x")]) == 2
    assert "'statetrack' cannot be converted" in capsys.readouterr().err
    assert main(["lm", "convert", str(tmp_path / "ours"), str(tmp_path / "ours")]) == 2


def test_evaluate_prints_writes_and_draws(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code.txt").write_text("def f(x):\n    return x\n" * 10)
    (tmp_path / "prose.jsonl").write_text('{"text": "It was."}\n{"text": "So it is."}\n')
    command = ["lm", "evaluate", str(folder), "--bin-size", "16", "--trained", "64"]
    command += ["--data", str(tmp_path / "code.txt"), "--data", str(tmp_path / "prose.jsonl")]
    files = ["--out", str(tmp_path / "e.json"), "--plot", str(tmp_path / "p.svg")]
    assert main(command + files) == 0
    said = capsys.readouterr().out
    assert "bits/byte" in said and "code.txt" in said and "prose.jsonl" in said
    stored = json.loads((tmp_path / "e.json").read_text())
    assert stored["code.txt"]["model"]["tokens"] == 229
    assert (tmp_path / "p-code.svg").exists() and (tmp_path / "p-prose.svg").exists()


def test_generate_keeps_to_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Text.train(["0.5 and 12.25 and 3"] * 3, vocab_size=280)
    backbone = BackboneConfig(mixers=["DeltaNet"], d_model=16, mlp_dim=16)
    CausalLM(CausalLMConfig(vocab_size=len(text), backbone=backbone)).save(tmp_path)
    text.save(tmp_path / "tokenizer.json")
    words = ["lm", "generate", str(tmp_path), "--prompt", "x=", "--match", r"[0-9]+\.[0-9]"]
    assert main([*words, "--max-new-tokens", "9", "--device", "cpu"]) == 0
    assert re.fullmatch(r"x=[0-9]+\.[0-9]\n", capsys.readouterr().out)
