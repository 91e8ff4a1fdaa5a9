"""The demo, and the paper's figures and tables."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from statetrack.cli import show
from statetrack.cli.options import Flag, choose_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from statetrack.runs import Run
    from statetrack.training import RunConfig

__all__ = ["demo", "reproduce"]

Scale = Literal["smoke", "quick", "paper"]
Version = Literal["shipped", "ran", "workshop", "iclr"]
Launcher = Literal["processes", "ray", "submitit"]
SMOKE = {"smoke": "; NO RESULT: four steps of tiny models show only that it runs"}


def demo(*, seed: int = 0, out: Path = Path("demo"), workers: int = 2) -> int:
    """Parity with DeltaNet and Mamba, eigenvalues in [0, 1] and in [-1, 1].

    Four models learn parity from up to 39 bits and are tested on up to 255: about a minute on two
    CPU cores. Ends in a table, a picture and OUT/report.html; the numbers are in the folder OUT.

    Parameters
    ----------
    seed
        Of the weights and of the training data.
    out
        Where the runs go; those that are there already are not trained again.
    workers
        How many models to train at a time; 0 trains them in this process, one after the other.
    """
    from statetrack.experiments import demo as recipe
    from statetrack.report import write_report
    from statetrack.report.tables import in_training
    from statetrack.runs.labels import model_label

    runs = _run_all(recipe.demo(seed), out, workers=workers, device="cpu")
    trained, tested = recipe.TRAINED_BITS, recipe.TESTED_BITS
    show.table(
        "Parity: scaled accuracy (0 is a guess, 1 a solution), by number of bits",
        ["model", f"in training, to {trained}", f"{trained + 1} to {tested}", "time"],
        [
            [
                model_label(run.config),
                show.number(in_training(run)),
                show.number(run.last("scaled_accuracy")),
                show.number(run.info.get("wall_s"), "{:.0f} s"),
            ]
            for run in runs
        ],
    )
    width = 64
    mark = math.ceil(width * trained / tested) - 1
    for run in runs:
        print(f"\n{model_label(run.config)}")
        show.picture(recipe.scaled_curve(run), longest=tested, width=width)
        print(f"  +{'-' * mark}^{'-' * (width - mark - 1)}+")
    print(f"   1 to {tested} bits; ^ is {trained}, the most that were trained on")
    print(
        "\nTrained with the parity asked after every bit (task parity_dense), judged by the answer "
        f"after the last.\nRecords, configs and weights: {out}/"
    )
    try:
        print(f"Report: {write_report(runs, out / 'report.html')}")
    except ImportError as error:
        print(f"No report: {' '.join(str(error).split())}")
    return _failures(runs)


def reproduce(
    name: str | None = None,
    *,
    scale: Scale = "smoke",
    version: Version = "iclr",
    only: str | None = None,
    out: Path = Path("runs"),
    workers: int | None = None,
    device: str | None = None,
    launcher: Launcher = "processes",
    dry_run: Flag = False,
) -> int:
    """Run one of the paper's figures or tables, or one beyond it. Without NAME, list them.

    parity-diagonal (figure 1), states (figure 2), chomsky (table 3), s5 (figure 3), z60
    (figure 6), signed-gates, householders; beyond it parity-far, arithmetic-far, repl,
    boxes, puzzles, recall, chess.

    Parameters
    ----------
    name
        Its name, or what the paper calls it: table-3.
    scale
        smoke proves that it runs, quick says something true within an hour on one GPU, paper is the
        paper's protocol.
    version
        Whose word counts where the paper's versions differ: the published code (shipped), the
        same with the steps and batches it really ran (ran), the first text (workshop) or the
        final one (iclr).
    only
        Only the runs whose description, as --dry-run prints it, contains this: "parity DeltaNet";
        and those that they start from.
    out
        The runs go to OUT/NAME-SCALE.
    workers
        Processes at a time; by default one per core, or two on a GPU, or as many as the cluster
        takes. 0 trains in this process, one run after the other.
    device
        cpu or cuda; by default a GPU if there is one here.
    launcher
        Where the runs are trained: in processes here, or on a cluster whose machines all see OUT,
        through ray or through submitit (SLURM).
    dry_run
        Only say which runs there are.
    """
    from statetrack import experiments

    if name is None:
        return _list()
    if name.lower().replace("_", "-") in (experiments.STATES, *experiments.STATES_ALIASES):
        return _states(out / "states")
    experiment = experiments.get(name)
    from statetrack.report.cells import described

    plan = experiment.plan(scale, version)
    known = dict(zip(plan.configs, described(plan), strict=True))
    chosen = {config for config, said in known.items() if (only or "") in said}
    if not chosen:
        raise ValueError(f"no run of {experiment.name} has {only!r} in its description")
    folder, wanted = out / plan.folder, plan.with_parents(chosen)
    if dry_run:
        for config in wanted:
            why = "" if config in chosen else " (others start from it)"
            print(f"{config.fingerprint}  {known[config]}{why}")
        return 0
    where = choose_device(device, here=launcher == "processes")
    runs = _run_all(wanted, folder, workers=workers, device=where, launcher=launcher)
    from statetrack.report.tables import group_runs, row

    show.table(
        f"{experiment.name}: {experiment.metric.replace('_', ' ')} ({scale})"
        + SMOKE.get(scale, ""),
        ["task", "model", "lr", "best", "median", "spread", "seeds"],
        [
            [
                line.task,
                line.model,
                show.number(line.rate, "{:g}"),
                show.number(line.best),
                show.number(line.median),
                show.number(line.spread),
                str(line.seeds) + (f" ({line.missing} missing)" if line.missing else ""),
            ]
            for line in map(row, group_runs(runs))
        ],
    )
    print(f"Records, configs and weights: {folder}/")
    return _failures(runs)


def _list() -> int:
    """Every name, what the paper calls it, and one line about it."""
    from statetrack import experiments

    rows = [
        (one.name, one.aliases[0].replace("-", " ") if one.aliases else "", one.summary)
        for one in experiments.EXPERIMENTS.values()
    ]
    label = experiments.STATES_ALIASES[0].replace("-", " ")
    for name, paper, summary in [*rows, (experiments.STATES, label, experiments.STATES_SUMMARY)]:
        print(f"{name:17}{paper:10}{summary}")
    return 0


def _run_all(
    configs: "Sequence[RunConfig]",
    folder: Path,
    *,
    workers: int | None,
    device: str,
    launcher: Launcher = "processes",
) -> "list[Run]":
    from statetrack.sweep import run_many
    from statetrack.sweep.progress import Progress

    with Progress() as progress:
        try:
            sweep = run_many(
                configs, folder, workers=workers, device=device, watch=progress, launcher=launcher
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"stopped; finished runs and checkpoints stay in {folder}, and the same command "
                "goes on with them"
            ) from None
    return sweep.runs


def _failures(runs: "list[Run]") -> int:
    """Names the runs that did not finish; the exit code."""
    from statetrack.runs.errors import reason_of

    failed = [run for run in runs if not run.finished]
    for run in failed:
        reason = reason_of(run.error or "it was interrupted")
        print(f"statetrack: {run.folder} failed: {reason}", file=sys.stderr)
    return 1 if failed else 0


def _states(folder: Path) -> int:
    from statetrack.experiments.states import states
    from statetrack.runs.files import write_json

    folder.mkdir(parents=True, exist_ok=True)
    trajectories = states()
    write_json(
        folder / "states.json",
        [{"label": t.label, "eigenvalue": t.eigenvalue, "states": t.states} for t in trajectories],
    )
    show.table(
        "The state on 1111...: h_t = a h_{t-1} + b",
        ["recurrence", "t = 1, 2, 3, 4", "t = 61, 62, 63, 64", "last step"],
        [
            [
                t.label,
                " ".join(f"{state:.3g}" for state in t.states[:4]),
                " ".join(f"{state:.5g}" for state in t.states[-4:]),
                f"{t.gap:.2g}",
            ]
            for t in trajectories
        ],
    )
    print(f"All states: {folder / 'states.json'}")
    return 0
