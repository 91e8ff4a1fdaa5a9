"""The loop: one for every model and task."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from statetrack import tasks
from statetrack._amx import avoid_amx_trap
from statetrack._typing import Float, Int
from statetrack.models import Tagger
from statetrack.runs.records import Record
from statetrack.tasks import IGNORE, Batch
from statetrack.training import evaluation
from statetrack.training.config import RunConfig
from statetrack.training.optimizer import make_optimizer
from statetrack.training.packing import narrow
from statetrack.training.precision import autocast

__all__ = ["NonFiniteLoss", "Session", "train"]


class NonFiniteLoss(RuntimeError):
    """The loss became infinite or NaN; the message has the step and the likely cause."""


class Session:
    """A run in memory. Iterating over it trains, and yields the rows that are new.

    Between two yields the session rests at step `step`, which is where `state` and `restore` cut: a
    session restored from the state of another goes on exactly as that one would have.
    """

    def __init__(self, config: RunConfig, *, device: torch.device | str = "cpu") -> None:
        avoid_amx_trap()
        self.config = config
        self.device = torch.device(device)
        self.task = tasks.get(config.task)
        assert config.evaluation.task is not None
        self.judge = tasks.get(config.evaluation.task)
        # The weights are drawn on the CPU: the same ones on every device.
        weights = torch.Generator("cpu").manual_seed(config.seed)
        self.model = Tagger(config.model, generator=weights).to(self.device)
        self.optimizer = make_optimizer(self.model, config.optimizer)
        self.stream = tasks.generator(self.task, "train", config.data_seed, self.device)
        self.validation = evaluation.held_out(config, "validation", self.device)
        self.step = 0
        self.solved = False

    @property
    def finished(self) -> bool:
        return self.solved or self.step == self.config.steps

    def __iter__(self) -> Iterator[list[Record]]:
        while not self.finished:
            yield self._advance()

    def _advance(self) -> list[Record]:
        """Trains up to the next step that reports, evaluates if that is due, returns the rows."""
        config = self.config
        losses: list[Tensor] = []
        while True:
            batch = self._next_batch()
            loss, right, norm = self._train_step(batch)
            losses.append(loss)
            self.step += 1
            if self.step % config.log_every == 0 or self.step == config.steps:
                break
        # The losses stay on the device until here, so that a GPU is never waited for in between.
        values = torch.stack(losses).tolist()
        error = non_finite(config, self.step, values, norm.item())
        if error is not None:
            raise error
        rows = [
            Record(self.step, "train", "loss", math.fsum(values) / len(values)),
            Record(self.step, "train", "accuracy", right.item()),
            Record(self.step, "train", "lr", self.optimizer.param_groups[0]["lr"]),
            Record(self.step, "train", "grad_norm", norm.item()),
        ]
        if self.step % config.evaluation.every == 0 or self.step == config.steps:
            rows += self._evaluate()
        return rows

    def _next_batch(self) -> Batch:
        low, high = self.config.train_lengths
        return self.task.sample(
            self.config.batch, high, min_length=low, generator=self.stream, device=self.device
        )

    def _train_step(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """One optimiser step; the loss, the accuracy and the norm of the gradient before it."""
        config = self.config
        factor = config.schedule.factor(self.step, config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = config.optimizer.lr * factor
        loss, right = loss_and_accuracy(*self._answers(batch))
        self.optimizer.zero_grad()
        loss.backward()
        limit = config.optimizer.clip_norm
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit or math.inf)
        self.optimizer.step()
        return loss.detach(), right, norm

    def _answers(self, batch: Batch) -> tuple[Float[Tensor, "asked classes"], Int[Tensor, "asked"]]:
        """What the model says wherever something is asked, and what it should say."""
        on_cpu = self.device.type == "cpu"
        groups = narrow(batch, self.config.model.d_model) if on_cpu else [batch]
        scores, targets = [], []
        for group in groups:
            read_at, asked = (None, group.targets) if self.task.dense else group.last_answer
            with autocast(self.device, self.config.precision):
                said, _ = self.model(group.tokens, read_at=read_at)
            scores.append(said.flatten(0, 1))
            targets.append(asked.flatten())
        return torch.cat(scores), torch.cat(targets)

    def _evaluate(self) -> list[Record]:
        """Validation rows; the last time also the test set, and every length by itself."""
        counts = self._counts(self.validation)
        goal = self.config.stop_at
        self.solved = goal is not None and evaluation.score(self.judge, counts) >= goal
        rows = self._rows("validation", counts)
        if self.finished:
            test = evaluation.held_out(self.config, "test", self.device)
            rows += self._rows("test", self._counts(test))
        return rows

    def _counts(self, batches: list[Batch]) -> evaluation.Counts:
        precision, dense = self.config.precision, self.judge.dense
        return evaluation.evaluate(self.model, batches, precision, dense=dense)

    def _rows(self, split: str, counts: evaluation.Counts) -> list[Record]:
        return evaluation.records_of(
            self.judge, counts, step=self.step, split=split, every_length=self.finished
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything the next step depends on: tensors by name, and the position."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = value
        tensors["stream"] = self.stream.get_state()
        position = {"step": self.step, "solved": self.solved, "device": self.device.type}
        return tensors, position

    def restore(self, tensors: dict[str, Tensor], position: dict[str, Any]) -> None:
        """The inverse of `state`."""
        check_device(position, self.device)
        weights = {name: tensors[f"model.{name}"] for name in self.model.state_dict()}
        self.model.load_state_dict(weights)
        for name, parameter in self.model.named_parameters():
            for key in ("step", "exp_avg", "exp_avg_sq"):
                value = tensors[f"optimizer.{key}.{name}"]
                self.optimizer.state[parameter][key] = value.to(self.device, copy=True)
        self.stream.set_state(tensors["stream"])
        self.step, self.solved = position["step"], position["solved"]


def train(config: RunConfig, *, device: torch.device | str = "cpu") -> Iterator[Record]:
    """Trains, and yields every record as it comes; nothing is written to disk.

    >>> from statetrack.models import paper_config
    >>> model = paper_config("Diagonal", vocab_size=3, d_model=4)
    >>> config = RunConfig(task="parity", model=model, steps=2, batch=2, log_every=1)
    >>> [record.metric for record in train(config)][:2]
    ['loss', 'accuracy']
    """
    for rows in Session(config, device=device):
        yield from rows


def check_device(position: dict[str, Any], device: torch.device) -> None:
    """Refuses to go on with a run on another kind of device than it was started on."""
    if position["device"] != device.type:
        raise ValueError(
            f"the run was started on {position['device']} and cannot go on, with the same "
            f"numbers, on {device.type}; give device={position['device']!r}"
        )


def loss_and_accuracy(
    scores: Float[Tensor, "*asked classes"], targets: Int[Tensor, "*asked"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean cross entropy and share of right answers, where something is asked."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    loss = cross_entropy(wide.flatten(0, -2), targets.flatten(), ignore_index=IGNORE)
    hits = scores.detach().argmax(dim=-1) == targets
    return loss, hits.sum() / (targets != IGNORE).sum()


def non_finite(
    config: RunConfig, step: int, losses: list[float], last_norm: float
) -> NonFiniteLoss | None:
    """The error of a run whose losses up to `step`, or whose gradient there, are not finite."""
    values = [("loss", loss) for loss in losses] + [("gradient", last_norm)]
    bad = next((i for i, (_, value) in enumerate(values) if not math.isfinite(value)), None)
    if bad is None:
        return None
    what, value = values[bad]
    at = step - len(losses) + min(bad, len(losses) - 1)
    lr = config.optimizer.lr * config.schedule.factor(at, config.steps)
    return NonFiniteLoss(
        f"the {what} became {value} at step {at} (learning rate {lr:.3g}); "
        + _likely_cause(losses[:bad], config)
    )


def _likely_cause(before: list[float], config: RunConfig) -> str:
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
