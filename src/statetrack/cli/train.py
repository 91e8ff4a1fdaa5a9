"""One run."""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from statetrack.cli import show
from statetrack.cli.options import Flag, choose_device, expect_nothing_beside, pairs_of

if TYPE_CHECKING:
    from statetrack.training import RunConfig

__all__ = ["Recipe", "run_config", "sizes", "train"]

OUTPUT = Parameter(group=Group("Output", sort_key=5))
CHECKPOINT_EVERY = 500
GUESS = 0.1
"""A scaled accuracy below this is not worth a second look."""
Scale = Literal["quick", "paper"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """What `--scale` decides, where an option does not.

    `log_every` is the most steps between two rows of the training loss. Ctrl-C waits for one.
    """

    width: int
    layers: int
    steps: int
    batch: int
    lr: float
    clip_norm: float | None
    eval_every: int
    eval_size: int
    log_every: int


SIZES: dict[Scale, Size] = {
    "quick": Size(
        width=32,
        layers=1,
        steps=1_500,
        batch=256,
        lr=1e-2,
        clip_norm=1.0,
        eval_every=500,
        eval_size=1024,
        log_every=10,
    ),
    "paper": Size(
        width=128,
        layers=2,
        steps=20_000,
        batch=256,
        lr=1e-3,
        clip_norm=None,
        eval_every=200,
        eval_size=8192,
        log_every=50,
    ),
}
"""quick: a minute or two on two CPU cores, enough for DeltaNet to learn parity.
paper: what the paper's published code does for parity."""


@Parameter(name="*", group=Group("Model", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained."""

    scale: Scale = "quick"
    """quick takes a minute or two on two CPU cores; paper is as large as the paper's runs for
    parity, for a GPU."""
    model: str = "DeltaNet"
    """The layer of every block, see `statetrack layers`."""
    eigen_range: tuple[float, float] | None = None
    """The range of the transition's eigenvalues, as in -1 1 or 0 1; by default the layer's own."""
    option: tuple[str, ...] | None = None
    """An option of the layer, as in num_heads=2; may be repeated."""
    width: int | None = None
    """Features of a token between the blocks; by default 32, at the paper's scale 128."""
    layers: int | None = None
    """Number of blocks; by default 1, at the paper's scale 2."""


@Parameter(name="*", group=Group("Data", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class Data:
    """What is learnt."""

    task: str = "parity"
    """See `statetrack tasks`; also a group (a5_x_z2), a machine (counter_5), a JSON table (my.json)
    or a regular expression ('regex:(a|b)*ab')."""
    lengths: tuple[int, int] | None = None
    """Training lengths, from and to; by default the task's."""
    window: int | None = None
    """Read this many tokens of a sequence at a step, and go on from the state at the next; by
    default sequences are read whole."""
    seed: int = 0
    """Of the initial weights and of the training data."""


@Parameter(name="*", group=Group("Optimiser", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """How it is learnt."""

    steps: int | None = None
    """Updates of the weights; by default 1500, at the paper's scale 20000."""
    batch: int | None = None
    """Sequences per step; by default 256."""
    lr: float | None = None
    """Learning rate at its peak; a cosine takes it down from there. By default 0.01, at the
    paper's scale 0.001."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises."""
    weight_decay: float = 0.0
    """Of AdamW; which parameters decay depends on the layer."""
    clip_norm: float | None = None
    """Bound on the norm of the gradient; by default 1, at the paper's scale none."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 keeps fp32 weights and computes under autocast."""


@Parameter(name="*", group=Group("Evaluation", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What it is judged by."""

    eval_every: int | None = None
    """Steps between two looks at the validation set; by default 500, at the paper's scale 200."""
    eval_size: int | None = None
    """Sequences in the validation set, and in the test set; by default 1024, at the paper's scale
    8192."""
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
    checkpoint_every: Annotated[int | None, OUTPUT] = None,
    tensorboard: Annotated[Flag, OUTPUT] = False,
    wandb: Annotated[str | None, OUTPUT] = None,
) -> int:
    """Train one model on one task, in a folder named by its configuration.

    A run that is there already is not trained again, one that was interrupted goes on. Ctrl-C saves
    a checkpoint before it stops.

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
    checkpoint_every
        Steps between two checkpoints; by default 500, or as the --config says.
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

    if config is not None:
        expect_nothing_beside(config, recipe)
    chosen = run_config(recipe, start) if config is None else read_config(config)
    weights = None if start is None else Run(start).weights()
    chosen = started(chosen, weights)
    if checkpoint_every is not None:
        chosen = saved_every(chosen, checkpoint_every)
    where = choose_device(device)
    mirrors: list[Sink] = []
    if tensorboard:
        mirrors.append(TensorBoard(out / chosen.fingerprint / "tensorboard"))
    if wandb is not None:
        mirrors.append(WeightsAndBiases(chosen, project=wandb, folder=out))
    out.mkdir(parents=True, exist_ok=True)  # a mistake in it is told before anything else
    folder = out / chosen.fingerprint
    with Progress() as progress:
        progress.begin([chosen], out, finished=int(Run(folder).finished))
        try:
            finished = run(
                chosen, out, device=where, mirrors=mirrors, watcher=progress, start=weights
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(show.stopped(folder, chosen.steps)) from None
    print(label(chosen))
    for split in ("validation", "test"):
        for metric in ("accuracy", "scaled_accuracy", "sequence_accuracy"):
            value = finished.last(metric, split)
            if value is not None:
                print(f"  {split:12}{metric.replace('_', ' '):20}{value:.4f}")
    curve = finished.curve()
    if curve:
        print(f"  test accuracy by length in tokens, {min(curve)} to {max(curve)} (0 to 1):")
        show.picture(curve)
    score = finished.last("scaled_accuracy")
    if score is not None and score < GUESS:
        print(f"  This is a guess: {_way_out(chosen)}.")
    print(f"Records, config and weights: {finished.folder}/")
    return 0


def _way_out(config: "RunConfig") -> str:
    """What may help a run that has learnt nothing."""
    from statetrack import tasks

    dense = f"{config.task}_dense"
    more = "more steps or another seed or --lr may help, or --scale paper"
    if dense not in tasks.available():
        return more
    return f"{more}; {dense} asks after every token and is learnt much sooner"


def run_config(recipe: Recipe, start: Path | None = None) -> "RunConfig":
    """The run that `recipe` describes; with the folder of a run to start from, of its model."""
    from statetrack.experiments.recipes import tagging_run
    from statetrack.training import EvaluationConfig, ScheduleConfig

    model, data, optimiser, judge = recipe.model, recipe.data, recipe.optimiser, recipe.evaluation
    if start is not None:
        if dataclasses.replace(model, scale=Model().scale) != Model():
            raise ValueError(
                f"--start {start} brings its own model: leave out --model, --width, --layers, "
                "--eigen-range and --option"
            )
        if not (start / "config.json").is_file():
            raise ValueError(f"--start {start} is not the folder of a run: it has no config.json")
    size = sizes(recipe)
    for name, value in (("width", size.width), ("layers", size.layers)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    options = layer_options(model.option or (), model.eigen_range)
    described = tagging_run(
        data.task,
        model.model,
        d_model=size.width,
        num_layers=size.layers,
        options=options,
        steps=size.steps,
        batch=size.batch,
        lengths=data.lengths,
        window=data.window,
        lr=size.lr,
        weight_decay=optimiser.weight_decay,
        clip_norm=size.clip_norm,
        schedule=ScheduleConfig(warmup=optimiser.warmup),
        evaluation=EvaluationConfig(
            every=size.eval_every, size=size.eval_size, lengths=judge.eval_lengths
        ),
        precision=optimiser.precision,
        seed=data.seed,
        stop_at=judge.stop_at,
        log_every=_dividing(size.log_every, size.eval_every, CHECKPOINT_EVERY),
        checkpoint_every=CHECKPOINT_EVERY,
    )
    if start is None:
        return described
    from statetrack.runs.folder import Run

    return dataclasses.replace(described, model=Run(start).config.model)


def sizes(recipe: Recipe) -> Size:
    """What the options say, and the scale where they say nothing."""
    given = {
        name: value
        for part in (recipe.model, recipe.optimiser, recipe.evaluation)
        for name, value in vars(part).items()
        if name in Size.__dataclass_fields__ and value is not None
    }
    return dataclasses.replace(SIZES[recipe.model.scale], **given)


def saved_every(config: "RunConfig", steps: int) -> "RunConfig":
    """`config` with a checkpoint every so many steps, which changes none of its numbers."""
    if steps < 1:
        raise ValueError(f"checkpoint_every={steps} must be at least 1")
    log_every = _dividing(config.log_every, config.evaluation.every, steps)
    return dataclasses.replace(config, log_every=log_every, checkpoint_every=steps)


def _dividing(most: int, *intervals: int) -> int:
    """The greatest interval up to `most` on which all of `intervals` fall.

    >>> _dividing(50, 200, 500), _dividing(50, 70, 500), _dividing(10, 4, 500)
    (50, 10, 4)
    """
    common = math.gcd(*intervals)
    return max((n for n in range(1, most + 1) if common % n == 0), default=1)


def layer_options(
    pairs: tuple[str, ...], eigen_range: tuple[float, float] | None = None
) -> dict[str, Any]:
    """What is not JSON is text.

    >>> layer_options(("num_heads=2", "mode=slow"), (0.0, 1.0))
    {'num_heads': 2, 'mode': 'slow', 'eigen_range': (0.0, 1.0)}
    """
    options: dict[str, Any] = {}
    for name, text in pairs_of("--option", pairs).items():
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        options[name] = tuple(value) if isinstance(value, list) else value
    if eigen_range is not None:
        if "eigen_range" in options:
            raise ValueError("the range is given twice: leave out --eigen-range or the --option")
        options["eigen_range"] = eigen_range
    return options
