"""The description of a pretraining run: frozen, complete, the same after a trip through JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from statetrack.config import Bounds, Config
from statetrack.lm.shards import Manifest
from statetrack.models import CausalLM, CausalLMConfig
from statetrack.models.folder import described
from statetrack.runs.identity import RunDescription
from statetrack.training.config import ScheduleConfig, WeightDecayRule

__all__ = ["PretrainConfig", "PretrainEvaluationConfig", "PretrainOptimizerConfig"]

Whole = Annotated[int, Bounds(least=1)]
Positive = Annotated[float, Bounds(above=0.0)]
NotNegative = Annotated[float, Bounds(least=0.0)]
Seed = Annotated[int, Bounds(least=0, most=2**63 - 1)]
Beta = Annotated[float, Bounds(least=0.0, below=1.0)]


@dataclass(frozen=True, kw_only=True)
class PretrainOptimizerConfig(Config):
    """AdamW for everything, or Muon for the matrices of the blocks and AdamW for the rest.

    `kind` says which of the two. Muon is torch's own, with its step scaled to the size of AdamW's,
    so that one learning rate serves both. `decay` is as for taggers: see `OptimizerConfig`.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    lr: Positive = 1e-3
    weight_decay: NotNegative = 0.1
    decay: WeightDecayRule = "matrices"
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: NotNegative = 1e-8
    momentum: Beta = 0.95  # of Muon
    clip_norm: Positive | None = 1.0  # of the whole gradient


@dataclass(frozen=True, kw_only=True)
class PretrainEvaluationConfig(Config):
    """What a run is judged by: the loss on held-out text, domain by domain.

    After every `every` steps and at the end, the same `windows` windows of every domain are read,
    spread over its validation text, each from an empty state. `length` is theirs, that of training
    unless given. The last evaluation also records the loss by position.
    """

    IDLE = frozenset({"every", "batch"})

    every: Whole = 500
    windows: Whole = 64
    length: Whole | None = None
    batch: Whole = 8  # windows at a time, which changes memory and speed and nothing else


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(RunDescription):
    """Everything that decides the numbers of one pretraining run, apart from the machine.

    `data` is a folder of shards, as `statetrack lm tokenize` writes it. Where it lies is no part of
    the run; what is in it is, by `data_sha256`, which is read from the folder unless given.

    Attributes:
        batch: sequences of a step, over all processes.
        length: tokens of a sequence.
        documents: `joined` reads windows of the text as it is; `packed` begins every document with
            an empty state.
        carry_state: a row's window goes on with the state that the window before it has left:
            backpropagation is truncated, what the model has read is not.
        mixture: shares of the domains; by default each has as much as it has text.
        z_loss: weight of (log Z)² in the loss, which keeps the scores small.
        skip_spikes: leave out an update whose loss is `spike_sigmas` standard deviations above the
            mean of the last 100. Otherwise such a step is only reported.
        precision: `fp32`, or `bf16`: fp32 weights, products in bf16.
        residual_precision: of the residual stream with `precision="bf16"`. In `bf16` a GPU moves
            half of its bytes and keeps less, and each block rounds what it adds to 8 bits; the
            trained model is read with a stream in fp32 all the same.
        micro_batch: sequences that one process reads at once; a step is as many as it needs.
        recompute: keep only what goes into each block, and compute the rest again when gradients
            are asked for.
        compile: `blocks` compiles each block with torch.compile; `step` also records a whole step
            as one CUDA graph, so that a GPU does not wait for the host: small batches are many
            times as fast. It is for one GPU, AdamW, and windows of the text as it is.
        context_parallel: processes that share each sequence, cut in time; the others have other
            sequences.
        peak_tflops: of one device, for the MFU; measured if it is not given.
        stop_at: end as soon as the validation loss is at most this.
    """

    IDLE = frozenset(
        {
            "data",
            "micro_batch",
            "recompute",
            "compile",
            "context_parallel",
            "peak_tflops",
            "log_every",
            "checkpoint_every",
        }
    )
    KIND = "lm"
    LARGE = True

    model: CausalLMConfig
    data: str
    steps: Whole
    batch: Whole
    length: Whole
    data_sha256: str | None = None
    documents: Literal["joined", "packed"] = "joined"
    carry_state: bool = False
    mixture: Mapping[str, NotNegative] | None = None
    optimizer: PretrainOptimizerConfig = field(default_factory=PretrainOptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(warmup=0.02, final=0.1))
    evaluation: PretrainEvaluationConfig = field(default_factory=PretrainEvaluationConfig)
    z_loss: NotNegative = 0.0
    skip_spikes: bool = False
    spike_sigmas: Positive = 6.0
    precision: Literal["fp32", "bf16"] = "fp32"
    residual_precision: Literal["fp32", "bf16"] = "fp32"
    seed: Seed = 0
    data_seed: Seed = 0
    micro_batch: Whole | None = None
    recompute: bool = False
    compile: Literal["no", "blocks", "step"] = "no"
    context_parallel: Whole = 1
    peak_tflops: Positive | None = None
    log_every: Whole = 10
    checkpoint_every: Whole | None = 500
    stop_at: Positive | None = None

    def _check(self) -> None:
        for name, every in (
            ("checkpoint_every", self.checkpoint_every),
            ("evaluation.every", self.evaluation.every),
        ):
            if every is not None and every % self.log_every:
                raise ValueError(
                    f"{name}={every!r} must be a multiple of log_every={self.log_every}"
                )
        if self.length % self.context_parallel:
            raise ValueError(
                f"length={self.length} must be a multiple of "
                f"context_parallel={self.context_parallel}"
            )
        if self.documents == "packed" and self.context_parallel > 1:
            raise ValueError(
                "documents='packed' cannot be cut in time: take joined, or leave out "
                "context_parallel"
            )
        if self.carry_state and self.mixture is not None:
            raise ValueError(
                "carry_state reads text in its order, which a mixture does not: leave out one"
            )
        if self.mixture is not None and not any(share > 0 for share in self.mixture.values()):
            raise ValueError(f"mixture={dict(self.mixture)!r} has no share above 0")
        if self.micro_batch is not None and self.batch % self.micro_batch:
            raise ValueError(
                f"batch={self.batch} must be a multiple of micro_batch={self.micro_batch}"
            )
        if self.compile == "step":
            for name, refused in (
                ("documents='packed'", self.documents == "packed"),
                ("skip_spikes", self.skip_spikes),
                ("optimizer.kind='muon'", self.optimizer.kind == "muon"),
                ("context_parallel", self.context_parallel > 1),
            ):
                if refused:
                    raise ValueError(
                        f"compile='step' records one step and takes it again and again, which "
                        f"{name} does not allow: take compile='blocks'"
                    )
        if self.residual_precision == "bf16" and self.precision == "fp32":
            raise ValueError(
                "residual_precision='bf16' is for precision='bf16': products in fp32 would read "
                "what was rounded before them"
            )
        if self.model.backbone.dropout:
            raise ValueError("pretraining has no dropout: every text is read once")
        if self.data_sha256 is None:
            object.__setattr__(self, "data_sha256", Manifest.read(self.data).sha256)

    def essence(self) -> dict[str, Any]:
        """As for every config; how often one evaluates counts only where it can end the run."""
        found = super().essence()
        if self.stop_at is not None:
            found["evaluation"] = found.get("evaluation", {}) | {"every": self.evaluation.every}
        return found

    def build(self, generator: torch.Generator | None = None) -> CausalLM:
        """The model, its weights drawn by `generator`."""
        return CausalLM(self.model, generator=generator)

    def beside(self) -> dict[str, Any]:
        """The folder of a finished run is that of a language model."""
        return described(self.model)

    @property
    def subject(self) -> str:
        return Path(self.data).name

    @property
    def train_lengths(self) -> tuple[int, int]:
        """In tokens, from and to."""
        return self.length, self.length

    @property
    def validates(self) -> bool:
        """Whether its text is there, and a domain holds out a sequence of the length asked for."""
        length = self.evaluation.length or self.length
        try:
            held_out = Manifest.read(self.data).splits.get("validation", {})
        except ValueError:
            return False
        return any(sum(one.tokens for one in shards) > length for shards in held_out.values())

    @property
    def metric(self) -> str:
        """What it is judged by: the smaller, the better."""
        return "loss"
