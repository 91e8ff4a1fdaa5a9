"""Bars on a terminal, silence elsewhere."""

import io
import sys
from typing import Any

import pytest

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
