"""Many runs of one architecture at once, in step with one another.

Letters: R runs, P parameters of one of them. The parameters of all runs are one matrix `[R, P]`,
and so are the two moments of AdamW; a forward pass maps one functional call of the model over the
run axis, which the ops fold into their batch. No number of one run ever meets a number of another,
so each trains as it would alone: with its own seed, data stream, learning rate, weight decay,
clipping and end.

On a GPU the forward and backward passes and the update are compiled, and a whole step, from drawing
the data to the new weights, is one CUDA graph, in which the data of the next step is drawn beside
the work on this one. Tasks that draw many batches at once have a second graph for that. Losses
leave the device when they are reported.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from statetrack import ops
from statetrack._typing import Bool, Float, Int
from statetrack.layers.registry import BUILT_IN
from statetrack.models import Tagger
from statetrack.models.parts import look_up
from statetrack.runs.identity import same_but_for
from statetrack.tasks import Batch
from statetrack.training import evaluation
from statetrack.training.config import RunConfig
from statetrack.training.executor import Stretch, TaskExecutor
from statetrack.training.feed import Feed
from statetrack.training.folding import folded, norms_before_projections
from statetrack.training.optimizer import decays
from statetrack.training.packing import Layout, in_rows, packed, room_for
from statetrack.training.precision import autocast

__all__ = ["Stacked", "can_stack", "stacks"]

MOST_RUNS = 16
"""Runs in one stack: beyond it a GPU is full at the paper's sizes, and memory is what grows."""

WARM_UP = 2
"""Steps before a graph is captured: kernels are compiled and memory is set aside by then."""


OWN = (
    "seed",
    "data_seed",
    "stop_at",
    "optimizer.lr",
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "evaluation.every",
)
"""What the runs of a stack may differ in. They are evaluated in step, which is checked apart."""


AnyRun = TypeVar("AnyRun", bound=Any)


def can_stack(config: Any) -> bool:
    """Whether a run can be one of several: a tagger, without layers of your own or dropout.

    Layers of your own may do what cannot be mapped over runs; dropout would need a stream of random
    numbers for each of them. Nor can one that reads windows, whose states are not kept by run.
    """
    if config.KIND != RunConfig.KIND or config.window is not None:
        return False
    backbone = config.model.backbone
    return backbone.dropout == 0 and all(mixer.layer in BUILT_IN for mixer in backbone.mixers)


def stacks(configs: Sequence[AnyRun], most: int = MOST_RUNS) -> list[list[AnyRun]]:
    """Groups of at most `most` configs that can train together, in the order they come."""
    groups: dict[object, list[AnyRun]] = {}
    for config in configs:
        in_step = (config.log_every, config.checkpoint_every, config.evaluation.every)
        own = None if can_stack(config) else config.fingerprint
        groups.setdefault((same_but_for(config, OWN), *in_step, own), []).append(config)
    return [
        group[first : first + most]
        for group in groups.values()
        for first in range(0, len(group), most)
    ]


class Stacked(TaskExecutor):
    """For many runs of one architecture, or for one on a GPU."""

    def __init__(self, configs: Sequence[RunConfig], device: torch.device) -> None:
        self.configs = tuple(configs)
        self.device = device
        self.runs = len(self.configs)
        self.config = self.configs[0]
        self.task = self.config.learns
        self.validation = evaluation.held_out(self.config, "validation", device, runs=self.runs)

        # The weights are drawn on the CPU: the same ones on every device.
        models = [c.build(torch.Generator("cpu").manual_seed(c.seed)) for c in self.configs]
        self.layout = _Layout(models[0])
        weights = torch.stack([self.layout.flat(dict(m.named_parameters())) for m in models])
        self.model: Tagger = models[0].to(self.device)  # its structure is used, its weights are not
        self.body = _Body(self.model)
        self.buffers = _Buffers(self.configs, weights.to(self.device), self.layout)
        self.weights = self.layout.views(self.buffers.weights)
        self.feed = Feed(self.configs, self.device)

        on_gpu = self.device.type == "cuda"
        self.room = self._room() if on_gpu else None
        self.norms = norms_before_projections(self.model)
        compiled = partial(torch.compile, dynamic=False, fullgraph=True) if on_gpu else _as_it_is
        self._losses, self._update = compiled(self._forward), compiled(_adamw)
        self._train: Callable[[int], None] = self._train_steps
        self._validate: Callable[[], evaluation.Tally] = lambda: self._tally(self.validation)
        self._read_by_graphs: Layout | Batch | None = None
        self._captured = not on_gpu

    # ------------------------------------------------------------------------------- training

    def step(self, first: int, count: int) -> Stretch:
        if not self._captured:
            self._capture()
        self._train(count)
        # The host waits for the device here, and nowhere else.
        places = torch.arange(first, first + count) % len(self.buffers.losses)
        losses = self.buffers.losses[places.to(self.device)]
        return Stretch(
            losses.T.tolist(), self.buffers.norm.tolist(), self.buffers.accuracy.tolist()
        )

    def _train_steps(self, count: int) -> None:
        """`count` steps of every run, without a word to the host."""
        for _ in range(count):
            self._train_step(self._laid_out(self.feed.next()))

    def _laid_out(self, batch: Batch) -> Layout:
        """Every run's sequences of a batch."""
        if self.room is None:
            return in_rows(batch, runs=self.runs)
        return packed(batch, runs=self.runs, room=self.room)

    def _train_step(self, batch: Layout) -> None:
        losses, accuracy = self._losses(self.weights, batch)
        gradients = torch.autograd.grad(losses.sum(), list(self.weights.values()))
        self._update(self.buffers, gradients, losses.detach(), accuracy)

    def _room(self) -> int | None:
        """Tokens of a row with all sequences of a batch; None where each has a row of its own."""
        if self.task.dense or not self.model.backbone.packs:
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
            packing = None if offsets is None else ops.Packing(offsets, longest)
            scores = self._scores(weights, vectors, read_at, packing)
            return evaluation.loss_and_accuracy(scores, targets, self.task.labels)

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
        packing: ops.Packing | None = None,
    ) -> Tensor:
        """One run's scores, from the vectors of its tokens."""
        with autocast(self.device, self.config.precision):
            scores: Tensor = functional_call(self.body, weights, (vectors, read_at, packing))
        return scores

    # ----------------------------------------------------------------------------- evaluation

    def tally(self, batches: list[Batch]) -> evaluation.Tally:
        return self._validate() if batches is self.validation else self._tally(batches)

    @torch.no_grad()
    def _tally(self, batches: list[Batch]) -> evaluation.Tally:
        table, others = self._apart(self.weights)

        def predict(tokens: Tensor, read_at: Tensor | None) -> Tensor:
            vectors = look_up(table, tokens.expand(self.runs, -1, -1))
            return vmap(self._scores, in_dims=(0, 0, None))(others, vectors, read_at)

        return evaluation.tally(predict, batches, runs=self.runs, task=self.config.judge)

    # -------------------------------------------------------------------------------- CUDA graphs

    def _capture(self) -> None:
        """Turns steps and evaluation into CUDA graphs; leaves all numbers as they were.

        What a graph reads from outside of its own memory must stay in its place as long as the
        graph: `_read_by_graphs` does, or the next capture would give that memory back.
        """
        numbers = self.buffers.snapshot()
        drawn = [stream.get_state() for stream in self.feed.streams]
        capture = self._capture_drawing_beside if self.feed.together == 1 else self._capture_blocks
        self._train = capture(torch.cuda.Stream(self.device, priority=-1))  # small kernels first
        judge = torch.cuda.CUDAGraph()
        with torch.cuda.graph(judge):
            counted = self._tally(self.validation)

        def validate() -> evaluation.Tally:
            judge.replay()
            return counted

        self._validate = validate
        self.buffers.set(numbers)
        for stream, state in zip(self.feed.streams, drawn, strict=True):
            stream.set_state(state)
        self._captured = True

    def _capture_drawing_beside(self, side: torch.cuda.Stream) -> Callable[[int], None]:
        """Drawing a batch is many small kernels that leave the device idle.

        So they run beside a step's work and draw for the next one: one graph draws the first batch,
        one trains and draws, and one trains on the last batch, so that after it no run's stream is
        ahead.
        """

        def next_batch() -> Layout:
            return self._laid_out(self.feed.draw())

        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            batch = self._read_by_graphs = next_batch().clone()
            for _ in range(WARM_UP):
                batch.copy_(next_batch())
                self._train_step(batch)
            self._tally(self.validation)
        torch.cuda.current_stream(self.device).wait_stream(side)

        draw, step, last = (torch.cuda.CUDAGraph() for _ in range(3))
        for stream in self.feed.streams:
            draw.register_generator_state(stream)
            step.register_generator_state(stream)
        with torch.cuda.graph(draw):
            batch.copy_(next_batch())
        with torch.cuda.graph(step):
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                later = next_batch()
            self._train_step(batch)
            torch.cuda.current_stream(self.device).wait_stream(side)
            batch.copy_(later)
        with torch.cuda.graph(last, pool=step.pool()):
            self._train_step(batch)

        def train(count: int) -> None:
            draw.replay()
            for _ in range(count - 1):
                step.replay()
            last.replay()
            self.feed.step += count

        return train

    def _capture_blocks(self, side: torch.cuda.Stream) -> Callable[[int], None]:
        """One graph draws a block of batches, one trains on that batch of it whose turn it is."""

        def train_step(block: Batch) -> None:
            which = (self.buffers.step % self.feed.together)[None]
            self._train_step(self._laid_out(self.feed.part(block, which)))

        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            block = self._read_by_graphs = self.feed.draw()
            for _ in range(WARM_UP):
                train_step(block)
            self._tally(self.validation)
        torch.cuda.current_stream(self.device).wait_stream(side)

        draw, step = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        for stream in self.feed.streams:
            draw.register_generator_state(stream)
        with torch.cuda.graph(draw):
            new = self.feed.draw()
            block.tokens.copy_(new.tokens)
            block.targets.copy_(new.targets)
            block.mask.copy_(new.mask)
        with torch.cuda.graph(step):
            train_step(block)

        def train(count: int) -> None:
            for _ in range(count):
                if self.feed.begins_block():
                    draw.replay()
                step.replay()
                self.feed.step += 1

        return train

    # -------------------------------------------------------------------------------- state

    def keep_only(self, runs: Sequence[int]) -> None:
        self.buffers.keep_only(runs)

    def weights_of(self, run: int) -> dict[str, Tensor]:
        return {name: value[run].detach().clone() for name, value in self.weights.items()}

    def state(self, run: int) -> dict[str, Tensor]:
        tensors = {f"model.{name}": value for name, value in self.weights_of(run).items()}
        moments = {"exp_avg": self.buffers.mean, "exp_avg_sq": self.buffers.square}
        for key, values in moments.items():
            for name, value in self.layout.views(values[run : run + 1]).items():
                tensors[f"optimizer.{key}.{name}"] = value[0].detach().clone()
        for name in self.weights:
            tensors[f"optimizer.step.{name}"] = self.buffers.step.float().cpu()
        tensors["stream"] = self.feed.state(run)
        return tensors

    def restore(self, run: int, tensors: dict[str, Tensor], step: int) -> None:
        sources = {
            "model": self.buffers.weights,
            "optimizer.exp_avg": self.buffers.mean,
            "optimizer.exp_avg_sq": self.buffers.square,
        }
        for prefix, target in sources.items():
            named = {name: tensors[f"{prefix}.{name}"] for name in self.weights}
            for name, value in named.items():
                if value.shape != self.weights[name].shape[1:]:
                    raise ValueError(f"{prefix} of {name} has shape {tuple(value.shape)}")
            with torch.no_grad():
                target[run].copy_(self.layout.flat(named))
        self.feed.restore(run, tensors["stream"], step)
        self.buffers.step.fill_(step)


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

    def keep_only(self, runs: Sequence[int]) -> None:
        """The other runs keep the weights they have."""
        kept = torch.zeros_like(self.active)
        kept[list(runs)] = True
        self.active.copy_(kept)


class _Body(nn.Module):
    """A tagger without its table of vectors: the look-up is done for all runs at once."""

    def __init__(self, model: Tagger) -> None:
        super().__init__()
        self.backbone, self.head = model.backbone, model.head

    def forward(
        self, vectors: Tensor, read_at: Tensor | None, packing: ops.Packing | None
    ) -> Tensor:
        x, _ = self.backbone(vectors, read_at=read_at, cu_seqlens=packing)
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
