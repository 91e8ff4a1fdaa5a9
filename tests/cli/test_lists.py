"""What there is, one line each."""

import pytest

from statetrack.cli import main
from statetrack.layers import registry
from statetrack.layers.registry import LAYERS
from tests.layers.foreign import Leaky


def test_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    assert "mod_arithmetic_brackets " in capsys.readouterr().out


def test_a_layer_without_a_docstring_is_listed_too(capsys: pytest.CaptureFixture[str]) -> None:
    class Unexplained(Leaky):
        pass

    registry.register(Unexplained)
    assert main(["layers"]) == 0
    assert "Unexplained" in capsys.readouterr().out.splitlines()


def test_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(LAYERS)
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)
