"""One run."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from statetrack.cli import show
from statetrack.cli.options import Flag, choose_device

if TYPE_CHECKING:
    from statetrack.training import RunConfig

__all__ = ["Recipe", "run_config", "train"]

OUTPUT = Parameter(group=Group("Output", sort_key=5))


@Parameter(name="*", group=Group("Model", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained."""

    model: str = "DeltaNet"
    """The layer of every block, see `statetrack layers`."""
    eigen_range: tuple[float, float] | None = None
    """The range of the transition's eigenvalues, as in -1 1 or 0 1; by default the layer's own."""
    option: tuple[str, ...] | None = None
    """An option of the layer, as in num_heads=2; may be repeated."""
    width: int = 128
    """Features of a token between the blocks."""
    layers: int = 2
    """Number of blocks."""


@Parameter(name="*", group=Group("Data", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class Data:
    """What is learnt."""

    task: str = "parity"
    """See `statetrack tasks`; also a group (a5_x_z2), a machine (counter_5), a JSON table (my.json)
    or a regular expression ('regex:(a|b)*ab')."""
    lengths: tuple[int, int] | None = None
    """Training lengths, from and to; by default the task's."""
    seed: int = 0
    """Of the initial weights and of the training data."""


@Parameter(name="*", group=Group("Optimiser", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """How it is learnt."""

    steps: int = 10_000
    """Updates of the weights."""
    batch: int = 256
    """Sequences per step."""
    lr: float = 1e-3
    """Learning rate at its peak; a cosine takes it down from there."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises."""
    weight_decay: float = 0.0
    """Of AdamW; which parameters decay depends on the layer."""
    clip_norm: float | None = None
    """Bound on the norm of the gradient; by default none."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 keeps fp32 weights and computes under autocast."""


@Parameter(name="*", group=Group("Evaluation", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What it is judged by."""

    eval_every: int = 200
    """Steps between two looks at the validation set."""
    eval_size: int = 8192
    """Sequences in the validation set, and in the test set."""
    eval_lengths: tuple[int, int] | None = None
    """Lengths in the validation set, from and to; by default the task's."""
    stop_at: float | None = None
    """End when the validation score reaches this; by default never."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run as the command line describes it."""

    model: Model = Model()
    data: Data = Data()
    optimiser: Optimiser = Optimiser()
    evaluation: Evaluation = Evaluation()


DEFAULT = Recipe()


def train(
    *,
    recipe: Recipe = DEFAULT,
    config: Annotated[Path | None, OUTPUT] = None,
    start: Annotated[Path | None, OUTPUT] = None,
    out: Annotated[Path, OUTPUT] = Path("runs"),
    device: Annotated[str | None, OUTPUT] = None,
    tensorboard: Annotated[Flag, OUTPUT] = False,
    wandb: Annotated[str | None, OUTPUT] = None,
) -> int:
    """Train one model on one task, in a folder named by its configuration.

    A run that is there already is not trained again, one that was interrupted goes on.

    Parameters
    ----------
    config
        A config.json of another run, instead of all of the above.
    start
        The folder of a run to go on from: its weights are the first ones here, and its model is
        that of this run. The task may be another one with as many tokens and classes.
    out
        Where run folders go.
    device
        cpu or cuda; by default a GPU if there is one.
    tensorboard
        Also write TensorBoard events into the run folder.
    wandb
        Also log to this Weights & Biases project.
    """
    from statetrack.runs.folder import Run, read_config
    from statetrack.runs.labels import label
    from statetrack.runs.mirrors import TensorBoard, WeightsAndBiases
    from statetrack.runs.records import Sink
    from statetrack.sweep.progress import Progress
    from statetrack.training import run
    from statetrack.training.start import started

    chosen = run_config(recipe, start) if config is None else read_config(config)
    weights = None if start is None else Run(start).weights()
    chosen = started(chosen, weights)
    where = choose_device(device)
    mirrors: list[Sink] = []
    if tensorboard:
        mirrors.append(TensorBoard(out / chosen.fingerprint / "tensorboard"))
    if wandb is not None:
        mirrors.append(WeightsAndBiases(chosen, project=wandb, folder=out))
    out.mkdir(parents=True, exist_ok=True)  # a mistake in it is told before anything else
    with Progress() as progress:
        progress.begin([chosen], out)
        finished = run(chosen, out, device=where, mirrors=mirrors, watcher=progress, start=weights)
    print(label(chosen))
    for split in ("validation", "test"):
        for metric in ("accuracy", "scaled_accuracy", "sequence_accuracy"):
            value = finished.last(metric, split)
            if value is not None:
                print(f"  {split:12}{metric.replace('_', ' '):20}{value:.4f}")
    curve = finished.curve()
    if curve:
        print(f"  test accuracy, lengths 1 to {max(curve)} (0 to 1):")
        show.picture(curve)
    print(f"Records, config and weights: {finished.folder}/")
    return 0


def run_config(recipe: Recipe, start: Path | None = None) -> "RunConfig":
    """The run that `recipe` describes; a row is logged every 50 steps, or as often as judged.

    With the folder of a run to start from it has that run's model.
    """
    from statetrack.experiments.recipes import tagging_run
    from statetrack.training import EvaluationConfig, ScheduleConfig

    model, data, optimiser, judge = recipe.model, recipe.data, recipe.optimiser, recipe.evaluation
    if start is not None:
        if model != Model():
            raise ValueError(
                f"--start {start} brings its own model: leave out --model, --width, --layers, "
                "--eigen-range and --option"
            )
        if not (start / "config.json").is_file():
            raise ValueError(f"--start {start} is not the folder of a run: it has no config.json")
    for name, value in (("width", model.width), ("layers", model.layers)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    options = layer_options(model.option or ())
    if model.eigen_range is not None:
        options["eigen_range"] = model.eigen_range
    log_every = min(50, judge.eval_every)
    described = tagging_run(
        data.task,
        model.model,
        d_model=model.width,
        num_layers=model.layers,
        options=options,
        steps=optimiser.steps,
        batch=optimiser.batch,
        lengths=data.lengths,
        lr=optimiser.lr,
        weight_decay=optimiser.weight_decay,
        clip_norm=optimiser.clip_norm,
        schedule=ScheduleConfig(warmup=optimiser.warmup),
        evaluation=EvaluationConfig(
            every=judge.eval_every, size=judge.eval_size, lengths=judge.eval_lengths
        ),
        precision=optimiser.precision,
        seed=data.seed,
        stop_at=judge.stop_at,
        log_every=log_every,
        checkpoint_every=20 * log_every,
    )
    if start is None:
        return described
    from statetrack.runs.folder import Run

    return dataclasses.replace(described, model=Run(start).config.model)


def layer_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """What is not JSON is text.

    >>> layer_options(("num_heads=2", "eigen_range=[0, 1]", "mode=slow"))
    {'num_heads': 2, 'eigen_range': (0, 1), 'mode': 'slow'}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--option {pair!r} must have the form name=value")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        options[name] = tuple(value) if isinstance(value, list) else value
    return options
