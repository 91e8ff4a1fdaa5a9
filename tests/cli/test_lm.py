"""The commands about language models."""

import io
import json
import re
import shutil
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
    one = ("evaluate", str(folder))
    refused("does not exist", *one, "--data", str(tmp_path / "none"))
    refused("give text with --data, or tasks with --tasks", *one)
    refused("--plot needs --data", *one, "--tasks", "state_swaps", "--plot", "p.png")
    refused("--limit needs --tasks", *one, "--data", str(tmp_path), "--limit", "3")
    refused("--task-data needs --tasks", *one, "--data", str(tmp_path), "--task-data", "x")
    refused("--trained needs --plot", *one, "--data", str(tmp_path), "--trained", "64")
    refused("--alphabet is that of --match", "generate", str(folder), "--alphabet", "ab")
    missing = str(tmp_path / "none" / "e.json")
    refused("there is no folder", *one, "--tasks", "state_swaps", "--out", missing)
    refused("'piqua' is unknown; did you mean 'piqa'?", *one, "--tasks", "piqua")
    refused("a line with text, value: give its folder", *one, "--tasks", "fda")
    wanted = f"needs the file {tmp_path / 'fda.jsonl'}, one JSON object a line with text, value"
    refused(wanted, *one, "--tasks", "fda", "--task-data", str(tmp_path))
    (tmp_path / "short.txt").write_text("a")
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    refused("latin.txt is not text in UTF-8", *one, "--data", str(tmp_path / "latin.txt"))
    assert main(["lm", *one, "--data", str(tmp_path / "short.txt")]) == 2
    assert "short.txt has no text of two tokens" in capsys.readouterr().err


def spoil(folder: Path, what: str) -> None:
    """Makes the model in `folder` one that cannot be read."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    if what == "empty folder":
        for path in folder.iterdir():
            path.unlink()
    elif what == "another library":
        config.write_text('{"model_type": "olmo_hybrid"}')
    elif what == "another file":
        config.write_text('["a list"]')
    elif what == "damaged config":
        config.write_text(config.read_text()[:-20])
    elif what == "unknown layer":
        config.write_text(config.read_text().replace('"DeltaNet"', '"DeltaNett"'))
    elif what == "no weights":
        weights.unlink()
    elif what == "a pickle":
        weights.rename(folder / "pytorch_model.bin")
    elif what == "damaged weights":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif what == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    elif what == "damaged tokenizer":
        (folder / "tokenizer.json").write_text("{}")
    elif what == "another tokenizer":
        Text.train(["a few words"], 300).save(folder / "tokenizer.json")
    else:
        where = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
        if what == "damaged index":
            where = {}
        index = {"weight_map": where} if where else {"weights": 3}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        weights.rename(folder / "model-1.safetensors")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("empty folder", "is not a language model: it has no config.json"),
        ("another library", "another library (olmo_hybrid); `statetrack lm convert`"),
        ("another file", "does not describe a language model"),
        ("damaged config", "config.json is not JSON"),
        ("unknown layer", "did you mean 'DeltaNet'?"),
        ("no weights", "has no weights: neither model.safetensors nor"),
        ("a pickle", "pytorch_model.bin is a pickle"),
        ("damaged weights", "is not a whole safetensors file"),
        ("missing piece", "1 of 2 files of weights are missing, the first is model-2.safetensors"),
        ("damaged index", "is not an index of weights"),
        ("no tokenizer", "has no tokenizer.json"),
        ("damaged tokenizer", "tokenizer.json is not a tokenizer"),
        ("another tokenizer", "has tokens up to 264 and the model knows 0 to 255"),
    ],
)
def test_folders_that_are_no_model(
    folder: Path, capsys: pytest.CaptureFixture[str], what: str, words: str
) -> None:
    spoil(folder, what)
    for command in (
        ["generate", str(folder), "--prompt", "a"],
        ["evaluate", str(folder), "--tasks", "state_swaps"],
    ):
        assert main(["lm", *command]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1


def test_folders_that_cannot_be_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"

    def refused(words: str) -> None:
        assert main(["lm", "convert", str(theirs), str(tmp_path / "ours")]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1
        assert not (tmp_path / "ours").exists()

    refused("is not a model: it has no config.json")
    theirs.mkdir()
    (theirs / "config.json").write_text('{"model_type": "mamba"')
    refused("config.json is not JSON")
    (theirs / "config.json").write_text('{"model_type": "mamba"}')
    refused("has no weights")
    (theirs / "pytorch_model.bin").write_bytes(b"")
    refused("is a pickle")
    (theirs / "model.safetensors").write_bytes(b"not this")
    refused("not a whole safetensors file")


def test_a_prompt_longer_than_the_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Attention sees the last tokens, the other layers all: it goes on, and says so."""
    mixers = ["DeltaNet", ("Attention", {"window": 4})]
    backbone = BackboneConfig(mixers=mixers, d_model=16, mlp_dim=16)
    CausalLM(CausalLMConfig(vocab_size=256, backbone=backbone)).save(tmp_path)
    Text.of_bytes().save(tmp_path / "tokenizer.json")
    command = ["lm", "generate", str(tmp_path), "--max-new-tokens", "2", "--prompt"]
    assert main([*command, "abcd"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*command, "abcde"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("abcde")
    assert "5 tokens: 1 of 2 layers attend to the last 4; the other layers read all" in said.err


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
    assert stored["texts"]["code.txt"]["model"]["tokens"] == 229
    assert {"torch", "tokenizers", "lm_eval"} <= stored["environment"]["versions"].keys()
    assert (tmp_path / "p-code.svg").exists() and (tmp_path / "p-prose.svg").exists()


def test_evaluate_in_tasks(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "piqa.jsonl").write_text(
        '{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}\n' * 3
    )
    (tmp_path / "lambada.jsonl").write_text('{"text": "a b c"}\n' * 3)
    (tmp_path / "fda.jsonl").write_text('{"text": "a: 1\\na:", "value": "1"}\n' * 3)
    (tmp_path / "wikitext.jsonl").write_text('{"page": "It was ."}\n' * 3)
    command = ["lm", "evaluate", str(folder), "--task-data", str(tmp_path), "--limit", "2"]
    command += ["--tasks", "piqa,lambada,fda", "--tasks", "wikitext"]
    assert main([*command, "--out", str(tmp_path / "e.json")]) == 0
    said = capsys.readouterr()
    assert "model in piqa" in said.err and "4 of 4" in said.err
    for metric in ("acc_norm", "perplexity", "contains", "bits_per_byte"):
        assert metric in said.out
    stored = json.loads((tmp_path / "e.json").read_text())
    assert list(stored["tasks"]) == ["piqa", "lambada", "fda", "wikitext"]
    assert stored["tasks"]["piqa"]["model"]["examples"] == 2
    assert stored["environment"]["versions"]["lm_eval"].startswith("0.4")


def test_models_and_texts_of_the_same_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other" / "model"
    shutil.copytree(folder, other)
    (tmp_path / "a.txt").write_text("some text")
    command = ["lm", "evaluate", str(folder), str(other), "--data", str(tmp_path / "a.txt")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert str(folder) in said and str(other) in said


def test_generate_keeps_to_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Text.train(["0.5 and 12.25 and 3"] * 3, vocab_size=280)
    backbone = BackboneConfig(mixers=["DeltaNet"], d_model=16, mlp_dim=16)
    CausalLM(CausalLMConfig(vocab_size=len(text), backbone=backbone)).save(tmp_path)
    text.save(tmp_path / "tokenizer.json")
    words = ["lm", "generate", str(tmp_path), "--prompt", "x=", "--match", r"[0-9]+\.[0-9]"]
    assert main([*words, "--max-new-tokens", "9", "--device", "cpu"]) == 0
    assert re.fullmatch(r"x=[0-9]+\.[0-9]\n", capsys.readouterr().out)


def test_audit_tells_of_heads(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("f(x) = [1, 2, 3]\n" * 40)
    command = ["audit", str(folder), "--data", str(tmp_path / "mine.txt"), "--device", "cpu"]
    assert main([*command, "--plot", str(tmp_path / "heads.png")]) == 0
    out = capsys.readouterr().out
    assert "model, on 680 tokens of mine.txt" in out and "opening bracket" in out
    found = json.loads((folder / "heads.json").read_text())
    assert [(one["layer"], one["head"]) for one in found["heads"]] == [(1, i) for i in range(4)]
    assert found["settings"]["data"] == [str(tmp_path / "mine.txt")]
    most = max(one["below_0"] for one in found["heads"])
    rows = out.partition("Heads that are below 0 most often:")[2].splitlines()[3:7]
    assert [row.split()[0] for row in rows] == ["1"] * 4 and f"{most:.1%}" in rows[0]
    assert (tmp_path / "heads.png").stat().st_size > 1000
    assert main(command[:2]) == 2
    assert "has no held-out text of its own: give text with --data" in capsys.readouterr().err


def test_audit_of_attention_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backbone = BackboneConfig(mixers=["Attention"], d_model=16, mlp_dim=16)
    CausalLM(CausalLMConfig(vocab_size=256, backbone=backbone)).save(tmp_path / "model")
    Text.of_bytes().save(tmp_path / "model" / "tokenizer.json")
    (tmp_path / "mine.txt").write_text("a few words")
    command = ["audit", str(tmp_path / "model"), "--data", str(tmp_path / "mine.txt")]
    assert main([*command, "--plot", str(tmp_path / "heads.png")]) == 0
    out = capsys.readouterr().out
    assert "no layer of it has eigenvalues" in out and "No picture" in out
