"""What the tests of several commands share."""

import pytest

from statetrack.cli import main

SMALL = ["--width", "16", "--layers", "1", "--steps", "4", "--batch", "4", "--eval-size", "16"]
SMALL += ["--eval-every", "4", "--option", "num_heads=2"]
"""A model that trains in a second."""


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a mistake ends in."""
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("statetrack: ") and captured.err.count("\n") == 1
    return captured.err
