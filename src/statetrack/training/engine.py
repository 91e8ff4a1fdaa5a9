"""The engine: schedule, reports, evaluation, stopping and records, over any executor."""

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from statetrack._amx import avoid_amx_trap
from statetrack.runs.records import Record
from statetrack.training.eager import Eager
from statetrack.training.executor import Executor, Stretch
from statetrack.training.stacked import Stacked, can_stack, stacks
from statetrack.training.start import expect_fit, started
from statetrack.training.windowed import Windowed

__all__ = ["EXECUTORS", "Engine", "NonFiniteLoss", "train"]

EXECUTORS = {"lm": "statetrack.lm.pretrainer:Pretrainer"}
"""Kind of run -> what trains it; taggers have two, see `Engine`."""


class NonFiniteLoss(RuntimeError):
    """The loss became infinite or NaN; the message has the step and the likely cause."""


class Engine:
    """Runs in memory. Iterating trains, and yields the new rows of every run by its index.

    Between two yields all runs that still train rest at step `step`, which is where `state` and
    `restore` cut: a run restored from the state of another goes on exactly as that one would have,
    whatever executor it was begun with. A run ends at the last step, when it is solved
    (`solved[r]`), or when its loss or gradient is not finite (`failed[r]`); the others go on.

    On a CPU one tagger trains eagerly; several, and every one on a GPU, train stacked if they can.
    One that reads windows trains alone.
    Runs of another kind have one executor. `starts` has the weights of each run whose config does
    not draw them (`RunConfig.start`).
    """

    def __init__(
        self,
        configs: Sequence[Any],
        *,
        device: torch.device | str = "cpu",
        executor: type[Executor] | None = None,
        starts: Sequence[Mapping[str, Tensor] | None] | None = None,
    ) -> None:
        avoid_amx_trap()
        if len(stacks(configs, most=len(configs))) != 1:
            raise ValueError(
                "runs trained together must agree in everything but seed, data_seed, stop_at and "
                "optimizer.lr, weight_decay and clip_norm"
            )
        self.configs = tuple(configs)
        self.device = torch.device(device)
        self.config = self.configs[0]
        self.step = 0
        self.solved = [False] * len(self.configs)
        self.failed: list[NonFiniteLoss | None] = [None] * len(self.configs)
        executor = executor or self._usual_executor()
        if self.config.window is not None and not issubclass(executor, Windowed):
            raise ValueError(f"{executor.__name__} reads sequences whole: leave out window")
        self.executor: Executor = executor(self.configs, self.device)
        for run, weights in enumerate(starts or [None] * len(self.configs)):
            self._begin(run, weights)

    def _usual_executor(self) -> type[Executor]:
        if self.config.KIND in EXECUTORS:
            module, _, name = EXECUTORS[self.config.KIND].partition(":")
            found: type[Executor] = getattr(import_module(module), name)
            return found
        if self.config.window is not None:
            return Windowed
        alone = len(self.configs) == 1 and self.device.type == "cpu"
        return Eager if alone or not can_stack(self.config) else Stacked

    def _begin(self, run: int, weights: Mapping[str, Tensor] | None) -> None:
        """Puts given weights in place of the drawn ones, which is a state at step 0."""
        config = self.configs[run]
        if weights is None:
            if config.parent is not None:
                raise ValueError(
                    f"the config starts from run {config.parent}: train it with `run`, in the "
                    "folder that has that one"
                )
            if config.start is not None:
                raise ValueError("the config starts from given weights; give them as well")
            return
        expect_fit(config, weights)
        tensors = {"stream": self.executor.state(run)["stream"]}
        for name, value in weights.items():
            tensors[f"model.{name}"] = value
            tensors[f"optimizer.step.{name}"] = torch.tensor(0.0)
            for moment in ("exp_avg", "exp_avg_sq"):
                tensors[f"optimizer.{moment}.{name}"] = torch.zeros_like(value)
        self.executor.restore(run, tensors, 0)

    @property
    def active(self) -> list[int]:
        """The runs that still train."""
        if self.step >= self.config.steps:
            return []
        ended = zip(self.solved, self.failed, strict=True)
        return [r for r, (solved, failed) in enumerate(ended) if not solved and failed is None]

    def __iter__(self) -> Iterator[dict[int, list[Record]]]:
        while self.active:
            yield self._advance()

    def _advance(self) -> dict[int, list[Record]]:
        """Trains up to the next step that reports, evaluates if that is due, returns the rows."""
        config, active = self.config, self.active
        until = min(config.steps, (self.step // config.log_every + 1) * config.log_every)
        stretch = self.executor.step(self.step, until - self.step)
        self.step = until
        rows = {}
        for r in active:
            losses, norm = stretch.losses[r], stretch.grad_norm[r]
            self.failed[r] = self._non_finite(self.configs[r], losses, norm)
            if self.failed[r] is None:
                rows[r] = self._training_rows(r, stretch)
        due = self.step % config.evaluation.every == 0 or self.step == config.steps
        if rows and due:
            self._evaluate(rows)
        self.executor.keep_only(self.active)
        return rows

    def _training_rows(self, run: int, stretch: Stretch) -> list[Record]:
        own, losses = self.configs[run], stretch.losses[run]
        rate = own.optimizer.lr * own.schedule.factor(self.step - 1, own.steps)
        rows = [Record(self.step, "train", "loss", math.fsum(losses) / len(losses))]
        if stretch.accuracy is not None:
            rows.append(Record(self.step, "train", "accuracy", stretch.accuracy[run]))
        return [
            *rows,
            Record(self.step, "train", "lr", rate),
            Record(self.step, "train", "grad_norm", stretch.grad_norm[run]),
            *stretch.rows.get(run, ()),
        ]

    def _evaluate(self, rows: dict[int, list[Record]]) -> None:
        """Adds validation rows; for a run that ends here also the test set, by every length."""
        judged = self.executor.judge("validation")
        for r in rows if judged else ():
            goal = self.configs[r].stop_at
            self.solved[r] = goal is not None and judged[r].reaches(goal)
        ended = [r for r in rows if r not in self.active]
        for r in rows if judged else ():
            rows[r] += judged[r].records(self.step, every_length=r in ended)
        if ended:
            tested = self.executor.judge("test")
            for r in ended if tested else ():
                rows[r] += tested[r].records(self.step, every_length=True)

    def _non_finite(
        self, config: Any, losses: list[float], last_norm: float
    ) -> NonFiniteLoss | None:
        """The error of a run whose last losses, or whose gradient at the end, are not finite."""
        values = [("loss", loss) for loss in losses] + [("gradient", last_norm)]
        bad = next((i for i, (_, value) in enumerate(values) if not math.isfinite(value)), None)
        if bad is None:
            return None
        what, value = values[bad]
        at = self.step - len(losses) + min(bad, len(losses) - 1)
        lr = config.optimizer.lr * config.schedule.factor(at, config.steps)
        data = self.executor.data_of(at)
        return NonFiniteLoss(
            f"the {what} became {value} at step {at} (learning rate {lr:.3g}); "
            + _likely_cause(losses[:bad], config)
            + (f". The step read {data}" if data else "")
        )

    def state(self, run: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything the next step of one run depends on: tensors by name, and the position."""
        position = {"step": self.step, "solved": self.solved[run], "device": self.device.type}
        return self.executor.state(run), position

    def restore(self, run: int, tensors: dict[str, Tensor], position: dict[str, Any]) -> None:
        """The inverse of `state`, which gave `tensors` and `position`.

        All runs must be brought to the same step.
        """
        if position["device"] != self.device.type:
            raise ValueError(
                f"the run was started on {position['device']} and cannot go on, with the same "
                f"numbers, on {self.device.type}; give device={position['device']!r}"
            )
        self.executor.restore(run, tensors, position["step"])
        self.step, self.solved[run] = position["step"], position["solved"]


def train(
    config: Any,
    *,
    device: torch.device | str = "cpu",
    start: Mapping[str, Tensor] | None = None,
) -> Iterator[Record]:
    """Trains, and yields every record as it comes; nothing is written to disk.

    `start` are weights to start from, as `model.state_dict()` has them.

    >>> from statetrack.models import paper_config
    >>> from statetrack.training import RunConfig
    >>> model = paper_config("Diagonal", vocab_size=3, d_model=4)
    >>> config = RunConfig(task="parity", model=model, steps=2, batch=2, log_every=1)
    >>> [record.metric for record in train(config)][:2]
    ['loss', 'accuracy']
    """
    config = started(config, start)
    engine = Engine([config], device=device, starts=[start])
    for rows in engine:
        yield from rows.get(0, ())
    if engine.failed[0] is not None:
        raise engine.failed[0]


def _likely_cause(before: list[float], config: Any) -> str:
    """A guess from the losses of the last steps, in words."""
    if len(before) >= 2 and before[-1] > 2 * min(before):
        clip = "" if config.optimizer.clip_norm else " or optimizer.clip_norm=1.0"
        return (
            f"the loss had grown from {min(before):.3g} to {before[-1]:.3g} within {len(before)} "
            f"steps, so the learning rate is likely too high: try a smaller optimizer.lr{clip}"
        )
    if not before:
        return "there was no finite loss since the last report: the weights likely already overflow"
    if config.precision == "bf16":
        return f"the loss was {before[-1]:.3g} just before, so bf16 likely overflows: try fp32"
    return (
        f"the loss was {before[-1]:.3g} just before, so one gradient was likely huge or the state "
        "overflowed: try optimizer.clip_norm=1.0, or a layer whose eigenvalues stay within [-1, 1]"
    )
