"""What runs say while they train: bars on a terminal, plain lines where there is none."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

from statetrack.runs.errors import reason_of
from statetrack.runs.folder import Run
from statetrack.runs.labels import label
from statetrack.runs.records import Record

__all__ = ["Progress", "Silent", "Watch", "duration"]

LINE_S = 10.0
"""Where there is no terminal: the least time between two lines about one run."""


@runtime_checkable
class Watch(Protocol):
    """Hears of all that happens in a sweep; `Progress` is one."""

    def begin(self, configs: Sequence[Any], root: Path, *, finished: int = 0) -> None:
        """These are to be trained in `root`; so many of them are finished already."""
        ...

    def __call__(self, config: Any, rows: list[Record]) -> None:
        """A run trains and has reported `rows`, none of them if it has only begun."""
        ...

    def held(self, config: Any) -> None:
        """A run waits for another process, which is training it."""
        ...

    def ended(self, config: Any, run: Run) -> None:
        """A run has finished or failed."""
        ...


class Silent:
    """A `Watch` that tells nobody."""

    def begin(self, configs: Sequence[Any], root: Path, *, finished: int = 0) -> None:
        pass

    def __call__(self, config: Any, rows: list[Record]) -> None:
        pass

    def held(self, config: Any) -> None:
        pass

    def ended(self, config: Any, run: Run) -> None:
        pass


class Progress:
    """Tells standard error about runs: a line at the start, then bars, or lines without a terminal.

    with Progress() as progress:
        progress.begin([config], Path("runs"))
        run(config, "runs", watcher=progress)

    `run_many` calls `begin` itself.
    """

    def __init__(self) -> None:
        self._bars: Any = _make_bars() if sys.stderr.isatty() else None
        self._tasks: dict[str, Any] = {}
        self._all: Any = None
        self._total = self._over = 0
        self._seen: dict[str, dict[str, float]] = {}
        self._said: dict[str, float] = {}
        self._estimated: set[str] = set()
        self._first: dict[str, tuple[float, int]] = {}  # when the first report came, and its step

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

    def begin(self, configs: Sequence[Any], root: Path, *, finished: int = 0) -> None:
        """Says what is to be done."""
        self._total, self._over = len(configs), finished
        if len(configs) == 1:
            what, over = _described(configs[0]), "finished already"
        else:
            what, over = f"{len(configs)} runs", f"{finished} finished already"
        self._print(f"{what} in {root}" + (f", {over}" if finished else ""))
        if self._bars is not None and len(configs) > 1:
            self._all = self._bars.add_task(
                "all runs", total=len(configs), completed=finished, note=""
            )

    def __call__(self, config: Any, rows: list[Record]) -> None:
        """Says where `config` is; without rows it has only begun."""
        key = config.fingerprint
        is_first = key not in self._seen
        if not rows:
            if is_first:
                self._show(config, "starting")
            return
        seen = self._seen.setdefault(key, {})
        seen.update(_values(rows))
        step, note = rows[-1].step, _note(seen)
        if is_first:  # speed is counted from the first report, not from compiling
            self._first[key] = time.monotonic(), step
            if key in self._tasks:
                self._bars.reset(self._tasks[key])
        elif (left := self._time_left(config, step)) is not None:
            if self._total == 1 and key not in self._estimated:
                self._estimated.add(key)
                self._print(f"about {duration(left)}, by the first {step} steps")
            elif self._bars is None:
                note += f", about {duration(left)} left"
        self._show(config, note, step=step)

    def held(self, config: Any) -> None:
        """Says, once in a while, that the run is another's."""
        self._show(config, "another process trains it; waiting")

    def ended(self, config: Any, run: Run) -> None:
        """Counts the run, says how it ended, and takes its bar away."""
        self._over += 1
        reason = reason_of(run.error or "it was interrupted")
        how = "finished" if run.finished else f"failed: {reason}"
        seen = self._seen.get(config.fingerprint, {})
        if run.finished:
            seen = seen | _values(run.records)  # its last rows came since it was asked
        note = _note(seen)
        if self._bars is None or not run.finished:
            text = f"{_named(config)}: {how}" + (f", {note}" if run.finished and note else "")
            self._print(
                text + (f" ({self._over} of {self._total} runs)" if self._total > 1 else "")
            )
        task = self._tasks.pop(config.fingerprint, None)
        if self._all is not None:
            self._bars.advance(self._all)
            if task is not None:
                self._bars.remove_task(task)

    def _time_left(self, config: Any, step: int) -> float | None:
        """In seconds, by the speed since the first report; None at the end."""
        since, from_step = self._first[config.fingerprint]
        if not from_step < step < config.steps:
            return None
        return (config.steps - step) * (time.monotonic() - since) / (step - from_step)

    def _show(self, config: Any, note: str, step: int = 0) -> None:
        key = config.fingerprint
        if self._bars is not None:
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task(label(config), total=config.steps, note=note)
            self._bars.update(self._tasks[key], completed=step, note=note)
        elif time.monotonic() - self._said.get(key, -LINE_S) >= LINE_S:
            self._said[key] = time.monotonic()
            at = f"step {step} of {config.steps}, " if step else ""
            self._print(f"{_named(config)}: {at}{note}")

    def _print(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)


def _named(config: Any) -> str:
    """A run, told from the others of its sweep."""
    return f"{label(config)}, lr {config.optimizer.lr:g}, seed {config.seed}"


def _described(config: Any) -> str:
    """What is to happen, for whoever has just started it."""
    low, high = config.train_lengths
    lengths = f"length {low}" if low == high else f"lengths {low} to {high}"
    if config.window is not None:
        lengths += f", in windows of {config.window}"
    often = f"validated every {config.evaluation.every} steps,"
    if not config.validates:
        often = "with no text held out to validate it on,"
    return (
        f"{_named(config)}: {config.steps} steps of {config.batch} sequences ({lengths}), {often}"
    )


def duration(seconds: float) -> str:
    """As one would say it.

    >>> duration(7.3), duration(89.0), duration(100.0), duration(5400.0)
    ('7 seconds', '89 seconds', '2 minutes', '90 minutes')
    >>> duration(9000.0), duration(0.2)
    ('2.5 hours', '1 second')
    """
    if seconds < 90:
        count = max(1, round(seconds))
        return f"{count} second" + ("" if count == 1 else "s")
    return f"{round(seconds / 60)} minutes" if seconds < 7200 else f"{seconds / 3600:.2g} hours"


def _values(rows: Sequence[Record]) -> dict[str, float]:
    """The last value of each metric, by split and name."""
    return {f"{row.split} {row.metric}": row.value for row in rows if row.overall}


def _note(seen: dict[str, float]) -> str:
    parts = []
    if "train loss" in seen:
        parts.append(f"loss {seen['train loss']:.3f}")
    for name in ("validation sequence_accuracy", "validation scaled_accuracy"):
        if name in seen:
            parts.append(f"{name.split()[1].replace('_', ' ')} {seen[name]:.3f}")
            break
    if "validation loss" in seen and "machine tokens_per_s" in seen:
        parts.append(f"validation loss {seen['validation loss']:.3f}")
    if "machine tokens_per_s" in seen:
        parts.append(f"{seen['machine tokens_per_s']:,.0f} tokens/s")
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
        progress.SpinnerColumn("line"),  # it lives, though the first report takes a while
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        Speed(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        speed_estimate_period=60.0,
    )
