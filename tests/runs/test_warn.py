"""One line, wherever stderr leads."""

import pytest

from statetrack.runs.warn import warn


def test_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    warn("a file is\n\tdamaged: a  b\n")
    assert capsys.readouterr() == ("", "statetrack: a file is damaged: a  b\n")
