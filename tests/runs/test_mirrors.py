"""Mirrors get every record, and say what they need."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from statetrack.runs import Record
from statetrack.runs.mirrors import TensorBoard, WeightsAndBiases
from statetrack.runs.records import Sink
from tests.runs.folders import Config, rows


def test_missing_mirrors_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"statetrack\[tensorboard\]"):
        TensorBoard("nowhere")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"statetrack\[wandb\]"):
        WeightsAndBiases(Config(), project="p")


def test_weights_and_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[dict[str, float], int]] = []
    started: dict[str, Any] = {}
    ended: list[int] = []
    fake = SimpleNamespace(
        log=lambda rows, step: logged.append((rows, step)), finish=lambda: ended.append(1)
    )

    def init(**settings: Any) -> Any:
        started.update(settings)
        return fake

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    mirror = WeightsAndBiases(Config(seed=3), project="p")
    assert isinstance(mirror, Sink)
    assert (started["id"], started["config"]) == (Config(seed=3).fingerprint, {"seed": 3})
    mirror.write([*rows(4), *rows(2)])
    mirror.write([Record(6, "test", "accuracy", 1.0, length=8)])
    mirror.close()
    assert logged == [
        ({"train/loss": 0.5, "train/accuracy": 0.5}, 2),
        ({"train/loss": 0.25, "train/accuracy": 0.5}, 4),
        ({"test/accuracy/length_8": 1.0}, 6),
    ]
    assert ended == [1]


def test_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            self.folder = folder

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            written.append((tag, value, step))

        def close(self) -> None:
            written.append((self.folder, 0.0, 0))

    fake = SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    mirror = TensorBoard("there")
    mirror.write(rows(2))
    mirror.close()
    assert written == [("train/loss", 0.5, 2), ("train/accuracy", 0.5, 2), ("there", 0.0, 0)]
