"""A bar per run: loss, accuracy, steps per second, time left. Quiet where there is no terminal."""

import sys
from types import TracebackType
from typing import Any

from statetrack.runs.labels import label
from statetrack.runs.records import Record
from statetrack.training.config import RunConfig

__all__ = ["Progress"]


class Progress:
    """Bars on standard error for the runs it is told of; nothing if that is not a terminal.

    with Progress() as progress:
        run(config, watcher=progress)
    """

    def __init__(self, *, total_runs: int = 1, quiet: bool | None = None) -> None:
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._last: dict[str, dict[str, float]] = {}
        self._all: Any = None
        if sys.stderr.isatty() if quiet is None else not quiet:
            self._bars = _make_bars()
        if self._bars is not None and total_runs > 1:
            self._all = self._bars.add_task("all runs", total=total_runs, note="")

    def __enter__(self) -> "Progress":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, config: RunConfig, rows: list[Record]) -> None:
        """Moves the bar of `config` to where `rows` are; without rows it has only begun."""
        if self._bars is None:
            return
        key = config.fingerprint
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(
                label(config), total=config.steps, completed=0, note="starting"
            )
        if not rows:
            return
        if key not in self._last:
            # The first report: speed is counted from here, not from compiling.
            self._bars.reset(self._tasks[key])
        seen = self._last.setdefault(key, {})
        for row in rows:
            if row.length is None:
                seen[f"{row.split} {row.metric}"] = row.value
        self._bars.update(self._tasks[key], completed=rows[-1].step, note=_note(seen))

    def finished(self, config: RunConfig) -> None:
        """Takes the bar of `config` away and counts the run."""
        if self._bars is None:
            return
        task = self._tasks.pop(config.fingerprint, None)
        if self._all is not None:
            self._bars.advance(self._all)
            if task is not None:
                self._bars.remove_task(task)


def _note(seen: dict[str, float]) -> str:
    parts = []
    if "train loss" in seen:
        parts.append(f"loss {seen['train loss']:.3f}")
    for name in ("validation sequence_accuracy", "validation scaled_accuracy"):
        if name in seen:
            parts.append(f"{name.split()[1].replace('_', ' ')} {seen[name]:.3f}")
            break
    return ", ".join(parts)


def _make_bars() -> Any:
    try:
        from rich import progress
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return None

    class Speed(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return Text("" if not task.speed else f"{task.speed:.1f}/s")

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        Speed(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        speed_estimate_period=60.0,
    )
