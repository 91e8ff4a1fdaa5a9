"""Does [-1, 1] matter for language? Pairs of models that differ in the range alone.

    python -m statetrack.experiments.language study --shards shards --out runs/language

trains every model of `--models` with every seed, all of them resumable, and asks each as soon as it
is trained: its loss by position on the held-out text of every domain (loss.json in its folder),
the same loss once its eigenvalues may not be negative any more (clamped.json, if they could be),
which of its heads use negative eigenvalues (heads.json), and whether it tracks state in text, as it
is and after a short fine-tuning (probes.json). All answers together are language.json. What is
there already is neither trained nor asked again, so a call that was killed goes on, and one with
more seeds or models adds to what is there. `pack` puts all but the weights into one file, and
`keep` adds it to the results.
"""

import argparse
import dataclasses
import functools
import json
import shutil
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from statetrack import lm
from statetrack.experiments.language_control import can_be_negative, never_negative
from statetrack.experiments.language_heads import HeadSettings, held_out, look_at_heads
from statetrack.experiments.language_probes import (
    GENERATED,
    PROBES,
    ProbeSettings,
    ask,
    ask_generated,
)
from statetrack.experiments.summary import LANGUAGE
from statetrack.lm import Manifest, PretrainConfig, PretrainEvaluationConfig
from statetrack.lm.corpus import gather
from statetrack.lm.recipes import pretrain_config
from statetrack.lm.shards import Part
from statetrack.models import CausalLM
from statetrack.runs.archive import store
from statetrack.runs.files import read_json, write_atomically
from statetrack.runs.folder import CONFIG, DONE, INFO, RECORDS, Run, run_folders
from statetrack.runs.labels import eigen_range, model_label
from statetrack.sweep import Progress, run_many
from statetrack.training.precision import autocast

__all__ = ["ANSWERS", "MODELS", "TIMES", "configs", "evaluate", "table"]

USUAL, EXTENDED = (0.0, 1.0), (-1.0, 1.0)
MODELS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "pair": (("DeltaNet", {"eigen_range": USUAL}), ("DeltaNet", {"eigen_range": EXTENDED})),
    "control": (
        ("CappedDeltaNet", {}),
        ("DeltaNet", {"eigen_range": EXTENDED, "learn_range": True}),
        ("CappedGLA", {}),
        ("CappedGatedDeltaNet", {}),
        ("GatedDeltaNet", {"eigen_range": EXTENDED, "learn_range": True}),
    ),
    "more": (
        *(
            (name, {"eigen_range": ends})
            for name in ("Mamba", "GatedDeltaNet", "GLA")
            for ends in (USUAL, EXTENDED)
        ),
        *(
            ("DeltaProduct", {"num_householders": 2, "eigen_range": ends})
            for ends in (USUAL, EXTENDED)
        ),
        ("Attention", {}),
    ),
    "start": tuple(
        (name, options | {"eigen_range": EXTENDED, "beta_start": 0.5})
        for name, options in (
            ("DeltaNet", {}),
            ("GatedDeltaNet", {}),
            ("DeltaProduct", {"num_householders": 2}),
        )
    ),
}
"""Which layers, and their options; `pair` is the question, `control` tells the sign from start and
speed of β and of gates (capped ones have these without the sign, some learn their range from [0, 1]
on), `more` is around them, and `start` has models of [-1, 1] whose β begins where that of [0, 1]
does."""

HELD_OUT = (
    "code/linux-source-6.1/fs",
    "code/twisted",
    "math/metamath-databases/nf",
    "prose/linux-source-6.1/Documentation/filesystems",
)
"""Projects that no model is trained on."""

MOST_MB = 100.0
"""Of every package that is read: 0.3 GB of text in all, 97M tokens to train on."""
TIMES = 16
"""How much longer the longest windows are than those trained on."""
TABLE = "language.json"
ANSWERS = {name: f"{name}.json" for name in ("loss", "clamped", "heads", "probes")}
"""What a trained model may be asked, and the file in its folder that has the answer."""
PROBE = ProbeSettings()
"""How models are probed, but for what the command line says."""
WEIGHTS = "not kept: a model of 60M is 240 MB; the same command trains it again"


def configs(
    shards: Path | str,
    *,
    size: str = "60M",
    models: str = "pair",
    tokens: float = 0.5e9,
    seeds: Sequence[int] = (0, 1, 2),
    lr: float | None = None,
    **changes: Any,
) -> list[PretrainConfig]:
    """One run for every seed and model: the same text in the same order for both ranges.

    All models of a seed come before the next seed, so that a study cut short has whole pairs.
    """
    if models not in MODELS:
        raise ValueError(f"models={models!r} must be one of {', '.join(MODELS)}")
    found = []
    for seed in seeds:
        for mixer, options in MODELS[models]:
            one = pretrain_config(shards, size, mixer, mixer_options=options, lr=lr, **changes)
            steps = max(1, round(tokens / (one.batch * one.length)))
            found.append(
                pretrain_config(
                    shards,
                    size,
                    mixer,
                    mixer_options=options,
                    lr=lr,
                    **(changes | {"steps": steps, "seed": seed, "data_seed": seed}),
                )
            )
    return found


# -- loss by position ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """Windows of held-out text, each read from an empty state.

    Attributes:
        length: that of training; `short` windows have it, the `long` ones `TIMES` that.
        short, long: how many of them at most, of every domain.
    """

    length: int
    short: int = 256
    long: int = 32


def evaluate(
    model: CausalLM, manifest: Manifest, settings: LossSettings, *, precision: str = "fp32"
) -> dict[str, Any]:
    """Loss by position on the held-out text of every domain: plain JSON types.

    The loss of every window by itself is told too, in ranges of positions that end at `length`,
    twice that, and so on: it is the same text for every model, so that two models are compared
    window by window.
    """
    length = settings.length
    device = model.embedding.weight.device
    found: dict[str, Any] = {}
    for domain in manifest.domains("validation"):
        part = Part(manifest, "validation", domain)
        answers: dict[str, Any] = {}
        for name, times, most in (("short", 1, settings.short), ("long", TIMES, settings.long)):
            # with one token more, so that so many are predicted
            texts = [torch.from_numpy(row) for row in part.windows(times * length + 1, most)]
            if not texts:
                continue
            with autocast(device, precision):
                losses = lm.read_losses(
                    model,
                    texts,
                    bin_size=max(1, length // 8),
                    chunk=length,
                    batch=32,
                )
            ends = [length * 2**i for i in range(times.bit_length())]
            answers[name] = losses.summary().to_dict() | {
                "windows": {
                    str(end): _rounded(losses.means(0 if end == length else end // 2, end))
                    for end in ends
                }
            }
        if answers:
            found[domain] = answers
    return found


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 5) for value in values]


# -- the study ----------------------------------------------------------------------------------


def study(arguments: argparse.Namespace) -> int:
    """Trains and asks, one model after the other; the exit code."""
    batch = {} if arguments.batch is None else {"batch": arguments.batch}
    first = configs(
        arguments.shards, size=arguments.size, tokens=arguments.tokens, seeds=(0,), **batch
    )[0]
    eighth = max(10, round(first.steps / 80) * 10)
    planned = configs(
        arguments.shards,
        size=arguments.size,
        models=arguments.models,
        tokens=arguments.tokens,
        seeds=arguments.seeds,
        lr=arguments.lr,
        warmup=arguments.warmup,
        evaluation=PretrainEvaluationConfig(every=2 * eighth),
        checkpoint_every=eighth,
        micro_batch=arguments.micro_batch,
        compile=arguments.compile,
        **batch,
    )
    names = [model_label(config) for config in planned]
    chosen = _chosen(arguments.only or "", names)
    planned = [config for config, name in zip(planned, names, strict=True) if name in chosen]
    if not planned:
        known = ", ".join(dict.fromkeys(names))
        said = f"--models {arguments.models} has no model with {arguments.only!r} in its name"
        print(f"{said}; there are {known}", file=sys.stderr)
        return 2
    out = Path(arguments.out)
    failed = 0
    for config in planned:
        with Progress() as progress:
            sweep = run_many([config], out, workers=0, device=arguments.device, watch=progress)
        run = sweep.runs[0]
        if not run.finished:
            print(f"{run.folder} failed: {run.error}", file=sys.stderr)
            failed += 1
            continue
        failed += _ask(run, arguments, arguments.ask)
    _write_table(out)
    return 1 if failed else 0


def _chosen(only: str, names: Sequence[str]) -> set[str]:
    """The name that is `only`, or else those that contain it.

    >>> _chosen("DeltaNet learnt", ["DeltaNet learnt", "GatedDeltaNet learnt"])
    {'DeltaNet learnt'}
    """
    return {only} if only in names else {name for name in names if only in name}


def ask_all(arguments: argparse.Namespace) -> int:
    """Asks the trained models of a study; the exit code."""
    runs = [run for run in run_folders(arguments.out) if run.finished and run.has_weights]
    if not runs:
        raise ValueError(f"{arguments.out} has no trained model: `study` makes them")
    failed = sum(_ask(run, arguments, [arguments.question]) for run in runs)
    _write_table(Path(arguments.out))
    return 1 if failed else 0


def _ask(run: Run, arguments: argparse.Namespace, questions: Sequence[str]) -> int:
    """What was asked already is not asked again; how many questions failed."""
    failed: list[str] = []
    model: CausalLM | None = None
    for question in questions:
        if question == "clamped" and not can_be_negative(run.config):
            continue
        settings, answer = _question(question, run, arguments)
        path = run.folder / ANSWERS[question]
        if path.exists() and read_json(path)["settings"] == settings:
            continue
        if model is None:
            model = CausalLM.load(run.folder).to(arguments.device)
        begun = time.perf_counter()
        found = _attempt(functools.partial(answer, model, failed), question, failed)
        if found is None:
            continue
        seconds = round(time.perf_counter() - begun, 1)
        about = {"settings": settings, "precision": run.config.precision, "seconds": seconds}
        write_atomically(path, f"{json.dumps(about | found)}\n".encode())
        print(f"{run.folder.name} {model_label(run.config)}: {question} in {seconds} s", flush=True)
        _write_table(run.folder.parent)  # what is paid for is on the disk
    return len(failed)


Answer = dict[str, Any]


def _attempt(answer: Callable[[], Answer], what: str, failed: list[str]) -> Answer | None:
    """An answer that cannot be had costs no other: it is told, and the next is asked."""
    try:
        return answer()
    except Exception:
        print(f"{what} failed:", file=sys.stderr)
        traceback.print_exc()
        failed.append(what)
        return None


def _question(
    question: str, run: Run, arguments: argparse.Namespace
) -> tuple[dict[str, Any], Callable[[CausalLM, list[str]], Answer]]:
    """The settings of a question, and how it is answered; the second argument gets what failed."""
    config, precision = run.config, run.config.precision
    manifest = Manifest.read(arguments.shards)
    if question in ("loss", "clamped"):
        lengths = LossSettings(
            length=config.length, short=8 * arguments.windows, long=arguments.windows
        )

        def losses(model: CausalLM, failed: list[str]) -> Answer:
            with never_negative(model) if question == "clamped" else nullcontext():
                return {"domains": evaluate(model, manifest, lengths, precision=precision)}

        return vars(lengths), losses
    text = lm.load_text(run.folder)
    if question == "heads":
        heads = HeadSettings(length=config.length, windows=max(1, arguments.windows // 2))
        windows = held_out(manifest, heads)
        return vars(heads), lambda model, _: look_at_heads(
            model, text, windows, heads, end=manifest.end, precision=precision
        )
    probes = dataclasses.replace(PROBE, steps=arguments.probe_steps, lr=arguments.probe_lr)

    def probe_all(model: CausalLM, failed: list[str]) -> Answer:
        asks: dict[str, Callable[[], Answer]] = {
            name: functools.partial(ask, model, text, name, probes, precision=precision)
            for name in arguments.probes
        }
        asks |= {
            name: functools.partial(ask_generated, model, text, name, precision=precision)
            for name in GENERATED
        }
        found = {name: _attempt(one, f"probe {name}", failed) for name, one in asks.items()}
        return {"probes": {name: one for name, one in found.items() if one is not None}}

    return vars(probes) | {"probes": list(arguments.probes)}, probe_all


def table(out: Path | str) -> list[dict[str, Any]]:
    """A row for every finished model of a study that was asked something, by model and seed."""
    rows = []
    for run in run_folders(out):
        answers = {
            name: read_json(run.folder / file)
            for name, file in ANSWERS.items()
            if name != "heads" and (run.folder / file).exists()
        }
        if run.finished and answers:
            rows.append(_row(run) | answers)
    return sorted(rows, key=lambda row: (row["layer"], row["model"], row["lr"], row["seed"]))


def _row(run: Run) -> dict[str, Any]:
    config = run.config
    between = eigen_range(config)
    speeds = [
        record.value
        for record in run.records
        if (record.metric, record.split) == ("tokens_per_s", "machine")
    ]
    return {
        "model": model_label(config),
        "layer": model_label(config, with_range=False),
        "eigen_range": None if between is None else list(between),
        "parameters": run.info.get("parameters"),
        "seed": config.seed,
        "lr": config.optimizer.lr,
        "fingerprint": config.fingerprint,
        "text": config.data_sha256,
        "steps": config.steps,
        "batch": config.batch,
        "trained": config.length,
        "tokens": config.steps * config.batch * config.length,
        "validation_loss": run.last("loss"),
        "tokens_per_s": max(speeds, default=None),
        "weights": WEIGHTS,
    }


def _write_table(out: Path) -> None:
    rows = table(out)
    if rows:
        text = ",\n ".join(json.dumps(row) for row in rows)
        write_atomically(out / TABLE, f"[\n {text}\n]\n".encode())


# -- what is left of a study --------------------------------------------------------------------


def _small_files(out: Path) -> Iterator[Path]:
    """Everything but weights and checkpoints."""
    yield out / TABLE
    for run in run_folders(out):
        for name in (CONFIG, INFO, RECORDS, DONE, *ANSWERS.values()):
            if (run.folder / name).exists():
                yield run.folder / name


def pack(arguments: argparse.Namespace) -> int:
    """One .tar.xz with everything but the weights."""
    out = Path(arguments.out)
    _write_table(out)
    with tarfile.open(arguments.to, "w:xz") as tar:
        for path in _small_files(out):
            if path.exists():
                tar.add(path, arcname=f"{LANGUAGE}/{path.relative_to(out)}")
    size = Path(arguments.to).stat().st_size
    print(f"{arguments.to}: {size / 1e6:.2f} MB; weights are {WEIGHTS}")
    return 0


def keep(arguments: argparse.Namespace) -> int:
    """Adds the finished runs of a study, and what they were asked, to the results."""
    out, results = Path(arguments.out), Path(arguments.results) / LANGUAGE
    runs = [run for run in run_folders(out) if run.finished]
    if not runs:
        raise ValueError(f"{out} has no finished run")
    new = store(runs, results)
    for run in runs:
        for name in ANSWERS.values():
            if (run.folder / name).exists():
                to = results / Path(name).stem / f"{run.config.fingerprint}.json"
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run.folder / name, to)
    print(f"{results}: {len(new)} runs added, {len(runs) - len(new)} there already")
    return 0


# -- the command --------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m statetrack.experiments.language")
    commands = parser.add_subparsers(required=True)
    text = commands.add_parser("gather", help="text from packages, by domain")
    text.add_argument("--out", required=True)
    text.add_argument(
        "--most-mb",
        type=float,
        default=MOST_MB,
        help=f"of every package; {MOST_MB:g} is the text of the results",
    )
    text.set_defaults(do=_gather)
    tokens = commands.add_parser("tokenize", help="shards of what was gathered")
    tokens.add_argument("--text", required=True)
    tokens.add_argument("--out", required=True)
    tokens.add_argument("--workers", type=int)
    tokens.add_argument("--vocab-size", type=int, default=32_000)
    tokens.set_defaults(do=_tokenize)
    runs = commands.add_parser("study", help="train, and ask every model what there is to ask")
    runs.add_argument("--size", default="60M")
    runs.add_argument("--models", default="pair", choices=list(MODELS))
    runs.add_argument(
        "--only", help="only the model so named, or those with it in their names: 'GLA ['"
    )
    runs.add_argument("--tokens", type=float, default=0.5e9)
    runs.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    runs.add_argument("--lr", type=float)
    runs.add_argument(
        "--warmup",
        type=float,
        help="share of the steps in which the rate rises, if not the recipe's",
    )
    runs.add_argument("--batch", type=int, help="sequences a step, if not the recipe's")
    runs.add_argument("--micro-batch", type=int)
    runs.add_argument(
        "--compile",
        nargs="?",
        const="blocks",
        default="no",
        choices=("blocks", "step"),
        help="`step` also records a step as one CUDA graph",
    )
    runs.add_argument("--ask", nargs="*", choices=list(ANSWERS), default=list(ANSWERS))
    runs.set_defaults(do=study)
    asked = [runs]
    for question in ANSWERS:
        one = commands.add_parser(question, help=f"ask trained models again: {ANSWERS[question]}")
        one.set_defaults(do=ask_all, question=question)
        asked.append(one)
    for one in asked:
        one.add_argument("--shards", required=True)
        one.add_argument("--out", required=True)
        one.add_argument(
            "--windows", type=int, default=32, help=f"of {TIMES} times the training length"
        )
        one.add_argument("--probes", nargs="*", choices=PROBES, default=list(PROBES))
        one.add_argument("--probe-steps", type=int, default=PROBE.steps)
        one.add_argument("--probe-lr", type=float, default=PROBE.lr)
        one.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    packing = commands.add_parser("pack", help="all but the weights as one .tar.xz")
    packing.add_argument("--out", required=True, help="the folder of the study")
    packing.add_argument("--to", required=True)
    packing.set_defaults(do=pack)
    keeping = commands.add_parser("keep", help="add a study to the results")
    keeping.add_argument("--out", required=True, help="the folder of the study")
    keeping.add_argument("--results", default="results")
    keeping.set_defaults(do=keep)
    arguments = parser.parse_args(words)
    code: int = arguments.do(arguments)
    return code


def _gather(arguments: argparse.Namespace) -> int:
    gather(arguments.out, most_mb=arguments.most_mb, say=print)
    return 0


def _tokenize(arguments: argparse.Namespace) -> int:
    lm.tokenize(
        lm.sources_of(sorted(Path(arguments.text).glob("*.jsonl"))),
        arguments.out,
        vocab_size=arguments.vocab_size,
        hold_out=HELD_OUT,
        workers=arguments.workers,
        say=print,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
