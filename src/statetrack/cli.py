"""The command line: thin, and quick to start. Everything heavy is imported inside a command.

A new command is a function in `COMMANDS`; its signature and docstring are its options and help.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

if TYPE_CHECKING:
    from statetrack.training import Run, RunConfig

__all__ = ["COMMANDS", "main"]

Scale = Literal["smoke", "quick", "paper"]
Version = Literal["shipped", "ran", "workshop", "iclr"]


def demo(*, seed: int = 0, out: Path = Path("demo"), workers: int = 2) -> int:
    """Parity with DeltaNet and Mamba, eigenvalues in [0, 1] and in [-1, 1].

    Four models learn parity from words of up to 40 and are tested on words of up to 256, on two
    CPU cores. Ends in a table, a picture and OUT/report.html; the numbers are in the folder OUT.

    Parameters
    ----------
    seed
        Of the weights and of the training data.
    out
        Where the runs go; those that are there already are not trained again.
    workers
        How many models to train at a time.
    """
    from statetrack.experiments import demo as recipe
    from statetrack.experiments.picture import bars

    runs = _run_all(recipe.demo(seed), out, workers=workers, device="cpu")
    trained, tested = recipe.TRAINED_TO, recipe.TESTED_TO
    rows = []
    for run in runs:
        curve = recipe.scaled_curve(run)
        within = [value for length, value in curve.items() if length < trained]
        rows.append(
            [
                _model_of(run),
                _number(sum(within) / len(within) if within else None),
                _number(run.last("scaled_accuracy")),
                _number(run.info.get("wall_s"), "{:.0f} s"),
            ]
        )
    _table(
        "Parity: scaled accuracy (0 is a guess, 1 a solution)",
        ["model", f"up to {trained}", f"{trained + 1} to {tested}", "time"],
        rows,
    )
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    width = 64
    mark = round(width * trained / tested)
    for run in runs:
        print(f"\n{_model_of(run)}")
        for line in bars(recipe.scaled_curve(run), longest=tested, unicode=unicode, width=width):
            print(f"  |{line}|")
        print(f"  +{'-' * mark}^{'-' * (width - mark - 1)}+")
    print(f"   length 1 to {tested}; ^ is {trained}, the longest word trained on")
    print(
        "\nTrained with the parity asked after every bit (task parity_dense), judged by the answer "
        f"after the last.\nRecords, configs and weights: {out}/"
    )
    from statetrack.report import write_report

    try:
        print(f"Report: {write_report(runs, out / 'report.html')}")
    except ImportError as error:
        print(f"No report: {_one_line(error)}")
    return _failures(runs)


def train(
    *,
    task: str = "parity",
    model: str = "DeltaNet",
    eigen_range: tuple[float, float] | None = None,
    option: Annotated[list[str] | None, "options"] = None,
    width: int = 128,
    layers: int = 2,
    steps: int = 10_000,
    batch: int = 256,
    lengths: tuple[int, int] | None = None,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    warmup: float = 0.1,
    clip_norm: float | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    eval_every: int = 200,
    eval_size: int = 8192,
    eval_lengths: tuple[int, int] | None = None,
    stop_at: float | None = None,
    seed: int = 0,
    config: Path | None = None,
    out: Path = Path("runs"),
    device: str | None = None,
    tensorboard: bool = False,
    wandb: str | None = None,
) -> int:
    """Train one model on one task, in a folder named by its configuration.

    A run that is there already is not trained again, one that was interrupted goes on.

    Parameters
    ----------
    task
        See `statetrack tasks`; groups (a5_x_z2) and regular expressions ('regex:(a|b)*ab') too.
    model
        See `statetrack models`.
    eigen_range
        The range of the transition's eigenvalues, as in -1 1 or 0 1; by default the layer's own.
    option
        An option of the layer, as in num_heads=2; may be repeated.
    width, layers
        Of the model.
    lengths
        Training lengths, from and to; by default the task's.
    warmup
        Share of the steps in which the learning rate rises.
    clip_norm
        Bound on the norm of the gradient.
    stop_at
        End when the validation score reaches this.
    config
        A config.json of another run, instead of all of the above.
    out
        Where run folders go.
    device
        cpu or cuda; by default a GPU if there is one.
    tensorboard
        Also write TensorBoard events into the run folder.
    wandb
        Also log to this Weights & Biases project.
    """
    from statetrack import tasks
    from statetrack.layers import registry
    from statetrack.models import paper_config
    from statetrack.training import (
        EvaluationConfig,
        OptimizerConfig,
        RunConfig,
        ScheduleConfig,
    )

    if config is not None:
        chosen = RunConfig.from_json(config.read_text())
    else:
        alphabet = tasks.get(task)
        layer = registry.get(model)
        options = _layer_options(option or [])
        if eigen_range is not None:
            options["eigen_range"] = eigen_range
        log_every = min(50, eval_every)
        chosen = RunConfig(
            task=task,
            model=paper_config(
                layer.__name__,
                vocab_size=alphabet.vocab_size,
                num_classes=alphabet.num_classes,
                d_model=width,
                num_layers=layers,
                **options,
            ),
            steps=steps,
            batch=batch,
            lengths=lengths,
            optimizer=OptimizerConfig(
                lr=lr,
                weight_decay=weight_decay,
                clip_norm=clip_norm,
                decay="matrices" if layer.__name__ in ("MLSTM", "SLSTM") else "all_but_state",
            ),
            schedule=ScheduleConfig(warmup=warmup),
            evaluation=EvaluationConfig(every=eval_every, size=eval_size, lengths=eval_lengths),
            precision=precision,
            stop_at=stop_at,
            seed=seed,
            data_seed=seed,
            log_every=log_every,
            checkpoint_every=20 * log_every,
        )
    return _train_one(chosen, out, _device(device), tensorboard=tensorboard, wandb=wandb)


def reproduce(
    name: str,
    *,
    scale: Scale = "smoke",
    version: Version = "iclr",
    out: Path = Path("runs"),
    workers: int | None = None,
    device: str | None = None,
    dry_run: bool = False,
) -> int:
    """Run one of the paper's figures or tables, or one beyond it.

    parity-diagonal (figure 1), states (figure 2), chomsky (table 3), s5 (figure 3), z60
    (figure 6), signed-gates, householders.

    Parameters
    ----------
    scale
        smoke proves that it runs, quick says something true within an hour on one GPU, paper is the
        paper's protocol.
    version
        Whose word counts where the paper's versions differ: the published code (shipped), the
        same with the steps and batches it really ran (ran), the first text (workshop) or the
        final one (iclr).
    out
        The runs go to OUT/NAME-SCALE.
    workers
        Runs at a time; by default one per core, or one on a GPU.
    device
        cpu or cuda; by default a GPU if there is one.
    dry_run
        Only say which runs there are.
    """
    from statetrack import experiments

    if name.lower().replace("_", "-") in (experiments.STATES, *experiments.STATES_ALIASES):
        return _states(out / "states")
    experiment = experiments.get(name)
    configs = experiment.runs(scale, version)
    folder = out / f"{experiment.name}-{scale}"
    if scale == "paper":
        folder = folder.with_name(f"{folder.name}-{version}")
    if dry_run:
        from statetrack.training.progress import label

        for config in configs:
            print(
                f"{config.fingerprint}  {label(config)}, {config.steps} steps, seed {config.seed}"
            )
        return 0
    runs = _run_all(configs, folder, workers=workers, device=_device(device))
    from statetrack.experiments.summary import cells

    shown = cells(runs, experiment.metric)
    _table(
        f"{experiment.name}: {experiment.metric.replace('_', ' ')} ({scale})",
        ["task", "model", "layers", "lr", "best", "median", "deviation", "seeds"],
        [
            [
                cell.task,
                cell.model,
                str(cell.layers),
                _number(cell.rate, "{:g}"),
                _number(cell.best),
                _number(cell.median),
                _number(cell.deviation),
                str(cell.seeds) + (f" ({cell.missing} missing)" if cell.missing else ""),
            ]
            for cell in shown
        ],
    )
    print(f"Records, configs and weights: {folder}/")
    return _failures(runs)


def report(*runs: Path, out: Path = Path("report.html"), plots: bool = False) -> int:
    """One page about runs: table, curves, eigenvalues, configs, and what is missing.

    The page needs nothing beside itself: it opens without a network, on a phone, and prints.

    Parameters
    ----------
    runs
        Run folders, or folders that hold some.
    out
        The page.
    plots
        Also write every plot as PNG and SVG, into a folder beside the page.
    """
    from statetrack.report import read_runs, write_report

    print(f"Report: {write_report(read_runs(runs), out, plots=plots)}")
    return 0


def explain(machine: str, *, alphabet: str | None = None) -> int:
    """Which linear RNNs can track a machine, which cannot, and why.

    Parameters
    ----------
    machine
        A regular expression ('(aa)*'), a name (s5, a5, z60, mod_arithmetic) or a JSON table.
    alphabet
        Of a regular expression; by default its own letters.
    """
    from statetrack import compiler

    print(compiler.explain(compiler.machine_from(machine, alphabet)))
    return 0


def compile(machine: str, *, out: Path, method: str = "auto", alphabet: str | None = None) -> int:
    """Turn a machine into an exact network: weights as safetensors, the rest as JSON.

    Parameters
    ----------
    machine
        A regular expression ('(a|b)*ab'), a name (s5, a5, z60, mod_arithmetic) or a JSON table.
    out
        The folder to write.
    method
        auto takes the cheapest; or group, one-layer, cascade, diagonal, dense, rotation,
        reflections.
    alphabet
        Of a regular expression; by default its own letters.
    """
    from statetrack import compiler

    network = compiler.compile(compiler.machine_from(machine, alphabet), method)
    network.save(out)
    checked = compiler.check(network)
    print(network)
    print(f"checked on random words: {checked}")
    print(f"Weights and tables: {out}/")
    return 1 if checked.errors else 0


def run(model: Path, *, word: str) -> int:
    """Read a word with a compiled network and show its states, level by level.

    Parameters
    ----------
    model
        A folder that `statetrack compile` wrote.
    word
        Letters of the machine's alphabet.
    """
    from statetrack.compiler import CompiledRNN

    network = CompiledRNN.load(model)
    print(network.trace(word))
    if network.machine.outputs.dtype == bool:
        print("accepted" if network.machine.accepts(word) else "rejected")
    return 0


def audit(model: Path, *, plot: Path | None = None) -> int:
    """The eigenvalues of a trained run's or a compiled network's transitions.

    Parameters
    ----------
    model
        A run folder, or a folder that `statetrack compile` wrote.
    plot
        Also draw the spectrum, into this PNG or SVG file.
    """
    from statetrack import compiler
    from statetrack.training import Run

    if (model / "compiled.json").exists():
        found = compiler.audit(compiler.CompiledRNN.load(model))
    elif (model / "config.json").exists():
        found = compiler.audit(Run(model).model())
    else:
        raise ValueError(f"{model} is neither a run folder nor a compiled network")
    print(found)
    if plot is not None:
        found.plot().savefig(plot, dpi=120)
        print(f"Spectrum: {plot}")
    return 0


def tasks() -> int:
    """What there is to learn, one line each."""
    from statetrack import tasks as known

    for name, summary in known.available().items():
        print(f"{name:32}{summary}")
    print("and any group (a5_x_z2), regular expression (regex:(a|b)*ab) or machine (machine:NAME)")
    return 0


def models() -> int:
    """The layers a model may be built from, one line each."""
    from statetrack.layers.registry import LAYERS

    for name, layer in LAYERS.items():
        first = (layer.__doc__ or "").strip().splitlines()[0]
        print(f"{name:16}{first}")
    return 0


COMMANDS: tuple[Callable[..., int], ...] = (
    demo,
    train,
    reproduce,
    report,
    explain,
    compile,
    run,
    audit,
    tasks,
    models,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. 0: it worked; 1: a run failed; 2: a mistake, told in one line."""
    # A cap, harmless elsewhere: some virtual CPUs advertise AMX and then trap on it.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        import cyclopts
    except ImportError:
        return _say("the command line needs cyclopts and rich: pip install 'statetrack[cli]'")
    app = _app()
    try:
        return int(
            app(words, exit_on_error=False, print_error=False, result_action="return_value") or 0
        )
    except KeyboardInterrupt:
        return _say("stopped; the same command goes on from the last checkpoint", 130)
    except (cyclopts.CycloptsError, ValueError, OSError, ImportError, RuntimeError) as error:
        if debug:
            raise
        # A run that diverged is no mistake in the command.
        return _say(_one_line(error), 1 if type(error).__name__ == "NonFiniteLoss" else 2)


def _app() -> Any:
    import cyclopts

    import statetrack

    app = cyclopts.App(
        name="statetrack",
        help="State tracking with linear RNNs. `--debug` shows the traceback of a mistake.",
        version=statetrack.__version__,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    for command in COMMANDS:
        app.command(command)
    app.register_install_completion_command()
    return app


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _say(message: str, code: int = 2) -> int:
    print(f"statetrack: {message}", file=sys.stderr)
    return code


def _device(given: str | None) -> str:
    import torch

    if given is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = torch.device(given).type
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but PyTorch sees no GPU here; take cpu")
    return given


def _layer_options(pairs: list[str]) -> dict[str, Any]:
    """`num_heads=2` -> {"num_heads": 2}; what is not JSON is text."""
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


def _train_one(
    config: "RunConfig", out: Path, device: str, *, tensorboard: bool, wandb: str | None
) -> int:
    from statetrack.experiments.picture import bars
    from statetrack.training import run
    from statetrack.training.mirrors import TensorBoard, WeightsAndBiases
    from statetrack.training.progress import Progress, label
    from statetrack.training.records import Sink

    folder = out / config.fingerprint
    mirrors: list[Sink] = []
    if tensorboard:
        mirrors.append(TensorBoard(folder / "tensorboard"))
    if wandb is not None:
        mirrors.append(WeightsAndBiases(config, project=wandb, folder=out))
    with Progress() as progress:
        finished = run(config, out, device=device, mirrors=mirrors, watcher=progress)
    print(label(config))
    for split in ("validation", "test"):
        for metric in ("accuracy", "scaled_accuracy", "sequence_accuracy"):
            value = finished.last(metric, split)
            if value is not None:
                print(f"  {split:12}{metric.replace('_', ' '):20}{value:.4f}")
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    curve = finished.curve()
    if curve:
        print(f"  test accuracy, lengths 1 to {max(curve)} (0 to 1):")
        for line in bars(curve, unicode=unicode):
            print(f"  |{line}|")
    print(f"Records, config and weights: {finished.folder}/")
    return 0


def _run_all(
    configs: "list[RunConfig]", folder: Path, *, workers: int | None, device: str
) -> "list[Run]":
    from statetrack.training import run_many
    from statetrack.training.progress import Progress

    with Progress(total_runs=len(configs)) as progress:
        return run_many(configs, folder, workers=workers, device=device, watch=progress).runs


def _failures(runs: "list[Run]") -> int:
    """Names the runs that did not finish; the exit code."""
    failed = [run for run in runs if not run.finished]
    for run in failed:
        reason = (run.error or "it was interrupted").strip().splitlines()[-1]
        print(f"statetrack: {run.folder} failed: {reason}", file=sys.stderr)
    return 1 if failed else 0


def _states(folder: Path) -> int:
    from statetrack.experiments.states import states
    from statetrack.training.files import write_json

    folder.mkdir(parents=True, exist_ok=True)
    trajectories = states()
    write_json(
        folder / "states.json",
        [{"label": t.label, "eigenvalue": t.eigenvalue, "states": t.states} for t in trajectories],
    )
    _table(
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


def _model_of(run: "Run") -> str:
    from statetrack.training.progress import model_label

    return model_label(run.config)


def _number(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)


def _table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Columns as wide as they need to be: numbers are never cut, whatever the terminal."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = [columns, ["-" * width for width in widths], *rows]
    print(title)
    for line in lines:
        cells = [
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())
