"""The description of a run: frozen, complete, and the same after a trip through JSON."""

import dataclasses
import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import torch

from statetrack import tasks
from statetrack.models import Tagger, TaggerConfig

__all__ = ["EvaluationConfig", "OptimizerConfig", "RunConfig", "ScheduleConfig"]

WeightDecayRule = Literal["all_but_state", "matrices", "all"]
Shape = Literal["cosine", "constant"]
Precision = Literal["fp32", "bf16"]


Config = TypeVar("Config", bound="_Config")


class _Config:
    """What the four configs share: a trip through plain dicts that loses and admits nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_dict(cls: type[Config], values: Mapping[str, Any]) -> Config:
        """The inverse of `to_dict`; an unknown key is an error that suggests the nearest."""
        if not isinstance(values, Mapping):
            raise ValueError(f"{cls.__name__} needs named fields, not {values!r}")
        fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in values:
            if name not in fields:
                near = difflib.get_close_matches(name, fields, n=1)
                hint = (
                    f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(fields)}"
                )
                raise ValueError(f"{cls.__name__} has no field {name!r}{hint}")
        missing = [
            name
            for name, f in fields.items()
            if name not in values
            and f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING
        ]
        if missing:
            raise ValueError(f"{cls.__name__} needs {', '.join(missing)}")
        return cls(**{name: _parsed(name, value) for name, value in values.items()})


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(_Config):
    """AdamW, and which parameters decay.

    `decay` is one of

    - `all_but_state`: everything, embeddings, norms and biases too, except the parameters that set
      the time scale of a state (`A_log`, `D`, `dt_bias`): the paper's Mamba and DeltaNet;
    - `matrices`: tensors of more than one axis, but neither the embedding nor the weights of a
      norm: the paper's xLSTM;
    - `all`: everything.
    """

    lr: float = 1e-3
    weight_decay: float = 0.0
    decay: WeightDecayRule = "all_but_state"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_norm: float | None = None  # of the whole gradient

    def __post_init__(self) -> None:
        _number(self, "lr", above=0.0)
        _number(self, "weight_decay", least=0.0)
        _number(self, "eps", least=0.0)
        if self.clip_norm is not None:
            _number(self, "clip_norm", above=0.0)
        _choice(self, "decay", WeightDecayRule)
        numbers = all(isinstance(beta, int | float) for beta in self.betas)
        if not numbers or len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas!r} must be two numbers in [0, 1)")
        object.__setattr__(self, "betas", tuple(float(beta) for beta in self.betas))


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(_Config):
    """The learning rate over time: linear from 0 to its peak, then a cosine down to a share of it.

    `warmup` is a share of the steps. The first step has learning rate 0 when there is a warm-up,
    the last has `final` times the peak. `constant` stays at the peak after the warm-up.
    """

    shape: Shape = "cosine"
    warmup: float = 0.1
    final: float = 1e-3

    def __post_init__(self) -> None:
        _choice(self, "shape", Shape)
        _number(self, "warmup", least=0.0, most=1.0)
        _number(self, "final", least=0.0, most=1.0)

    def factor(self, step: int, steps: int) -> float:
        """The learning rate of step 0, 1, ..., steps - 1 as a share of its peak.

        >>> schedule = ScheduleConfig(warmup=0.1)
        >>> [round(schedule.factor(step, 101), 4) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.5, 1.0, 0.5005, 0.001]
        """
        warmup = int(self.warmup * steps)
        if step < warmup:
            return step / warmup
        if self.shape == "constant":
            return 1.0
        progress = (step - warmup) / max(1, steps - 1 - warmup)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(_Config):
    """What a run is judged by, while it trains and when it has ended.

    The validation set (`size` sequences with lengths in `lengths`) is looked at after every `every`
    steps and at the end, the test set only at the end. The test set's lengths, `test_lengths`, by
    default start where training starts, so that one curve shows both what was learnt and how far it
    carries. `task` is the run's own unless given: a model trained with supervision after every
    letter can so be judged by its last answer. Both sets are the same for every run with these
    settings.
    """

    every: int = 200
    task: str | None = None
    size: int = 8192
    seed: int = 0
    lengths: tuple[int, int] | None = None
    test_lengths: tuple[int, int] | None = None
    batch: int = 512  # sequences at a time, which changes memory and speed and nothing else

    def __post_init__(self) -> None:
        for name in ("every", "size", "batch"):
            _whole(self, name, least=1)
        _whole(self, "seed", least=0, most=2**63 - 1)
        for name in ("lengths", "test_lengths"):
            if getattr(self, name) is not None:
                _pair(self, name)


@dataclass(frozen=True, kw_only=True)
class RunConfig(_Config):
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

    Attributes:
        lengths: training lengths, drawn uniformly; what they count is the task's business.
        precision: `fp32`, or `bf16` for fp32 weights under autocast.
        seed: of the initial weights.
        data_seed: of the training stream.
        log_every: steps between two rows of training loss and accuracy.
        checkpoint_every: steps between two checkpoints; `None` for none.
        stop_at: end as soon as the validation score (see `evaluation.score`) reaches this.
    """

    task: str
    model: TaggerConfig
    steps: int
    batch: int
    lengths: tuple[int, int] | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    precision: Precision = "fp32"
    seed: int = 0
    data_seed: int = 0
    log_every: int = 50
    checkpoint_every: int | None = 1000
    stop_at: float | None = None

    def __post_init__(self) -> None:
        for name, kind in NESTED.items():
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be a {kind.__name__}, not {getattr(self, name)!r}")
        for name in ("steps", "batch", "log_every"):
            _whole(self, name, least=1)
        for name in ("seed", "data_seed"):
            _whole(self, name, least=0, most=2**63 - 1)
        _choice(self, "precision", Precision)
        if self.stop_at is not None:
            _number(self, "stop_at", above=0.0, most=1.0)
        for name, every in (
            ("checkpoint_every", self.checkpoint_every),
            ("evaluation.every", self.evaluation.every),
        ):
            if every is not None and (not _is_whole(every) or every < 1 or every % self.log_every):
                raise ValueError(
                    f"{name}={every!r} must be a multiple of log_every={self.log_every}"
                )
        self._fit_task()

    def _fit_task(self) -> None:
        """Fills in what the task decides, and refuses a model or an evaluation of another shape."""
        task = tasks.get(self.task)
        sizes = (self.model.vocab_size, self.model.num_classes)
        if sizes != (task.vocab_size, task.num_classes):
            raise ValueError(
                f"the model has vocab_size={sizes[0]} and num_classes={sizes[1]}, but task "
                f"{self.task!r} needs {task.vocab_size} and {task.num_classes}"
            )
        judge = tasks.get(self.evaluation.task or self.task)
        if (judge.token_names, judge.class_names) != (task.token_names, task.class_names):
            raise ValueError(
                f"evaluation.task={judge.name!r} has another alphabet than task {self.task!r}"
            )
        train = _pair_of("lengths", self.lengths or task.train_lengths)
        held_out = _pair_of("lengths", self.evaluation.lengths or judge.eval_lengths)
        start = held_out[0] if judge.fixed_length else min(train[0], held_out[0])
        tested = self.evaluation.test_lengths or (start, held_out[1])
        for low, high in (train, held_out, tested):
            task.lengths(high, low)
        object.__setattr__(self, "lengths", train)
        filled = dataclasses.replace(
            self.evaluation, task=judge.name, lengths=held_out, test_lengths=tested
        )
        object.__setattr__(self, "evaluation", filled)

    def build(self, generator: torch.Generator | None = None) -> Tagger:
        """The model, its weights drawn by `generator`."""
        return Tagger(self.model, generator=generator)

    @property
    def train_lengths(self) -> tuple[int, int]:
        """`lengths`, which are always there once the config is made."""
        assert self.lengths is not None
        return self.lengths

    @property
    def judged_by(self) -> str:
        """The task of the evaluation."""
        assert self.evaluation.task is not None
        return self.evaluation.task

    @property
    def fingerprint(self) -> str:
        """sha256 of the canonical JSON, shortened to 16 digits: the name of the run's folder."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Canonical JSON: equal configs give equal text."""
        return json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "RunConfig":
        return cls.from_dict(json.loads(text))


NESTED: dict[str, Any] = {
    "model": TaggerConfig,
    "optimizer": OptimizerConfig,
    "schedule": ScheduleConfig,
    "evaluation": EvaluationConfig,
}


def _parsed(name: str, value: Any) -> Any:
    if name in NESTED:
        return NESTED[name].from_dict(value)
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, _Config | TaggerConfig):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(config: object, name: str, *, least: int, most: int | None = None) -> None:
    value = getattr(config, name)
    if not _is_whole(value) or value < least or (most is not None and value > most):
        high = "" if most is None else f" and at most {most}"
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}{high}")


def _number(
    config: object,
    name: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> None:
    """Checks the range, and stores whole numbers as floats: equal values have equal JSON."""
    value = getattr(config, name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not (above < value and least <= value <= most):
        low = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        high = f" and at most {most:g}" if most < math.inf else ""
        raise ValueError(f"{name}={value!r} must be a number {low}{high}")
    object.__setattr__(config, name, float(value))


def _choice(config: object, name: str, choices: Any) -> None:
    value, known = getattr(config, name), get_args(choices)
    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{name}={value!r}: {hint}It is one of {', '.join(known)}")


def _pair(config: object, name: str) -> None:
    object.__setattr__(config, name, _pair_of(name, getattr(config, name)))


def _pair_of(name: str, value: Any) -> tuple[int, int]:
    items = tuple(value) if isinstance(value, list | tuple) else ()
    if len(items) != 2 or not all(_is_whole(item) for item in items):
        raise ValueError(f"{name}={value!r} must be two whole numbers, the least and the greatest")
    return items[0], items[1]
