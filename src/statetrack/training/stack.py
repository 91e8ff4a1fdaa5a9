"""Many runs of one architecture at once, in step with one another.

Letters: R runs, P parameters of one of them. The parameters of all runs are one matrix `[R, P]`,
and so are the two moments of AdamW; a forward pass maps one functional call of the model over the
run axis, which the ops fold into their batch. No number of one run ever meets a number of another,
so each trains as it would alone: with its own seed, data stream, learning rate, weight decay,
clipping and end.

On a GPU the forward and backward passes and the update are compiled, and a whole step, from drawing
the data to the new weights, is one CUDA graph, in which the data of the next step is drawn beside
the work on this one. Losses leave the device when they are reported.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from statetrack import ops, tasks
from statetrack._amx import avoid_amx_trap
from statetrack._typing import Bool, Float, Int
from statetrack.layers import registry
from statetrack.layers._base import LayerInPieces
from statetrack.models import Tagger
from statetrack.models.embedding import look_up
from statetrack.runs.records import Record
from statetrack.tasks import Batch
from statetrack.training import evaluation
from statetrack.training.config import OptimizerConfig, RunConfig
from statetrack.training.folding import folded, norms_before_projections
from statetrack.training.loop import (
    NonFiniteLoss,
    check_device,
    loss_and_accuracy,
    non_finite,
)
from statetrack.training.optimizer import decays
from statetrack.training.packing import Layout, in_rows, packed, room_for
from statetrack.training.precision import autocast

__all__ = ["Stack", "stacks"]

MOST_RUNS = 16
"""Runs in one stack: beyond it a GPU is full at the paper's sizes, and memory is what grows."""

WARM_UP = 2
"""Steps before a graph is captured: kernels are compiled and memory is set aside by then."""


def stacks(configs: Sequence[RunConfig], most: int = MOST_RUNS) -> list[list[RunConfig]]:
    """Groups of at most `most` configs that can train together, in the order they come."""
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(_shared(config).fingerprint, []).append(config)
    return [
        group[first : first + most]
        for group in groups.values()
        for first in range(0, len(group), most)
    ]


def _shared(config: RunConfig) -> RunConfig:
    """What the runs of a stack must agree on: all but seeds, rates, clipping and early stop."""
    own = OptimizerConfig()
    optimizer = dataclasses.replace(
        config.optimizer, lr=own.lr, weight_decay=own.weight_decay, clip_norm=None
    )
    return dataclasses.replace(config, optimizer=optimizer, seed=0, data_seed=0, stop_at=None)


class Stack:
    """Several runs in memory. Iterating trains, and yields the new rows of every run by its index.

    Between two yields all runs that still train rest at step `step`. A run ends at the last step,
    when it is solved (`solved[r]`), or when its loss or gradient is not finite (`failed[r]`); the
    others go on. `state` and `restore` speak of one run, in the format of `loop.Session`, so that a
    run may be begun alone and continued in a stack, or the other way round.
    """

    def __init__(self, configs: Sequence[RunConfig], *, device: torch.device | str = "cpu") -> None:
        avoid_amx_trap()
        if len(stacks(configs, most=len(configs))) != 1:
            raise ValueError(
                "runs trained together must agree in everything but seed, data_seed, stop_at and "
                "optimizer.lr, weight_decay and clip_norm"
            )
        self.configs = tuple(configs)
        self.device = torch.device(device)
        self.runs = len(self.configs)
        self.config = self.configs[0]
        self.task = tasks.get(self.config.task)
        assert self.config.evaluation.task is not None
        self.judge = tasks.get(self.config.evaluation.task)
        self.step = 0
        self.solved = [False] * self.runs
        self.failed: list[NonFiniteLoss | None] = [None] * self.runs

        # The weights are drawn on the CPU: the same ones on every device.
        models = [
            Tagger(c.model, generator=torch.Generator("cpu").manual_seed(c.seed))
            for c in self.configs
        ]
        self.layout = _Layout(models[0])
        weights = torch.stack([self.layout.flat(dict(m.named_parameters())) for m in models])
        self.model = models[0].to(self.device)  # its structure is used, its weights are not
        self.body = _Body(self.model)
        self.buffers = _Buffers(self.configs, weights.to(self.device), self.layout)
        self.weights = self.layout.views(self.buffers.weights)
        self.streams = [
            tasks.generator(self.task, "train", c.data_seed, self.device) for c in self.configs
        ]
        self.validation = evaluation.held_out(self.config, "validation", self.device)

        on_gpu = self.device.type == "cuda"
        self.room = self._room() if on_gpu else None
        self.norms = norms_before_projections(self.model)
        compiled = partial(torch.compile, dynamic=False, fullgraph=True) if on_gpu else _as_it_is
        self._losses, self._update = compiled(self._forward), compiled(_adamw)
        self._train: Callable[[int], None] = self._train_steps
        self._validate: Callable[[], evaluation.Tally] = lambda: self._tally(self.validation)
        self._captured = not on_gpu

    # ------------------------------------------------------------------------------- training

    @property
    def active(self) -> list[int]:
        """The runs that still train."""
        if self.step == self.config.steps:
            return []
        return [r for r in range(self.runs) if not self.solved[r] and self.failed[r] is None]

    def __iter__(self) -> Iterator[dict[int, list[Record]]]:
        while self.active:
            yield self._advance()

    def _advance(self) -> dict[int, list[Record]]:
        """Trains up to the next step that reports, evaluates if that is due, returns the rows."""
        config, active = self.config, self.active
        if not self._captured:
            self._capture()
        until = min(config.steps, (self.step // config.log_every + 1) * config.log_every)
        first = self.step % config.log_every
        count = until - self.step
        self._train(count)
        self.step = until
        # The host waits for the device here, and nowhere else.
        losses = self.buffers.losses[first : first + count].T.tolist()
        accuracies, norms = self.buffers.accuracy.tolist(), self.buffers.norm.tolist()
        rows: dict[int, list[Record]] = {}
        for r in active:
            own = self.configs[r]
            self.failed[r] = non_finite(own, self.step, losses[r], norms[r])
            if self.failed[r] is None:
                rate = own.optimizer.lr * own.schedule.factor(self.step - 1, own.steps)
                rows[r] = [
                    Record(self.step, "train", "loss", math.fsum(losses[r]) / count),
                    Record(self.step, "train", "accuracy", accuracies[r]),
                    Record(self.step, "train", "lr", rate),
                    Record(self.step, "train", "grad_norm", norms[r]),
                ]
        if self.step % config.evaluation.every == 0 or self.step == config.steps:
            self._evaluate(rows)
        self.buffers.keep_only(self.active)
        return rows

    def _train_steps(self, count: int) -> None:
        """`count` steps of every run, without a word to the host."""
        for _ in range(count):
            self._train_step(self._next_batch())

    def _next_batch(self) -> Layout:
        """Every run's next batch, each from its own stream."""
        low, high = self.config.train_lengths
        batch = self.task.sample_streams(
            self.config.batch,
            high,
            min_length=low,
            generators=self.streams,
            device=self.device,
        )
        if self.room is None:
            return in_rows(batch, runs=self.runs, dense=self.task.dense)
        return packed(batch, runs=self.runs, room=self.room)

    def _train_step(self, batch: Layout) -> None:
        losses, accuracy = self._losses(self.weights, batch)
        gradients = torch.autograd.grad(losses.sum(), list(self.weights.values()))
        self._update(self.buffers, gradients, losses.detach(), accuracy)

    def _room(self) -> int | None:
        """Tokens of a row with all sequences of a batch; None where each has a row of its own."""
        mixer = registry.get(self.config.model.mixer)
        if self.task.dense or not issubclass(mixer, LayerInPieces):
            return None
        return room_for(self.task, self.config.batch, self.config.train_lengths)

    def _forward(
        self, weights: dict[str, Tensor], batch: Layout
    ) -> tuple[Float[Tensor, "runs"], Float[Tensor, "runs"]]:
        """Every run's loss and accuracy on its own batch."""
        tokens, targets, read_at, offsets, longest = batch

        def one(
            weights: dict[str, Tensor],
            vectors: Tensor,
            targets: Tensor,
            read_at: Tensor | None,
            offsets: Tensor | None,
        ) -> tuple[Tensor, Tensor]:
            pieces = None if offsets is None else ops.Pieces(offsets, longest)
            return loss_and_accuracy(self._scores(weights, vectors, read_at, pieces), targets)

        places = (0, 0, 0, None if read_at is None else 0, None if offsets is None else 0)
        table, others = self._apart(weights)
        vectors = look_up(table, tokens)
        return vmap(one, in_dims=places)(others, vectors, targets, read_at, offsets)

    def _apart(self, weights: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The tables of vectors, and what comes after them with its norms folded, of all runs."""
        others = folded(weights, self.norms)
        return others.pop("embedding.weight"), others

    def _scores(
        self,
        weights: dict[str, Tensor],
        vectors: Tensor,
        read_at: Tensor | None,
        pieces: ops.Pieces | None = None,
    ) -> Tensor:
        """One run's scores, from the vectors of its tokens."""
        with autocast(self.device, self.config.precision):
            scores: Tensor = functional_call(self.body, weights, (vectors, read_at, pieces))
        return scores

    # ----------------------------------------------------------------------------- evaluation

    def _evaluate(self, rows: dict[int, list[Record]]) -> None:
        """Adds validation rows; for a run that ends here also the test set, by every length."""
        counts = self._validate().counts()
        for r in rows:
            goal = self.configs[r].stop_at
            self.solved[r] = goal is not None and evaluation.score(self.judge, counts[r]) >= goal
        ended = [r for r in rows if r not in self.active]
        for r in rows:
            rows[r] += self._rows("validation", counts[r], every_length=r in ended)
        if ended:
            test = evaluation.held_out(self.config, "test", self.device)
            tested = self._tally(test).counts()
            for r in ended:
                rows[r] += self._rows("test", tested[r], every_length=True)

    def _rows(self, split: str, counts: evaluation.Counts, *, every_length: bool) -> list[Record]:
        return evaluation.records_of(
            self.judge, counts, step=self.step, split=split, every_length=every_length
        )

    @torch.no_grad()
    def _tally(self, batches: list[Batch]) -> evaluation.Tally:
        table, others = self._apart(self.weights)

        def predict(tokens: Tensor, read_at: Tensor | None) -> Tensor:
            vectors = look_up(table, tokens.expand(self.runs, -1, -1))
            return vmap(self._scores, in_dims=(0, 0, None))(others, vectors, read_at)

        return evaluation.tally(predict, batches, runs=self.runs, dense=self.judge.dense)

    # -------------------------------------------------------------------------------- CUDA graphs

    def _capture(self) -> None:
        """Turns steps and evaluation into CUDA graphs; leaves all numbers as they were.

        Drawing a batch is many small kernels that leave the device idle, so they run beside a
        step's work and draw for the next one: one graph draws the first batch, one trains and
        draws, and one trains on the last batch, so that after it no run's stream is ahead.
        """
        numbers = self.buffers.snapshot()
        drawn = [stream.get_state() for stream in self.streams]
        side = torch.cuda.Stream(self.device, priority=-1)  # small kernels first
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            batch = self._next_batch().clone()
            for _ in range(WARM_UP):
                batch.copy_(self._next_batch())
                self._train_step(batch)
            self._tally(self.validation)
        torch.cuda.current_stream(self.device).wait_stream(side)

        draw, step, last, judge = (torch.cuda.CUDAGraph() for _ in range(4))
        for stream in self.streams:
            draw.register_generator_state(stream)
            step.register_generator_state(stream)
        with torch.cuda.graph(draw):
            batch.copy_(self._next_batch())
        with torch.cuda.graph(step):
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                later = self._next_batch()
            self._train_step(batch)
            torch.cuda.current_stream(self.device).wait_stream(side)
            batch.copy_(later)
        with torch.cuda.graph(last, pool=step.pool()):
            self._train_step(batch)
        with torch.cuda.graph(judge):
            counted = self._tally(self.validation)

        def train(count: int) -> None:
            draw.replay()
            for _ in range(count - 1):
                step.replay()
            last.replay()

        def validate() -> evaluation.Tally:
            judge.replay()
            return counted

        self._train, self._validate = train, validate
        self.buffers.set(numbers)
        for stream, state in zip(self.streams, drawn, strict=True):
            stream.set_state(state)
        self._captured = True

    # --------------------------------------------------------------------------------- checkpoints

    def weights_of(self, run: int) -> dict[str, Tensor]:
        """One run's weights, by name."""
        return {name: value[run].detach().clone() for name, value in self.weights.items()}

    def state(self, run: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything the next step of one run depends on: tensors by name, and the position."""
        tensors = {f"model.{name}": value for name, value in self.weights_of(run).items()}
        moments = {"exp_avg": self.buffers.mean, "exp_avg_sq": self.buffers.square}
        for key, values in moments.items():
            for name, value in self.layout.views(values[run : run + 1]).items():
                tensors[f"optimizer.{key}.{name}"] = value[0].detach().clone()
        for name in self.weights:
            tensors[f"optimizer.step.{name}"] = torch.tensor(float(self.step))
        tensors["stream"] = self.streams[run].get_state()
        position = {"step": self.step, "solved": self.solved[run], "device": self.device.type}
        return tensors, position

    def restore(self, run: int, tensors: dict[str, Tensor], position: dict[str, Any]) -> None:
        """The inverse of `state`. All runs must be brought to the same step."""
        check_device(position, self.device)
        sources = {
            "model": self.buffers.weights,
            "optimizer.exp_avg": self.buffers.mean,
            "optimizer.exp_avg_sq": self.buffers.square,
        }
        for prefix, target in sources.items():
            named = {name: tensors[f"{prefix}.{name}"] for name in self.weights}
            with torch.no_grad():
                target[run].copy_(self.layout.flat(named))
        self.streams[run].set_state(tensors["stream"])
        self.step, self.solved[run] = position["step"], position["solved"]
        self.buffers.step.fill_(self.step)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class _Layout:
    """Where each parameter of a model lies in a row of P numbers."""

    def __init__(self, model: Tagger) -> None:
        self.named = dict(model.named_parameters())
        self.sizes = [parameter.numel() for parameter in self.named.values()]

    def flat(self, named: dict[str, Any]) -> Float[Tensor, "parameters"]:
        return torch.cat([named[name].detach().flatten() for name in self.named])

    def views(self, rows: Float[Tensor, "runs parameters"]) -> dict[str, Tensor]:
        """Each parameter of all runs, `[R, ...]`: leaves of autograd that share memory with `rows`.

        The update writes to `rows`, and so to these.
        """
        parts = rows.detach().split(self.sizes, dim=1)
        return {
            name: part.unflatten(1, parameter.shape).requires_grad_()
            for (name, parameter), part in zip(self.named.items(), parts, strict=True)
        }


class _Buffers:
    """All that a step reads and writes, at fixed places in memory, as CUDA graphs need it."""

    weights: Float[Tensor, "runs parameters"]
    mean: Float[Tensor, "runs parameters"]
    square: Float[Tensor, "runs parameters"]
    step: Int[Tensor, ""]
    losses: Float[Tensor, "log_every runs"]
    accuracy: Float[Tensor, "runs"]
    norm: Float[Tensor, "runs"]
    active: Bool[Tensor, "runs"]

    def __init__(
        self,
        configs: Sequence[RunConfig],
        weights: Float[Tensor, "runs parameters"],
        layout: _Layout,
    ) -> None:
        shared, device = configs[0], weights.device

        def wide(values: list[float]) -> Tensor:
            return torch.tensor(values, device=device, dtype=torch.float64)

        self.weights = weights
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)
        self.step = torch.zeros((), dtype=torch.long, device=device)
        self.losses = weights.new_zeros(shared.log_every, len(configs))
        self.accuracy, self.norm = torch.zeros(2, len(configs), device=device)
        self.active = torch.ones(len(configs), dtype=torch.bool, device=device)
        # constants
        self.betas, self.eps = shared.optimizer.betas, shared.optimizer.eps
        self.factors = wide([shared.schedule.factor(s, shared.steps) for s in range(shared.steps)])
        self.rates = wide([c.optimizer.lr for c in configs])
        self.decays = wide([c.optimizer.weight_decay for c in configs])
        self.limits = weights.new_tensor([c.optimizer.clip_norm or math.inf for c in configs])
        self.decaying = torch.cat(
            [
                torch.full((p.numel(),), decays(name, p, shared.optimizer.decay))
                for name, p in layout.named.items()
            ]
        ).to(device)

    def snapshot(self) -> list[Tensor]:
        return [tensor.clone() for tensor in (self.weights, self.mean, self.square, self.step)]

    def set(self, numbers: list[Tensor]) -> None:
        """Back to a `snapshot`."""
        for target, value in zip(
            (self.weights, self.mean, self.square, self.step), numbers, strict=True
        ):
            target.copy_(value)

    def keep_only(self, runs: list[int]) -> None:
        """The other runs keep the weights they have."""
        kept = torch.zeros_like(self.active)
        kept[runs] = True
        self.active.copy_(kept)


class _Body(nn.Module):
    """A tagger without its table of vectors: the look-up is done for all runs at once."""

    def __init__(self, model: Tagger) -> None:
        super().__init__()
        self.backbone, self.head = model.backbone, model.head

    def forward(self, vectors: Tensor, read_at: Tensor | None, pieces: ops.Pieces | None) -> Tensor:
        x, _ = self.backbone(vectors, None, read_at, pieces)
        scores: Tensor = self.head(x)
        return scores


@torch.no_grad()
def _adamw(
    at: _Buffers,
    gradients: Sequence[Tensor],
    losses: Float[Tensor, "runs"],
    accuracy: Float[Tensor, "runs"],
) -> None:
    """Clips every run's gradient, takes AdamW's step with its rate and decay, notes the losses."""
    runs = len(losses)
    gradient = torch.cat([g.reshape(runs, -1) for g in gradients], dim=1)
    norm = torch.linalg.vector_norm(gradient, dim=1)
    at.losses.index_copy_(0, (at.step % len(at.losses))[None], losses[None].to(at.losses.dtype))
    at.accuracy.copy_(accuracy)
    at.norm.copy_(norm)
    gradient = gradient * (at.limits / (norm + 1e-6)).clamp(max=1.0)[:, None]

    count = (at.step + 1).double()
    rate = at.rates * at.factors.index_select(0, at.step[None])
    first, second = at.betas
    dtype = at.weights.dtype
    size = (rate / (1 - first**count)).to(dtype)[:, None]
    root = torch.sqrt(1 - second**count).to(dtype)
    kept = torch.where(at.decaying, (1 - rate * at.decays).to(dtype)[:, None], 1.0)

    mean = torch.lerp(at.mean, gradient, 1 - first)
    square = at.square * second + gradient * gradient * (1 - second)
    weights = at.weights * kept - size * mean / (square.sqrt() / root + at.eps)
    active = at.active[:, None]
    at.mean.copy_(torch.where(active, mean, at.mean))
    at.square.copy_(torch.where(active, square, at.square))
    at.weights.copy_(torch.where(active, weights, at.weights))
    at.step.add_(1)
