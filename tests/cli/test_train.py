"""One run from the command line."""

import json
import signal
from pathlib import Path

import pytest

from statetrack.cli import main
from statetrack.cli.train import (
    CHECKPOINT_EVERY,
    Data,
    Evaluation,
    Model,
    Optimiser,
    Recipe,
    run_config,
    saved_every,
)
from statetrack.experiments.chomsky import chomsky
from statetrack.experiments.recipes import tagging_run
from statetrack.runs import Record, find_runs
from statetrack.runs.folder import config_file
from statetrack.runs.identity import same_but_for
from statetrack.runs.labels import label
from statetrack.sweep import progress
from statetrack.sweep.progress import Progress
from statetrack.training import RunConfig
from tests.cli.words import SMALL, complaint
from tests.training import tiny


def test_train_writes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *SMALL, "--eigen-range", "-0.5", "1"]
    words += ["--option", "conv_size=0", "--out", str(tmp_path), "--device", "cpu"]
    assert main(words) == 0
    out = capsys.readouterr().out
    (run,) = find_runs(tmp_path)
    assert run.finished and str(run.folder) in out and "scaled accuracy" in out
    assert run.config.model.backbone.mixers[0].options["eigen_range"] == (-0.5, 1.0)
    assert run.config.model.backbone.mixers[0].options["num_heads"] == 2
    assert run.config.model.backbone.mixers[0].options["conv_size"] == 0
    # the stored config is a recipe
    again = tmp_path / "again"
    stored = str(run.folder / "config.json")
    assert main(["train", "--config", stored, "--out", str(again), "--device", "cpu"]) == 0
    (copy,) = find_runs(again)
    assert copy.config == run.config and copy.records == run.records


def test_the_papers_size_is_one_flag_away() -> None:
    """Beside what its published code does for parity: only which numbers are looked at differs."""
    paper = run_config(Recipe(model=Model(scale="paper")))
    assert paper == tagging_run(
        "parity", "DeltaNet", steps=20_000, batch=256, checkpoint_every=CHECKPOINT_EVERY
    )
    published = next(
        config
        for config in chomsky("paper", "shipped")
        if (config.task, label(config)) == ("parity", "parity DeltaNet [-1, 1]")
    )
    assert same_but_for(paper, ("precision", "evaluation")) == same_but_for(
        published, ("precision", "evaluation")
    )


def test_by_default_a_run_is_small() -> None:
    """A thirtieth of the paper's floating-point operations, or less."""
    quick, paper = (run_config(Recipe(model=Model(scale=scale))) for scale in ("quick", "paper"))
    assert run_config(Recipe()) == quick

    def work(config: RunConfig) -> int:
        return config.steps * config.batch * sum(p.numel() for p in config.build().parameters())

    assert 30 * work(quick) < work(paper)


def test_checkpoints_are_as_often_as_asked_for(tmp_path: Path) -> None:
    config = run_config(Recipe(evaluation=Evaluation(eval_every=70)))
    assert (config.log_every, config.checkpoint_every) == (10, 500)
    often = saved_every(config, 21)
    assert (often.log_every, often.checkpoint_every) == (7, 21)
    assert often.fingerprint == config.fingerprint
    with pytest.raises(ValueError, match="checkpoint_every=0 must be at least 1"):
        saved_every(config, 0)


def test_ctrl_c_saves_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = " ".join(SMALL).replace("--steps 4", "--steps 12").split()
    words = ["train", *longer, "--out", str(tmp_path), "--device", "cpu"]

    class Press(Progress):
        """Presses Ctrl-C, so many times, after the first report."""

        times = 1

        def __call__(self, config: RunConfig, rows: list[Record]) -> None:
            for _ in range(self.times if rows else 0):
                signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(progress, "Progress", Press)
        assert main(words) == 130
        _, wait, stopped = capsys.readouterr().err.splitlines()
        assert "a checkpoint is saved at the next report" in wait
        assert stopped == (
            "statetrack: stopped; saved at step 4 of 12, where the same command goes on"
        )
        Press.times = 2  # at once, before anything new is saved
        assert main([*words, "--seed", "1"]) == 130
        told = capsys.readouterr().err.splitlines()[-1]
        assert told == (
            "statetrack: stopped before the first checkpoint; the same command starts anew"
        )
    assert main(words) == 0
    finished = next(run for run in find_runs(tmp_path) if run.finished)
    assert finished.info["resumed_at"] == 4
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().err.endswith(f"in {tmp_path}, finished already\n")


def test_every_option_reaches_the_config() -> None:
    recipe = Recipe(
        model=Model(
            model="mlstm", eigen_range=(-1.0, 1.0), option=("num_heads=2",), width=32, layers=3
        ),
        data=Data(task="s3", lengths=(5, 5), seed=7),
        optimiser=Optimiser(
            steps=11,
            batch=13,
            lr=0.1,
            warmup=0.2,
            weight_decay=0.3,
            clip_norm=2.0,
            precision="bf16",
        ),
        evaluation=Evaluation(eval_every=20, eval_size=9, eval_lengths=(8, 8), stop_at=0.5),
    )
    config = run_config(recipe)
    assert (
        config.model.backbone.mixers[0].layer,
        config.model.backbone.d_model,
        config.model.backbone.num_layers,
    ) == ("MLSTM", 32, 3)
    assert config.model.backbone.mixers[0].options["eigen_range"] == (-1.0, 1.0)
    assert config.model.backbone.mixers[0].options["num_heads"] == 2
    assert (config.task, config.lengths, config.seed, config.data_seed) == ("s3", (5, 5), 7, 7)
    assert (config.steps, config.batch, config.precision) == (11, 13, "bf16")
    assert (config.optimizer.lr, config.schedule.warmup) == (0.1, 0.2)
    assert (config.optimizer.weight_decay, config.optimizer.clip_norm) == (0.3, 2.0)
    assert config.optimizer.decay == "matrices"
    assert (config.evaluation.every, config.evaluation.size) == (20, 9)
    assert (config.evaluation.lengths, config.stop_at) == ((8, 8), 0.5)
    assert (config.log_every, config.checkpoint_every) == (10, 500)


def test_a_config_with_an_unknown_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    content = config_file(tiny.config())
    content["config"]["stepz"] = 3
    path.write_text(json.dumps(content))
    assert "did you mean 'steps'" in complaint(["train", "--config", str(path)], capsys)


WHOLE = config_file(tiny.config())
ODD = ["", "{", "\x00"] + [
    json.dumps({**WHOLE, "config": WHOLE["config"] | change})
    for change in ({"task": 3}, {"model": None})
]


@pytest.mark.parametrize("text", ODD, ids=["empty", "cut", "binary", "task", "model"])
def test_a_file_that_is_no_config_is_named(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    assert str(path) in complaint(["train", "--config", str(path), "--device", "cpu"], capsys)


def test_a_diverging_run_is_a_failure_and_no_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *SMALL, "--out", str(tmp_path), "--device", "cpu"]
    assert main([*words, "--lr", "1e30", "--warmup", "0"]) == 1
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("statetrack: ") and "became" in error and "at step" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--start", "nowhere"], "--start nowhere is not the folder of a run"),
        (["--start", "nowhere", "--width", "8"], "brings its own model: leave out --model"),
    ],
)
def test_a_start_that_does_not_fit_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err
