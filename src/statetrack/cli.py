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
    from statetrack.runs import Run
    from statetrack.training import RunConfig

__all__ = ["COMMANDS", "main"]

Scale = Literal["smoke", "quick", "paper"]
Version = Literal["shipped", "ran", "workshop", "iclr"]
Launcher = Literal["processes", "ray", "submitit"]


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
    from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig, ScheduleConfig

    if config is not None:
        chosen = _read_config(config)
    else:
        for name, value in (("width", width), ("layers", layers)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
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
    only: str = "",
    out: Path = Path("runs"),
    workers: int | None = None,
    device: str | None = None,
    launcher: Launcher = "processes",
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
    only
        Only the runs whose description, as --dry-run prints it, contains this: "parity DeltaNet".
    out
        The runs go to OUT/NAME-SCALE.
    workers
        Processes at a time; by default one per core, or two on a GPU, or as many as the cluster
        takes.
    device
        cpu or cuda; by default a GPU if there is one here.
    launcher
        Where the runs are trained: in processes here, or on a cluster whose machines all see OUT,
        through ray or through submitit (SLURM).
    dry_run
        Only say which runs there are.
    """
    from statetrack import experiments

    if name.lower().replace("_", "-") in (experiments.STATES, *experiments.STATES_ALIASES):
        return _states(out / "states")
    experiment = experiments.get(name)
    configs = [c for c in experiment.runs(scale, version) if only in _described(c)]
    if not configs:
        raise ValueError(f"no run of {experiment.name} has {only!r} in its description")
    folder = out / f"{experiment.name}-{scale}"
    if scale == "paper":
        folder = folder.with_name(f"{folder.name}-{version}")
    if dry_run:
        for config in configs:
            print(f"{config.fingerprint}  {_described(config)}")
        return 0
    chosen = _device(device, here=launcher == "processes")
    runs = _run_all(configs, folder, workers=workers, device=chosen, launcher=launcher)
    from statetrack.report.tables import group_runs, row

    _table(
        f"{experiment.name}: {experiment.metric.replace('_', ' ')} ({scale})",
        ["task", "model", "lr", "best", "median", "spread", "seeds"],
        [
            [
                line.task,
                line.model,
                _number(line.rate, "{:g}"),
                _number(line.best),
                _number(line.median),
                _number(line.spread),
                str(line.seeds) + (f" ({line.missing} missing)" if line.missing else ""),
            ]
            for line in map(row, group_runs(runs))
        ],
    )
    print(f"Records, configs and weights: {folder}/")
    return _failures(runs)


def report(
    *runs: Path,
    out: Path = Path("report.html"),
    plots: bool = False,
    markdown: Path | None = None,
) -> int:
    """One page about runs: table, curves, eigenvalues, configs, and what is missing.

    The page needs nothing beside itself: it opens without a network, on a phone, and prints. Its
    numbers are links to the records behind them, where it still lies as it did to the runs.

    Parameters
    ----------
    runs
        Run folders, or folders that hold some.
    out
        The page.
    plots
        Also write every plot as PNG and SVG, into a folder beside the page.
    markdown
        Also write the results page: every table of the paper, run or not, beside its numbers. RUNS
        is then the one folder that `statetrack reproduce --out` wrote to; it gets a summary.json.
    """
    from statetrack.report import read_runs, write_book, write_report

    if markdown is not None and len(runs) != 1:
        raise ValueError(f"--markdown is about one folder of results, not {len(runs)}")
    print(f"Report: {write_report(read_runs(runs), out, plots=plots)}")
    if markdown is not None:
        from statetrack.experiments.summary import plans

        page, summary, *pictures = write_book(plans(runs[0]), runs[0], markdown)
        print(f"Results: {page}, {summary} and {len(pictures)} pictures")
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
    from statetrack import automata, compiler

    print(compiler.explain(automata.read(machine, alphabet)))
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
    from statetrack import automata, compiler

    network = compiler.compile(automata.read(machine, alphabet), method)
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


def audit(
    *models: Path, plot: Path | None = None, device: str | None = None, longest: int = 16384
) -> int:
    """The eigenvalues of trained runs' or a compiled network's transitions.

    A run is also tested on words of 256 letters, then of twice as many, and so on; what is found is
    written to audit.json in its folder, for `statetrack report`.

    Parameters
    ----------
    models
        Run folders, folders that hold runs (then the best of every table cell), or folders that
        `statetrack compile` wrote.
    plot
        Also draw the spectrum, into this PNG or SVG file.
    device
        Where runs are tested: cpu or cuda; by default a GPU if there is one.
    longest
        The longest words to test runs on.
    """
    if not models:
        raise ValueError("give run folders, or a folder that `statetrack compile` wrote")
    if plot is not None and len(models) != 1:
        raise ValueError(f"--plot draws one model, not {len(models)}")
    for model in models:
        if (model / "compiled.json").exists():
            _audit_compiled(model, plot)
        else:
            _audit_runs(model, plot, _device(device), longest)
    return 0


def _audit_compiled(model: Path, plot: Path | None) -> None:
    from statetrack import analysis, compiler

    found = analysis.audit(compiler.CompiledRNN.load(model))
    print(found)
    if plot is not None:
        found.plot().savefig(plot, dpi=120)
        print(f"Spectrum: {plot}")


def _audit_runs(folder: Path, plot: Path | None, device: str, longest: int) -> None:
    from statetrack import analysis
    from statetrack.analysis.audit_file import AUDIT
    from statetrack.analysis.horizons import LENGTHS
    from statetrack.analysis.run_audit import words_of
    from statetrack.runs.labels import label

    lengths = [length for length in LENGTHS if length <= longest]
    if not lengths:
        raise ValueError(f"longest={longest} must be at least {LENGTHS[0]}")
    runs = analysis.to_audit(folder)
    if not runs:
        raise ValueError(
            f"{folder} is neither a run folder nor a compiled network, and holds no finished run "
            "with its weights"
        )
    if plot is not None and len(runs) != 1:
        raise ValueError(f"--plot draws one model; {folder} holds {len(runs)}")
    for run in runs:
        found = analysis.audit_run(run, lengths=lengths, device=device)
        print(f"{label(run.config)}, seed {run.config.seed}")
        for line in str(found).splitlines():
            print(f"  {line}")
        print(f"Audit: {run.folder / AUDIT}")
        if plot is not None:
            analysis.audit(run.model(), words_of(run, 1)[0]).plot().savefig(plot, dpi=120)
            print(f"Spectrum: {plot}")


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
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (cyclopts.CycloptsError, ValueError, OSError, ImportError, RuntimeError) as error:
        if debug:
            raise
        # A run that diverged is no mistake in the command.
        return _say(_one_line(error), 1 if type(error).__name__ == "NonFiniteLoss" else 2)
    except Exception as error:
        if debug:
            raise
        kind = type(error).__name__
        return _say(f"{kind}: {_one_line(error)} (not foreseen; --debug shows where)")


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


def _read_config(path: Path) -> "RunConfig":
    from statetrack.training import RunConfig

    try:
        return RunConfig.from_json(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is not the config of a run: {_one_line(error)}") from error


def _device(given: str | None, *, here: bool = True) -> str:
    """The device to train on; what the machines of a cluster have is not known here."""
    import torch

    if given is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = given.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdigit():
        raise ValueError(f"device={given!r} must be cpu or cuda")
    if here and kind == "cuda" and not torch.cuda.is_available():
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
    from statetrack.runs.labels import label
    from statetrack.runs.mirrors import TensorBoard, WeightsAndBiases
    from statetrack.runs.records import Sink
    from statetrack.sweep.progress import Progress
    from statetrack.training import run

    folder = out / config.fingerprint
    mirrors: list[Sink] = []
    if tensorboard:
        mirrors.append(TensorBoard(folder / "tensorboard"))
    if wandb is not None:
        mirrors.append(WeightsAndBiases(config, project=wandb, folder=out))
    out.mkdir(parents=True, exist_ok=True)  # a mistake in it is told before anything else
    with Progress() as progress:
        progress.begin([config], out)
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
    configs: "list[RunConfig]",
    folder: Path,
    *,
    workers: int | None,
    device: str,
    launcher: Launcher = "processes",
) -> "list[Run]":
    from statetrack.sweep import run_many
    from statetrack.sweep.progress import Progress

    with Progress() as progress:
        sweep = run_many(
            configs, folder, workers=workers, device=device, watch=progress, launcher=launcher
        )
    return sweep.runs


def _described(config: "RunConfig") -> str:
    """A run in one line."""
    from statetrack.runs.labels import label

    layers, rate = config.model.backbone.num_layers, config.optimizer.lr
    return (
        f"{label(config)}, {layers} layers, lr {rate:g}, {config.steps} steps, seed {config.seed}"
    )


def _failures(runs: "list[Run]") -> int:
    """Names the runs that did not finish; the exit code."""
    failed = [run for run in runs if not run.finished]
    for run in failed:
        reason = (run.error or "it was interrupted").strip().splitlines()[-1]
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
    from statetrack.runs.labels import model_label

    return model_label(run.config)


def _number(value: float | None, form: str = "{:z.3f}") -> str:
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
