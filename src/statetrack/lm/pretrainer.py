"""The executor that pretrains: one language model, on one process or sharded over many.

Letters: B sequences of a step over all processes, T tokens of one, W processes, C of which share
each sequence (1 unless the config says otherwise). With g = ⌊w/C⌋, process w has the rows g·B·C/W
to (g + 1)·B·C/W - 1, and of each the tokens of segment w mod C. Matrices are sharded with torch's
`fully_shard`, a block at a time; vectors (norms, gates, time scales) are few and small, stay whole
and in fp32 on every process, and their gradients are summed here.
"""

import functools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statetrack._typing import Float, Int
from statetrack.lm.batches import Reader, packing_of_documents, rows_of
from statetrack.lm.config import PretrainConfig
from statetrack.lm.judge import Judged, Validation
from statetrack.lm.machine import flops_per_token, measured_tflops, memory_gb
from statetrack.lm.optimizer import Optimizer, local
from statetrack.lm.recorded import RecordedStep
from statetrack.lm.sampler import Sampler
from statetrack.lm.shards import Manifest, verify
from statetrack.lm.spikes import Spikes
from statetrack.lm.text import TOKENIZER
from statetrack.models import CausalLM
from statetrack.models._tokens import ModelState
from statetrack.models.folder import LOADER, LOADER_TEXT
from statetrack.ops import context_parallel
from statetrack.runs import ranks
from statetrack.runs.records import Record
from statetrack.runs.warn import warn
from statetrack.training.carrying import expect_to_carry, named, no_state
from statetrack.training.executor import Executor, Judgement, Stretch
from statetrack.training.precision import autocast

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Pretrainer"]

NAMED = 3
"""Rows that a message about a step names."""


class Pretrainer(Executor):
    """An `Executor` for one language model."""

    def __init__(self, configs: Sequence[PretrainConfig], device: torch.device) -> None:
        (config,) = configs
        self.config, self.device = config, device
        self.rank, self.world = ranks.rank(), ranks.world()
        self.manifest = ranks.once(lambda: _checked(config))
        self.reader = Reader(self.manifest, "train", config.length)
        ranks.once(lambda: _expect_to_be_read(config, self.reader))
        self.sampler = Sampler(
            self.reader.windows,
            batch=config.batch,
            seed=config.data_seed,
            mixture=config.mixture,
            streams=config.carry_state,
        )
        ranks.once(lambda: _expect_enough(config, self.sampler, self.world, device))
        self.sharing = config.context_parallel
        self.rows = config.batch * self.sharing // self.world
        self.first_row = self.rank // self.sharing * self.rows
        self.mesh = _mesh(device, self.sharing) if self.world > 1 else None
        # The weights are drawn on the CPU: the same ones on every device and every process.
        model = config.build(torch.Generator("cpu").manual_seed(config.seed)).to(device)
        self.flops_per_token = flops_per_token(model)
        self.size = sum(parameter.numel() for parameter in model.parameters())
        self.whole = {name for name, p in model.named_parameters() if p.ndim < 2}
        self.model: CausalLM = self._prepared(model)
        recorded = config.compile == "step"
        self.optimizer = Optimizer(self.model, config.optimizer, recorded=recorded)
        self.validation = Validation(self.manifest, config)
        self.spikes = Spikes(config.spike_sigmas)
        self.updates = 0
        self.carried = self._empty_state() if config.carry_state else None
        self.peak = config.peak_tflops or measured_tflops(device, config.precision)
        self._row_losses: dict[int, Tensor] = {}
        self.recorded: RecordedStep | None = None
        if recorded:
            self.recorded = RecordedStep(self._updated, self.rows, config.length, device)

    def _prepared(self, model: CausalLM) -> CausalLM:
        """Sharded over the processes, compiled and told to recompute, as the config says."""
        model.backbone.gradient_checkpointing = self.config.recompute
        if self.config.residual_precision == "bf16":
            model.backbone.residual_dtype = torch.bfloat16
        # There is no dropout, and so no random numbers to draw again.
        model.backbone._gradient_checkpointing_func = functools.partial(
            checkpoint, use_reentrant=False, preserve_rng_state=False
        )
        if self.config.compile != "no":
            # Blocks of all models count as one function, of which torch.compile makes eight
            # versions and none more, and whose sizes it takes for variable once two were seen.
            torch.compiler.reset()
            model.backbone.compile_blocks()
        if self.mesh is not None:
            _shard(model, self.device, self.config.precision)
        return model

    # ------------------------------------------------------------------------------- training

    def step(self, first: int, count: int) -> Stretch:
        begun = time.perf_counter()
        sums = torch.zeros(2, len(self.reader.domains), dtype=torch.float64, device=self.device)
        losses: list[Tensor] = []
        self._row_losses = {}
        skipped: set[int] = set()
        for at in range(first, first + count):
            loss, norm, was_skipped = self._train_step(at, sums)
            losses.append(loss)
            if was_skipped:
                skipped.add(at)
        values = torch.stack(losses).tolist()  # here, and nowhere before, a GPU is waited for
        rows = self._reports(first, values, skipped)
        rows += self._by_domain(first + count, sums)
        rows += self._speed(first + count, count, time.perf_counter() - begun)
        kept = [value for i, value in enumerate(values) if first + i not in skipped]
        return Stretch([kept or values], [float(norm)], rows={0: rows})

    def _train_step(self, at: int, sums: Tensor) -> tuple[Tensor, Tensor, bool]:
        """One step: the loss, the norm of the gradient, and whether the update was left out."""
        config = self.config
        if self.carried is not None and self.sampler.begins(at):
            for value in named(self.carried).values():
                value.zero_()
        mine = self.reader.rows(rows_of(self.sampler, at, self.first_row, self.rows))
        mine = mine.segment(self.rank % self.sharing, self.sharing)
        self.optimizer.set_rate(config.optimizer.lr * config.schedule.factor(at, config.steps))
        if self.recorded is None:
            each, norm = self._gradients(mine.tokens, mine.targets)
        else:
            each, norm = self.recorded(mine.tokens, mine.targets)
        self._row_losses[at] = each
        domains = self._here(mine.domains)
        sums[0].index_add_(0, domains, each.double())
        sums[1].index_add_(0, domains, torch.ones_like(each, dtype=torch.float64))
        loss = each.mean()
        if self.world > 1:
            dist.all_reduce(loss)
            loss /= self.world
        if config.skip_spikes and self._is_spike(loss):
            return loss, torch.zeros_like(norm), True
        if self.recorded is None:
            self.optimizer.step()
        self.updates += 1
        return loss, norm, False

    def _updated(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """A whole step on rows that are on the device; as `_gradients`."""
        results = self._gradients(tokens, targets)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return results

    def _gradients(
        self, tokens: Int[Tensor, "rows time"], targets: Int[Tensor, "rows time"]
    ) -> tuple[Float[Tensor, "rows"], Float[Tensor, ""]]:
        """Makes the gradients of these rows, clipped; the loss of each and the norm before."""
        size = self.config.micro_batch or self.rows
        pieces = [slice(i, min(i + size, self.rows)) for i in range(0, self.rows, size)]
        by_row: list[Tensor] = []
        self.optimizer.zero_grad()
        for piece in pieces:
            if self.world > 1:  # gradients are summed over processes once a step
                self.model.set_requires_gradient_sync(piece is pieces[-1])  # type: ignore[operator]
            by_row.append(self._backward(tokens[piece], targets[piece], piece))
        return self._of_whole_rows(torch.cat(by_row)), self._clipped()

    def _backward(self, tokens: Tensor, targets: Tensor, piece: slice) -> Float[Tensor, "rows"]:
        """Adds the gradients of some rows, those of `piece`; the loss of each."""
        share = (piece.stop - piece.start) / self.rows
        start = None
        if self.carried is not None:
            start = tuple({k: v[piece] for k, v in layer.items()} for layer in self.carried)
        with self._shared():  # the backward pass too: it may compute blocks again
            with autocast(self.device, self.config.precision):
                if self.config.documents == "packed":
                    loss, each, after = self._packed_loss(tokens, targets, start)
                else:
                    loss, each, after = self.model.loss(
                        self._here(tokens), self._here(targets), start, z_loss=self.config.z_loss
                    )
            (loss * share).backward()
        if self.carried is not None:
            for kept, new in zip(self.carried, after, strict=True):
                for key, value in kept.items():
                    value[piece] = new[key].detach()
        return each.mean(dim=1)

    def _shared(self) -> AbstractContextManager[None]:
        """Where the processes of a sequence read their segments of it."""
        if self.sharing == 1:
            return nullcontext()
        return context_parallel(self._context())

    def _context(self) -> dist.ProcessGroup:
        assert self.mesh is not None
        return self.mesh.get_group("context")

    def _of_whole_rows(self, each: Float[Tensor, "rows"]) -> Float[Tensor, "rows"]:
        """The means of rows, from those of the segments that are here."""
        if self.sharing > 1:
            dist.all_reduce(each, group=self._context())
            each /= self.sharing
        return each

    def _packed_loss(
        self, tokens: Tensor, targets: Tensor, start: ModelState | None
    ) -> tuple[Tensor, Tensor, ModelState]:
        """Every document begins with an empty state, but the first of a row that continues."""
        packing, first, last = packing_of_documents(tokens, self.manifest.end)
        places = packing._replace(offsets=self._here(packing.offsets))
        if start is not None:
            sequences = packing.offsets.shape[1] - 1
            first, last = self._here(first), self._here(last)
            wide = []
            for layer in start:
                states = {k: v.new_zeros(sequences, *v.shape[1:]) for k, v in layer.items()}
                wide.append({k: v.index_copy(0, first, layer[k]) for k, v in states.items()})
            start = tuple(wide)
        loss, each, after = self.model.loss(
            self._here(tokens.reshape(1, -1)),
            self._here(targets.reshape(1, -1)),
            start,
            cu_seqlens=places,
            z_loss=self.config.z_loss,
        )
        if start is not None:
            after = tuple({k: v[last] for k, v in layer.items()} for layer in after)
        return loss, each.view(tokens.shape), after

    def _here(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == self.device.type:
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _clipped(self) -> Float[Tensor, ""]:
        """Sums and clips the gradients; their norm before."""
        parameters = dict(self.model.named_parameters())
        whole = [p.grad for n, p in parameters.items() if n in self.whole and p.grad is not None]
        if self.world > 1 and whole:
            flat = torch.cat([gradient.flatten() for gradient in whole])
            dist.all_reduce(flat)
            flat /= self.world
            for gradient, part in zip(whole, flat.split([g.numel() for g in whole]), strict=True):
                gradient.copy_(part.view_as(gradient))
        parts = [
            local(p.grad)
            for n, p in parameters.items()
            if n not in self.whole and p.grad is not None
        ]
        square = _sum_of_squares(parts, self.device)
        if self.world > 1:
            dist.all_reduce(square)
        norm = (square + _sum_of_squares(whole, self.device)).sqrt()
        limit = self.config.optimizer.clip_norm
        if limit is not None:
            scale = (limit / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_([*parts, *whole], scale)
        return norm

    def _is_spike(self, loss: Tensor) -> bool:
        found = self.spikes.is_one(float(loss)) if self.rank == 0 else False
        return ranks.any_rank(found)

    # -------------------------------------------------------------------------------- reports

    def _reports(self, first: int, losses: list[float], skipped: set[int]) -> list[Record]:
        """A row and a line for every spike; a loss that is not finite is the engine's to tell."""
        rows = []
        for i, loss in enumerate(losses):
            at = first + i
            was_spike = at in skipped if self.config.skip_spikes else self.spikes.is_one(loss)
            if not was_spike:
                continue
            if math.isfinite(loss):
                rows.append(Record(at + 1, "train", "spike", loss))
            elif not self.config.skip_spikes:
                continue
            what = "was skipped" if at in skipped else "is a spike"
            data = self.data_of(at)
            if self.rank == 0:
                warn(f"step {at} {what}: its loss is {loss:.4g}; it read {data}")
        return rows

    def data_of(self, step: int) -> str:
        """The rows with the greatest losses, where they are known; all ranks must ask."""
        windows = rows_of(self.sampler, step, 0, self.config.batch)
        order = list(range(len(windows)))
        if step in self._row_losses:
            each = self._gathered(self._row_losses[step])
            order.sort(key=lambda row: -math.inf if math.isnan(each[row]) else -each[row])
        named = [self.reader.where(windows[row]) for row in order[:NAMED]]
        more = len(windows) - len(named)
        return ", ".join(named) + (f" and {more} other windows" if more else "")

    def _gathered(self, mine: Tensor) -> list[float]:
        if self.world == 1:
            return mine.tolist()
        found = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(found, mine)
        return torch.cat(found[:: self.sharing]).tolist()

    def _by_domain(self, step: int, sums: Float[Tensor, "2 domains"]) -> list[Record]:
        if len(self.reader.domains) < 2:
            return []
        if self.world > 1:
            dist.all_reduce(sums)
        total, count = sums.tolist()
        return [
            Record(step, "train", "loss", total[i] / count[i], domain=name)
            for i, name in enumerate(self.reader.domains)
            if count[i] and math.isfinite(total[i])
        ]

    def _speed(self, step: int, count: int, seconds: float) -> list[Record]:
        speed = count * self.config.batch * self.config.length / seconds
        share = speed * self.flops_per_token / (self.peak * 1e12 * self.world)
        return [
            Record(step, "machine", "tokens_per_s", speed),
            Record(step, "machine", "mfu", share),
            Record(step, "machine", "memory_gb", memory_gb(self.device)),
        ]

    def info(self) -> dict[str, Any]:
        return {
            "parameters": self.size,  # of all processes together
            "processes": self.world,
            "tokens_per_step": self.config.batch * self.config.length,
            "flops_per_token": self.flops_per_token,
            "peak_tflops": self.peak,
        }

    def files(self) -> dict[str, bytes]:
        tokenizer = (self.manifest.folder / TOKENIZER).read_bytes()
        return {TOKENIZER: tokenizer, LOADER: LOADER_TEXT.encode()}

    # ----------------------------------------------------------------------------- evaluation

    def judge(self, split: str) -> list[Judgement]:
        if split != "validation" or not self.validation.windows:
            return []
        self.model.eval()
        try:
            with self._as_it_is():
                return [Judged(self.validation.domains, *self._validated())]
        finally:
            self.model.train()

    def _as_it_is(self) -> AbstractContextManager[Any]:
        """Without the compiled blocks: compiling for other sizes takes longer than it saves."""
        if self.config.compile == "no":
            return nullcontext()
        return torch.compiler.set_stance("force_eager")

    @torch.no_grad()
    def _validated(self) -> tuple[Tensor, Tensor]:
        """The sum and the number of losses by domain and position."""
        sums = self.validation.nothing(self.device)
        for rows, counts in self.validation.batches(self.rank, self.world):
            with autocast(self.device, self.config.precision):
                losses, _ = self.model.losses(self._here(rows.tokens), self._here(rows.targets))
            self.validation.add(sums, losses, rows.domains.to(self.device), self._here(counts))
        if self.world > 1:
            dist.all_reduce(sums)
        return sums[0].cpu(), sums[1].cpu()

    # ---------------------------------------------------------------------------------- state

    def _empty_state(self) -> ModelState:
        """The state before the first token, for every row of this process."""
        return no_state(self._state_after(1), self.rows)

    @torch.no_grad()
    def _state_after(self, count: int) -> ModelState:
        tokens = torch.zeros(1, count, dtype=torch.long, device=self.device)
        with autocast(self.device, self.config.precision):
            found: ModelState = self.model.loss(tokens, tokens)[2]
        return found

    def keep_only(self, runs: Sequence[int]) -> None:
        """Nothing to do: the only run ends with the engine."""

    def weights_of(self, run: int) -> dict[str, Tensor]:
        """Whole, on the CPU of rank 0; all ranks must ask."""
        found = {}
        for name, value in self.model.state_dict().items():
            tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
            if self.rank == 0:
                found[name] = tensor.detach().cpu()
        return found

    def state(self, run: int) -> dict[str, Tensor]:
        return dict(self._tensors())

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.model.named_parameters():
            yield f"model.{name}", parameter.detach()
        yield from self.optimizer.state()
        yield "updates", torch.tensor([self.updates])
        yield "spikes", self.spikes.state()
        for name, value in named(self.carried or ()).items():
            yield name, self._of_all(value)

    def _of_all(self, mine: Tensor) -> Tensor:
        """The rows of every process, as one tensor that is sharded over them."""
        if self.mesh is None:
            return mine
        from torch.distributed.tensor import DTensor, Replicate, Shard

        return DTensor.from_local(mine, self.mesh, [Shard(0), Replicate()])

    def restore(self, run: int, tensors: dict[str, Tensor], step: int) -> None:
        for name, value in self._tensors():
            if value.shape != tensors[name].shape:
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}")
            if name not in ("updates", "spikes"):
                local(value).copy_(local(tensors[name]))
        self.updates = int(tensors["updates"])
        self.spikes.restore(tensors["spikes"])
        self.optimizer.set_updates(self.updates)


def _checked(config: PretrainConfig) -> Manifest:
    """The shards, which must be those of the config, whole, and fit the model."""
    manifest = Manifest.read(config.data)
    if manifest.sha256 != config.data_sha256:
        raise ValueError(
            f"{config.data} is not the text that this run began with: its manifest has another hash"
        )
    verify(manifest)
    if manifest.vocab_size > config.model.vocab_size:
        raise ValueError(
            f"the tokenizer of {config.data} has {manifest.vocab_size} tokens and the model knows "
            f"{config.model.vocab_size}: they do not belong together"
        )
    if config.stop_at is not None and not config.validates:
        raise ValueError(
            f"stop_at={config.stop_at} is about the validation text, and {config.data} holds out "
            "less than a sequence: `statetrack lm tokenize --hold-out-share 0.05` makes some"
        )
    if config.mixture is not None:
        domains = manifest.domains("train")
        if unknown := [name for name in config.mixture if name not in domains]:
            raise ValueError(
                f"mixture has {unknown[0]!r}, but the training text has the domains "
                f"{', '.join(domains)}"
            )
        if left := [name for name in domains if name not in config.mixture]:
            raise ValueError(f"mixture says nothing of {left[0]!r}: 0 leaves its text out")
    return manifest


def _expect_to_be_read(config: PretrainConfig, reader: Reader) -> None:
    """Every domain has a sequence: one that a mixture has a share of must, another is told of."""
    windows = reader.windows
    for name in reader.domains:
        what = f"the domain {name!r} of {config.data} has no sequence of {config.length} tokens"
        if name in windows:
            continue
        if config.mixture is not None and config.mixture[name] > 0:
            raise ValueError(f"{what}: give it more text or no share, or take a smaller length")
        if config.mixture is None and windows:  # of no text at all the batch will be told
            warn(f"{what}, and is never read")


def _expect_enough(
    config: PretrainConfig, sampler: Sampler, world: int, device: torch.device
) -> None:
    sharing = config.context_parallel
    if world % sharing:
        raise ValueError(
            f"context_parallel={sharing} must divide the number of processes, which is {world}: "
            f"torchrun --nproc-per-node {sharing} starts as many"
        )
    if config.batch % (world // sharing):
        groups = "processes" if sharing == 1 else f"groups of {sharing} processes"
        raise ValueError(
            f"batch={config.batch} must be a multiple of the {world // sharing} {groups}"
        )
    if config.compile == "step" and (world > 1 or device.type != "cuda"):
        what = f"{world} processes" if world > 1 else f"the device {device.type}"
        raise ValueError(f"compile='step' is for one GPU, not for {what}: take 'blocks'")
    if sampler.total < config.batch:
        raise ValueError(
            f"{config.data} has {sampler.total} windows of {config.length} tokens, fewer than the "
            f"batch of {config.batch}: give more text, a smaller batch or a smaller length"
        )
    if config.documents == "packed" or config.carry_state or sharing > 1:
        with torch.device("cpu"):
            _expect_layers(config)


def _expect_layers(config: PretrainConfig) -> None:
    """The layers can do what the config asks: packed documents, a state that is handed over."""
    model = config.build(torch.Generator("cpu").manual_seed(0))
    if config.documents == "packed" and not model.backbone.packs:
        raise ValueError("documents='packed' needs layers that take packed sequences: take joined")
    mixers = [block.mixer for block in model.backbone.blocks]
    whole = [type(one).__name__ for one in mixers if not one.splits]  # type: ignore[union-attr]
    if config.context_parallel > 1 and whole:
        raise ValueError(
            f"context_parallel needs layers whose sequences can be cut, and {whole[0]} is none: "
            "leave it out, or take layers that are linear in their state"
        )
    if config.carry_state:
        expect_to_carry(model, "carry_state")


def _sum_of_squares(tensors: list[Tensor], device: torch.device) -> Float[Tensor, ""]:
    if not tensors:
        return torch.zeros((), device=device)
    return torch.stack(torch._foreach_norm(tensors)).square().sum()


def _mesh(device: torch.device, sharing: int) -> "DeviceMesh":
    """The processes by what they read: rows of the batch, and within these, segments."""
    from torch.distributed.device_mesh import init_device_mesh

    sizes = (ranks.world() // sharing, sharing)
    return init_device_mesh(device.type, sizes, mesh_dim_names=("data", "context"))


def _shard(model: CausalLM, device: torch.device, precision: str) -> None:
    """Shards every matrix. Blocks compute with bf16 copies if asked, and sum gradients in fp32.

    The token table and the head stay fp32, as under autocast; the loss narrows the head itself.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    mesh = init_device_mesh(device.type, (ranks.world(),))
    whole: set[nn.Parameter] = {p for p in model.parameters() if p.ndim < 2}
    narrow = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if precision == "bf16" else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    for block in model.backbone.blocks:
        fully_shard(block, mesh=mesh, mp_policy=narrow, ignored_params=whole)
    wide = MixedPrecisionPolicy(cast_forward_inputs=False)
    fully_shard(model, mesh=mesh, mp_policy=wide, ignored_params=whole)
    for method in ("loss", "losses"):
        register_fsdp_forward_method(model, method)
