"""`lm tokenize` and `lm pretrain`: from text to a model that writes, and mistakes in one line."""

import json
import signal
from pathlib import Path

import pytest

from statetrack.cli.app import main
from statetrack.lm import PretrainConfig
from statetrack.runs import Record, Run
from statetrack.sweep import Progress, progress
from tests.lm import corpus

SMALL = "--width 8 --layers 1 --option num_heads=2 --batch 4 --length 32 --precision fp32"


def words(text: str) -> list[str]:
    return text.split()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    corpus.write_text(folder / "text")
    command = f"lm tokenize {folder / 'text'} --by-folder --out {folder / 'shards'} "
    command += "--vocab-size 300 --hold-out */project2/* --workers 0"
    assert main(words(command)) == 0
    return folder / "shards"


def test_from_text_to_text(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"lm pretrain {shards} {SMALL} --steps 4 --log-every 2 --eval-every 4 --seed 3"
    command += f" --eval-windows 2 --checkpoint-every 2 --lr 0.01 --out {tmp_path} --device cpu"
    assert main(words(command)) == 0
    said = capsys.readouterr()
    assert "validation  loss" in said.out and "tokens/s, MFU" in said.out
    assert "4 steps of 4 sequences (length 32)" in said.err
    (folder,) = (p for p in tmp_path.iterdir() if (p / "DONE").exists())
    config = Run(folder).config
    assert (config.seed, config.data_seed, config.optimizer.lr) == (3, 3, 0.01)
    assert config.model.backbone.d_model == 8 and config.model.backbone.num_layers == 1
    assert main(words(command)) == 0  # finished: nothing is trained again
    more = ["lm", "generate", str(folder), "--prompt", "the", "--max-new-tokens", "3"]
    assert main([*more, "--device", "cpu"]) == 0
    assert "the" in capsys.readouterr().out
    for place in (folder, tmp_path):  # its held-out text, and the run found in its folder
        assert main(["audit", str(place), "--device", "cpu"]) == 0
        said = capsys.readouterr().out
        assert "shards DeltaNet [-1, 1], seed 3, on " in said and "tokens of code" in said
        assert f"Heads: {folder / 'heads.json'}" in said
    shards.rename(tmp_path / "moved")
    assert main(["audit", str(folder), "--device", "cpu"]) == 2
    assert "has no held-out text of its own" in capsys.readouterr().err
    (tmp_path / "moved").rename(shards)
    for command in ("certify", "polish"):
        where = ["--out", str(tmp_path / "out")] if command == "polish" else []
        assert main([command, str(folder), "--against", "parity", *where]) == 2
        assert "is a run of the kind 'lm', which learns no task" in capsys.readouterr().err


def test_ctrl_c_saves_and_says_where(
    shards: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Press(Progress):
        """Presses Ctrl-C after the first report."""

        def __call__(self, config: PretrainConfig, rows: list[Record]) -> None:
            if rows:
                signal.raise_signal(signal.SIGINT)

    command = f"lm pretrain {shards} {SMALL} --steps 8 --log-every 2 --eval-every 8 --device cpu"
    with monkeypatch.context() as patched:
        patched.setattr(progress, "Progress", Press)
        assert main(words(f"{command} --out {tmp_path}")) == 130
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == "statetrack: stopped; saved at step 2 of 8, where the same command goes on"
    assert main(words(f"{command} --out {tmp_path}")) == 0


def test_nothing_to_validate_on_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus.write_text(tmp_path / "text")
    folder = tmp_path / "shards"
    command = f"lm tokenize {tmp_path / 'text'} --out {folder} --tokenizer bytes --workers 0"
    assert main(words(command)) == 0
    assert "no text is held out for validation: --hold-out" in capsys.readouterr().err
    command = f"lm pretrain {folder} {SMALL} --steps 2 --log-every 1 --eval-every 1 --device cpu"
    assert main(words(f"{command} --out {tmp_path}")) == 0
    said = capsys.readouterr()
    assert "validation  loss" not in said.out
    assert "(length 32), with no text held out to validate it on, in " in said.err


def test_a_config_of_another_run(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = SMALL.replace("--precision fp32", "--precision bf16 --residual-precision bf16")
    command = f"lm pretrain {shards} {small} --steps 2 --mixture code=3 --mixture prose=1"
    command += " --optimizer muon --schedule wsd --documents packed --z-loss 1e-4 --recompute"
    assert main(words(f"{command} --show-config")) == 0
    shown = capsys.readouterr().out
    found = json.loads(shown)["config"]
    assert found["mixture"] == {"code": 3.0, "prose": 1.0} and found["recompute"]
    assert found["precision"] == found["residual_precision"] == "bf16"
    assert found["optimizer"]["kind"] == "muon" and found["schedule"]["shape"] == "wsd"
    path = tmp_path / "config.json"
    path.write_text(shown)
    assert main(words(f"lm pretrain --config {path} --show-config")) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("lm pretrain", "give a folder of shards"),
        ("lm pretrain {tmp}", "has no manifest.json: make shards with `statetrack lm tokenize`"),
        ("lm pretrain {shards} --mixture code", "must have the form domain=share"),
        ("lm pretrain {shards} --mixture code=x", "code=x: the share must be a number"),
        ("lm pretrain {shards} --mixture code=1 --mixture code=2", "code is given twice: 1 and 2"),
        ("lm pretrain {shards} --config x --seed 3 --tied", "leave out --tied, --seed"),
        ("lm pretrain {shards} --size 61M", "size='61M' is unknown"),
        ("lm pretrain {shards} --batch 100000 --out {tmp}/runs --device cpu", "fewer than the"),
        ("lm tokenize --out {tmp}/x", "give text files"),
        ("lm tokenize x --out {tmp}/x --tokenizer bytes --vocab-size 500", "has its own tokens"),
        ("lm tokenize {tmp}/none.txt --out {tmp}/x", "does not exist"),
    ],
)
def test_mistakes_are_one_line(
    command: str, message: str, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(command.format(tmp=tmp_path, shards=shards))) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("statetrack: ") and message in said
