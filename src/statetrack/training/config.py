"""The description of a run: frozen, complete, and the same after a trip through JSON."""

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch

from statetrack import tasks
from statetrack.config import Bounds, Config, coerced
from statetrack.models import Tagger, TaggerConfig
from statetrack.runs.identity import DIGITS, RunDescription
from statetrack.tasks import Task

__all__ = ["EvaluationConfig", "OptimizerConfig", "RunConfig", "ScheduleConfig"]

Precision = Literal["fp32", "bf16"]
WeightDecayRule = Literal["all_but_state", "matrices", "all"]
Whole = Annotated[int, Bounds(least=1)]
Positive = Annotated[float, Bounds(above=0.0)]
NotNegative = Annotated[float, Bounds(least=0.0)]
Share = Annotated[float, Bounds(least=0.0, most=1.0)]
Seed = Annotated[int, Bounds(least=0, most=2**63 - 1)]
Beta = Annotated[float, Bounds(least=0.0, below=1.0)]
STARTS = re.compile(rf"[0-9a-f]{{{DIGITS}}}|[0-9a-f]{{64}}")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
    """AdamW, and which parameters decay.

    `decay` is one of

    - `all_but_state`: everything, embeddings, norms and biases too, except the parameters that set
      the time scale of a state (`A_log`, `D`, `dt_bias`, and those of the LRU): the paper's Mamba
      and DeltaNet;
    - `matrices`: tensors of more than one axis, but neither the embedding nor the weights of a
      norm: the paper's xLSTM;
    - `all`: everything.

    Attributes:
        lr: the peak of the learning rate.
        weight_decay: its factor, as in AdamW.
        betas: decay of the running means of the gradient and of its square.
        eps: what is added to the root of the second.
        clip_norm: the most that the norm of the whole gradient may be; None for no limit.
    """

    lr: Positive = 1e-3
    weight_decay: NotNegative = 0.0
    decay: WeightDecayRule = "all_but_state"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: NotNegative = 1e-8
    clip_norm: Positive | None = None  # of the whole gradient


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """The learning rate over time: linear from 0 to its peak, then a cosine down to a share of it.

    `warmup` is a share of the steps. The first step has learning rate 0 when there is a warm-up,
    the last has `final` times the peak. `constant` stays at the peak after the warm-up. `wsd` (warm
    up, stay, decay) stays there too, and falls on a line in the last `cooldown` of the steps.
    """

    shape: Literal["cosine", "constant", "wsd"] = "cosine"
    warmup: Share = 0.1
    final: Share = 1e-3
    cooldown: Share = 0.2

    def factor(self, step: int, steps: int) -> float:
        """The learning rate of step 0, 1, ..., steps - 1 as a share of its peak.

        >>> schedule = ScheduleConfig(warmup=0.1)
        >>> [round(schedule.factor(step, 101), 4) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.5, 1.0, 0.5005, 0.001]
        >>> schedule = ScheduleConfig(shape="wsd", warmup=0.1, final=0.0)
        >>> [round(schedule.factor(step, 101), 4) for step in (5, 10, 80, 90, 100)]
        [0.5, 1.0, 1.0, 0.5, 0.0]
        """
        warmup = int(self.warmup * steps)
        if step < warmup:
            return step / warmup
        if self.shape == "constant":
            return 1.0
        if self.shape == "wsd":
            falling = max(1, int(self.cooldown * steps))
            left = (steps - 1 - step) / falling
            return self.final + (1 - self.final) * min(1.0, left)
        progress = (step - warmup) / max(1, steps - 1 - warmup)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Config):
    """What a run is judged by, while it trains and when it has ended.

    The validation set (`size` sequences with lengths in `lengths`) is looked at after every `every`
    steps and at the end, the test set only at the end. The test set's lengths, `test_lengths`, by
    default start where training starts, so that one curve shows both what was learnt and how far it
    carries. `task` is the run's own unless given: a model trained with supervision after every
    letter can so be judged by its last answer. Both sets are the same for every run with these
    settings.
    """

    IDLE = frozenset({"batch"})

    every: Whole = 200
    task: Any = None
    size: Whole = 8192
    seed: Seed = 0
    lengths: tuple[int, int] | None = None
    test_lengths: tuple[int, int] | None = None
    batch: Whole = 512  # sequences at a time at most: changes memory and speed and nothing else


@dataclass(frozen=True, kw_only=True)
class RunConfig(RunDescription):
    """Everything that decides the numbers of one training run, apart from the machine it runs on.

    Lengths left out are filled in with the task's, so that a stored config says everything. What
    does not fit together is refused here, before anything is built. `fingerprint` names the run.

    >>> from statetrack.models import paper_config
    >>> model = paper_config("DeltaNet", vocab_size=3, eigen_range=(-1.0, 1.0))
    >>> config = RunConfig(task="parity", model=model, steps=1000, batch=64)
    >>> config.lengths, config.evaluation.lengths
    ((3, 40), (40, 256))
    >>> RunConfig.from_json(config.to_json()) == config
    True

    `task` is what `tasks.get` takes: a name, a `Task`, a machine, a table. It is stored as the
    task's `spec`, by which it is found again.

    Attributes:
        model: what is trained.
        steps: optimiser steps.
        batch: sequences in a step.
        optimizer: AdamW's settings.
        schedule: the learning rate over time.
        evaluation: what the run is judged by.
        lengths: training lengths, drawn uniformly; what they count is the task's business.
        window: a step reads this many tokens of each sequence, and the next step goes on with the
            state that it has left, without its gradient (`training.windows`); None reads
            sequences whole.
        precision: `fp32`, or `bf16` for fp32 weights under autocast.
        seed: of the initial weights.
        data_seed: of the training stream.
        log_every: steps between two rows of training loss and accuracy.
        checkpoint_every: steps between two checkpoints; `None` for none.
        stop_at: end as soon as the validation score (see `evaluation.score`) reaches this.
        start: the fingerprint of the run whose final weights it starts from, which lies in the
            same folder; or the digest of given weights, which `run` fills in. None draws them.
    """

    IDLE = frozenset({"log_every", "checkpoint_every"})
    KIND = "tagger"

    task: Any
    model: TaggerConfig
    steps: Whole
    batch: Whole
    lengths: tuple[int, int] | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    precision: Precision = "fp32"
    seed: Seed = 0
    data_seed: Seed = 0
    log_every: Whole = 50
    checkpoint_every: Whole | None = 1000
    stop_at: Annotated[float, Bounds(above=0.0, most=1.0)] | None = None
    start: str | None = None
    window: Whole | None = None

    def _check(self) -> None:
        for name, every in (
            ("checkpoint_every", self.checkpoint_every),
            ("evaluation.every", self.evaluation.every),
        ):
            if every is not None and every % self.log_every:
                raise ValueError(
                    f"{name}={every!r} must be a multiple of log_every={self.log_every}"
                )
        if self.start is not None and not STARTS.fullmatch(self.start):
            raise ValueError(
                f"start={self.start!r} must be the fingerprint of a run ({DIGITS} hexadecimal "
                "digits) or the digest of weights (64 of them)"
            )
        self._fit_task()

    def _fit_task(self) -> None:
        """Fills in what the task decides, and refuses a model or an evaluation of another shape."""
        task = tasks.get(self.task)
        sizes = (self.model.vocab_size, self.model.num_classes)
        if sizes != (task.vocab_size, task.num_classes):
            raise ValueError(
                f"the model has vocab_size={sizes[0]} and num_classes={sizes[1]}, but task "
                f"{task.name!r} needs {task.vocab_size} and {task.num_classes}"
            )
        judge = task if self.evaluation.task is None else tasks.get(self.evaluation.task)
        alphabets = [(t.token_names, t.class_names, t.labels) for t in (judge, task)]
        if alphabets[0] != alphabets[1]:
            raise ValueError(
                f"evaluation.task={judge.name!r} has another alphabet than task {task.name!r}"
            )
        train = self.lengths or (task.train_lengths.min, task.train_lengths.max)
        held_out = self.evaluation.lengths or (judge.eval_lengths.min, judge.eval_lengths.max)
        start = held_out[0] if judge.fixed_length else min(train[0], held_out[0])
        tested = self.evaluation.test_lengths or (start, held_out[1])
        for low, high in (train, held_out, tested):
            task.lengths(high, low)
        filled = dataclasses.replace(
            self.evaluation, task=judge.spec, lengths=held_out, test_lengths=tested
        )
        spec = coerced("RunConfig", "task", Any, task.spec)
        for name, value in (("task", spec), ("lengths", train), ("evaluation", filled)):
            object.__setattr__(self, name, value)

    def essence(self) -> dict[str, Any]:
        """As for every config; how often one evaluates counts only where it can end the run."""
        found = super().essence()
        if self.stop_at is None:
            found["evaluation"].pop("every", None)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Takes tasks of your own along, so that they are known where this is read."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return _restored, (fields, [t for t in (self.learns, self.judge) if t.is_foreign])

    def build(self, generator: torch.Generator | None = None) -> Tagger:
        """The model, its weights drawn by `generator`."""
        return Tagger(self.model, generator=generator)

    @property
    def train_lengths(self) -> tuple[int, int]:
        """`lengths`, which are always there once the config is made."""
        assert self.lengths is not None
        return self.lengths

    @property
    def learns(self) -> Task:
        """What is learnt."""
        return tasks.get(self.task)

    @property
    def subject(self) -> str:
        return self.learns.name

    @property
    def judge(self) -> Task:
        """What is evaluated, which may be another task of the same alphabet."""
        return tasks.get(self.evaluation.task)

    @property
    def metric(self) -> str:
        """What it is judged by, see `Task.metric`."""
        return self.judge.metric


def _restored(fields: dict[str, Any], own: list[Task]) -> RunConfig:
    for task in own:
        if not tasks.is_registered(task.name):
            tasks.register(task)
    return RunConfig(**fields)
