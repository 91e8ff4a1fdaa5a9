"""Beyond the paper: program traces, boxes, puzzles and recall, with [0, 1] against [-1, 1].

Every model trains at the same rates in both ranges and is judged at sixteen times the length it was
trained on (eight times for recall of many pairs, which memory limits; four for chess, whose games
end). One set of test sequences
shows accuracy by length up to there, and by the operations an answer has been through. A few models
then go on, on sequences of up to that length that are read in windows.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statetrack import tasks
from statetrack.experiments._base import Experiment, Scale, Version, shrink
from statetrack.experiments.chomsky import POSITIVE, SIGNED
from statetrack.experiments.recipes import tagging_run
from statetrack.training import EvaluationConfig, RunConfig, ScheduleConfig

__all__ = ["APPLIED", "BOXES", "CHESS", "PUZZLES", "RECALL", "REPL", "cell", "models"]

Range = tuple[float, float]
DELTA = ("DeltaNet", "GatedDeltaNet", "DeltaProduct")
RATES = (3e-4, 1e-3, 3e-3)
RATE = 1e-3
TIMES = 16
LONGER = 2
"""At the paper's scale a run has so many times the steps, and the rate stays up until the last
tenth of them: one small model was right further after that (docs/measurements/log.md)."""
USUALLY = ScheduleConfig(warmup=0.1, final=0.01)
STAYING = ScheduleConfig(shape="wsd", warmup=0.05, final=0.01, cooldown=0.1)
EVALUATIONS = 4
"""Times that a run is evaluated; the validation set is long."""
EVALUATION_BATCH, EVALUATION_SCORES = 64, 2**26
"""Sequences of one batch of an evaluation, and scores of one head of attention in it."""


CONTROLS = ("mqar", "mqar_forgetting", "flip_flop", "selective_copying")
"""Tasks in which nothing has to be reflected."""


@dataclass(frozen=True)
class Windows:
    """How a model goes on that has learnt on short sequences: tokens of a window, steps, rate."""

    window: int
    steps: int
    rate: float


THEN_WINDOWS = {
    "repl_1_silent": ("DeltaNet", Windows(320, 5000, 3e-4)),
    "boxes": ("DeltaNet", Windows(256, 5000, 3e-4)),
    "cube": ("DeltaProduct6", Windows(32, 2400, 1e-3)),
}
"""Task -> which of its models goes on, and how."""


@dataclass(frozen=True)
class Model:
    """A layer, its options, the ranges to train it with, and whether its runs go on from others."""

    layer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ranges: tuple[Range | None, ...] = (POSITIVE, SIGNED)
    then: Windows | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one task is trained.

    Attributes:
        times: how much longer the longest test sequences are than those trained on.
        from_start: whether test lengths begin where training does, for tasks that ask at the end.
        rate: of the quick scale; the paper's has `RATES`.
        options: of the layers of the DeltaNet family.
        block: what is around the layers.
    """

    layers: int = 2
    steps: int = 15_000
    batch: int = 64
    times: int = TIMES
    from_start: bool = False
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    d_model: int = 128
    rate: float = RATE
    options: Mapping[str, Any] = field(default_factory=dict)
    block: Mapping[str, Any] = field(default_factory=dict)


RECIPES: dict[str, Recipe] = {
    "repl_1": Recipe(),
    "repl_1_silent": Recipe(),
    "repl_2_silent": Recipe(layers=3),
    "repl_3_silent": Recipe(layers=3),
    "repl_4_silent": Recipe(layers=3),
    "repl_5_p50_silent": Recipe(),
    "repl_5_p75_silent": Recipe(),
    "boxes": Recipe(batch=128),
    "boxes_mixed": Recipe(batch=128),
    "boxes_no_swap": Recipe(batch=128),
    # One layer and nothing around it, so that a move has as many reflections as the layer; small
    # heads, and no convolution, because a move is one token (docs/measurements/log.md).
    "cube": Recipe(
        layers=1,
        batch=256,
        steps=15_000,
        rate=3e-3,
        options={"num_heads": 8, "conv_size": 0, "qk_silu": False},
        block={"mlp": "none"},
    ),
    "lights_out": Recipe(batch=512, steps=10_000),
    "mqar": Recipe(steps=10_000, times=8, from_start=True),
    "mqar_forgetting": Recipe(steps=10_000, from_start=True),
    "flip_flop": Recipe(batch=32, steps=10_000),
    "selective_copying": Recipe(from_start=True),
    "chess": Recipe(
        batch=128,
        steps=6000,
        times=4,
        seeds=(0, 1, 2),
        d_model=256,
        rate=3e-3,  # the published one of this width
        options={"num_heads": 4, "head_dim": 48, "value_dim": 96},
        block={"mlp_dim": 1024},
    ),
}


def models(task: str) -> dict[str, Model]:
    """Every model of a task, by its name.

    Where states are tracked there is one whose β reaches 0 and 2, and where they are not, one that
    learns its range from [0, 1] on and one whose β begins where that of [0, 1] does. `ThenWindows`
    is one that goes on where the model of that name has ended.

    >>> list(models("cube"))[:4]
    ['DeltaNet', 'GatedDeltaNet', 'DeltaProduct3', 'DeltaProduct6']
    >>> models("mqar")["DeltaNetStarted"].ranges
    ((-1.0, 1.0),)
    """
    products = (3, 6) if task == "cube" else (2, 4)
    found = {
        "DeltaNet": Model("DeltaNet"),
        "GatedDeltaNet": Model("GatedDeltaNet"),
        **{f"DeltaProduct{n}": Model("DeltaProduct", {"num_householders": n}) for n in products},
        "Mamba": Model("Mamba"),
        "Mamba2": Model("Mamba2", {"d_state": 64}),
        "SLSTM": Model("SLSTM", ranges=(None,)),
        "Attention": Model("Attention", ranges=(None,)),
    }
    if task in CONTROLS:
        found["DeltaNetLearnt"] = Model("DeltaNet", {"learn_range": True}, ranges=(SIGNED,))
        found["DeltaNetStarted"] = Model("DeltaNet", {"beta_start": 0.5}, ranges=(SIGNED,))
    elif task == "cube":
        stretched = {"num_householders": 6, "beta_stretch": 1.0}
        found["DeltaProduct6Stretched"] = Model("DeltaProduct", stretched)
    else:
        found["DeltaNetStretched"] = Model("DeltaNet", {"beta_stretch": 1.0})
    if task in THEN_WINDOWS:
        first, windows = THEN_WINDOWS[task]
        found[f"{first}ThenWindows"] = dataclasses.replace(found[first], then=windows)
    return found


def cell(scale: Scale, task: str, model: str, between: Range | None) -> list[RunConfig]:
    """The runs of one task, model and range: its seeds, at the paper's scale with three rates.

    Those that go on do so from the rate of the quick scale.
    """
    known = models(task)
    if task not in RECIPES or model not in known:
        raise ValueError(
            f"there is no {task!r} with {model!r}; tasks are {', '.join(RECIPES)}, models "
            f"{', '.join(known)}"
        )
    recipe, layer, ranges = RECIPES[task], known[model].layer, known[model].ranges
    if between not in ranges:
        raise ValueError(f"{model} is trained on {task} with {ranges}, not with {between}")
    options = {**known[model].options, **(recipe.options if layer in DELTA else {})}
    if layer == "GatedDeltaNet":
        options.pop("qk_silu", None)  # it always has SiLU
    long = scale == "paper"
    steps = LONGER * recipe.steps if long else recipe.steps
    runs = [
        tagging_run(
            task,
            layer,
            d_model=recipe.d_model,
            num_layers=recipe.layers,
            options=options | ({} if between is None else {"eigen_range": between}),
            block=recipe.block,
            steps=steps,
            batch=recipe.batch,
            lr=rate,
            weight_decay=0.0,
            clip_norm=1.0,
            schedule=STAYING if long else USUALLY,
            evaluation=evaluation(task, layer, size=256, every=steps // EVALUATIONS),
            precision="bf16",
            seed=seed,
            log_every=250,
            checkpoint_every=2500,
        )
        for rate in (RATES if long else (recipe.rate,))
        for seed in recipe.seeds
    ]
    runs = [_smoke(runs[0])] if scale == "smoke" else runs
    then = known[model].then
    if then is None:
        return runs
    steps = {"smoke": 4, "quick": then.steps, "paper": LONGER * then.steps}[scale]
    return [in_windows(one, then, steps) for one in runs if one.optimizer.lr == recipe.rate]


def in_windows(first: RunConfig, then: Windows, steps: int) -> RunConfig:
    """The run that goes on where `first` has ended, on longer sequences than that has seen."""
    shortest, longest = first.train_lengths
    every = steps // EVALUATIONS
    return dataclasses.replace(
        first,
        start=first.fingerprint,
        lengths=(shortest, TIMES * longest),
        window=then.window,
        steps=steps,
        data_seed=first.seed + 100,
        optimizer=dataclasses.replace(first.optimizer, lr=then.rate),
        evaluation=dataclasses.replace(first.evaluation, every=every),
        log_every=max(1, every // 5),
        checkpoint_every=every,
    )


def evaluation(task: str, layer: str, *, size: int, every: int) -> EvaluationConfig:
    """The validation set at the greatest length alone, the test set up to it."""
    known, recipe = tasks.get(task), RECIPES[task]
    longest = recipe.times * known.train_lengths.max
    batch = EVALUATION_BATCH
    if layer == "Attention":
        batch = max(1, min(batch, EVALUATION_SCORES // known.num_tokens(longest) ** 2))
    return EvaluationConfig(
        every=every,
        size=size,
        lengths=(longest, longest),
        test_lengths=(known.train_lengths.min if recipe.from_start else longest, longest),
        batch=batch,
    )


def _smoke(config: RunConfig) -> RunConfig:
    longest = max(8, config.learns.shortest)
    return dataclasses.replace(
        shrink(config),
        lengths=(longest, longest),
        evaluation=EvaluationConfig(every=4, size=4, lengths=(2 * longest, 2 * longest)),
    )


def _experiment(name: str, summary: str, chosen: tuple[str, ...]) -> Experiment:
    def runs(scale: Scale, version: Version = "iclr") -> list[RunConfig]:
        found = []
        for task in chosen:
            # The smoke scale has every model once and every task once.
            small = scale == "smoke" and task != chosen[0]
            for name, model in models(task).items():
                if small and name != "DeltaNet":
                    continue
                for between in model.ranges:
                    found += cell(scale, task, name, between)
        return found

    return Experiment(name=name, summary=summary, runs=runs)


REPL = _experiment(
    "repl",
    "permutations as Python traces, with values shown and silent",
    tuple(task for task in RECIPES if task.startswith("repl")),
)
BOXES = _experiment(
    "boxes",
    "what a box contains after swaps, replacements and removals",
    ("boxes", "boxes_mixed", "boxes_no_swap"),
)
PUZZLES = _experiment(
    "puzzles",
    "the 2x2x2 cube and Lights Out: how many reflections a move needs",
    ("cube", "lights_out"),
)
RECALL = _experiment(
    "recall",
    "recall, flip-flop and copying, where negative eigenvalues should not matter",
    CONTROLS,
)
CHESS = _experiment("chess", "the exact position after every move of a random game", ("chess",))
APPLIED = (REPL, BOXES, PUZZLES, RECALL, CHESS)
