"""Bars on a terminal, silence elsewhere; mirrors that say what they need."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from statetrack.runs import Record
from statetrack.runs.labels import label
from statetrack.runs.mirrors import TensorBoard, WeightsAndBiases
from statetrack.sweep.progress import Progress
from statetrack.training import run
from tests.training import tiny


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_progress_only_on_a_terminal(
    stream: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    screen = stream()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as progress:
        run(tiny.config(), tmp_path, watcher=progress)
    shown = screen.getvalue()
    if stream is Terminal:
        assert "parity DeltaNet [-1, 1]" in shown
        assert "12/12" in shown
        assert "loss" in shown and "scaled accuracy" in shown
    else:
        assert shown == ""


def test_labels_tell_models_apart() -> None:
    assert label(tiny.config(model=tiny.model(eigen_range=(0.0, 1.0)))) == "parity DeltaNet [0, 1]"
    product = tiny.model("DeltaProduct", num_heads=2, num_householders=3)
    assert label(tiny.config(model=product)) == "parity DeltaProduct n=3 [-1, 1]"
    assert label(tiny.config(model=tiny.model("SLSTM", num_heads=2))) == "parity SLSTM"


def test_missing_mirrors_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"statetrack\[tensorboard\]"):
        TensorBoard("nowhere")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"statetrack\[wandb\]"):
        WeightsAndBiases(tiny.config(), project="p")


def test_mirrors_get_every_record(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[dict[str, float], int]] = []
    ended = []
    fake = SimpleNamespace(
        log=lambda rows, step: logged.append((rows, step)), finish=lambda: ended.append(1)
    )
    started: dict[str, Any] = {}

    def init(**settings: Any) -> Any:
        started.update(settings)
        return fake

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    config = tiny.config()
    finished = run(config, tmp_path, mirrors=[WeightsAndBiases(config, project="p")])
    assert started["id"] == config.fingerprint and started["config"] == config.to_dict()
    assert sum(len(rows) for rows, _ in logged) == len(finished.records)
    assert logged[-1][0]["test/accuracy"] == finished.last("accuracy", "test")
    assert [step for _, step in logged] == [2, 4, 6, 8, 10, 12]
    assert ended == [1]
    assert isinstance(finished.records[0], Record)
