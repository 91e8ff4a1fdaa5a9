"""Bars on a terminal, lines elsewhere."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from statetrack.runs import Record, Run
from statetrack.sweep import progress as progress_module
from statetrack.sweep.progress import Progress, Silent, Watch
from statetrack.training import run
from tests.training import tiny


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> io.StringIO:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = screen(monkeypatch, Terminal())
    with Progress() as progress:
        progress.begin([tiny.config()], tmp_path)
        run(tiny.config(), tmp_path, watcher=progress)
    assert "parity DeltaNet [-1, 1]" in shown.getvalue()
    assert "12/12" in shown.getvalue()
    assert "loss" in shown.getvalue() and "scaled accuracy" in shown.getvalue()


def test_a_terminal_shows_failures_and_counts_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = screen(monkeypatch, Terminal())
    (tmp_path / "error.txt").write_text("Traceback\nNonFiniteLoss: at step 3")
    configs = [tiny.config(seed=seed) for seed in range(3)]
    with Progress() as progress:
        progress.begin(configs, tmp_path, finished=1)
        progress(configs[1], [Record(4, "train", "loss", 0.5)])
        progress.ended(configs[1], Run(tmp_path))
    assert f"3 runs in {tmp_path}, 1 finished already" in shown.getvalue()
    assert "seed 1: failed: NonFiniteLoss: at step 3" in shown.getvalue()
    assert "2/3" in shown.getvalue()


class Clock:
    """In place of the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_where_there_is_no_terminal_or_no_rich(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One at the start, at most one in ten seconds for a run, and one at its end."""
    shown = screen(monkeypatch, Terminal() if terminal else io.StringIO())
    monkeypatch.setitem(sys.modules, "rich", None)
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    one, other = (tiny.config(seed=seed) for seed in range(2))
    with Progress() as progress:
        progress.begin([one, other], tmp_path)
        progress(one, [])
        progress.held(other)
        for step in range(1, 12):
            clock.now += 2.0
            progress(one, [Record(step, "train", "loss", 1 / step)])
            progress.held(other)
        (tmp_path / "DONE").write_text("{}")
        progress.ended(one, Run(tmp_path))
    name = "parity DeltaNet [-1, 1], lr 0.001, seed"
    assert shown.getvalue().splitlines() == [
        f"2 runs in {tmp_path}",
        f"{name} 0: starting",
        f"{name} 1: another process trains it; waiting",
        f"{name} 0: step 5 of 12, loss 0.200, about 14 seconds left",
        f"{name} 1: another process trains it; waiting",
        f"{name} 0: step 10 of 12, loss 0.100, about 4 seconds left",
        f"{name} 1: another process trains it; waiting",
        f"{name} 0: finished, loss 0.091 (1 of 2 runs)",
    ]


def test_at_its_end_a_run_is_told_by_its_last_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which were written after it was asked for the last time."""
    shown = screen(monkeypatch, io.StringIO())
    config = tiny.config()
    with Progress() as progress:
        progress.begin([config, tiny.config(seed=1)], tmp_path)
        progress(config, [Record(4, "train", "loss", 0.5)])
        rows = [Record(step, "train", "loss", 1 / step) for step in (4, 12)]
        (tmp_path / "records.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
        (tmp_path / "DONE").write_text("{}")
        progress.ended(config, Run(tmp_path))
    assert "finished, loss 0.083 (1 of 2 runs)" in shown.getvalue()


def test_a_single_run_is_named_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = screen(monkeypatch, io.StringIO())
    with Progress() as progress:
        progress.begin([tiny.config()], tmp_path)
        progress.begin([tiny.config()], tmp_path, finished=1)
    what = "parity DeltaNet [-1, 1], lr 0.001, seed 0: 12 steps of 4 sequences (lengths 3 to 8), "
    what += f"validated every 4 steps, in {tmp_path}"
    assert shown.getvalue() == f"{what}\n{what}, finished already\n"


def test_windows_are_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown = screen(monkeypatch, io.StringIO())
    with Progress() as progress:
        progress.begin([tiny.config(window=4)], tmp_path)
    assert "4 sequences (lengths 3 to 8, in windows of 4), validated" in shown.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_single_run_soon_says_how_long(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Counted from the first report on, before which everything is compiled and loaded."""
    shown = screen(monkeypatch, Terminal() if terminal else io.StringIO())
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    config = tiny.config(steps=1000)
    with Progress() as progress:
        progress.begin([config], tmp_path)
        for wait, step in ((60.0, 10), (2.0, 20), (2.0, 30)):
            clock.now += wait
            progress(config, [Record(step, "train", "loss", 1.0)])
    assert shown.getvalue().count("about 3 minutes, by the first 20 steps") == 1


@pytest.mark.parametrize("watch", [Progress, Silent])
def test_both_are_a_watch(watch: Any) -> None:
    assert isinstance(watch(), Watch)
