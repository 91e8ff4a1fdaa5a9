"""The eigenvalues of what was trained or compiled."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statetrack.cli.options import by_name, choose_device

__all__ = ["audit"]

SHOWN_HEADS = 8
"""Of a language model: those that are below 0 most often."""
SHOWN_TOKENS = 4
"""Of such a head: those on which it is lowest."""


def audit(
    *models: Path,
    data: list[Path] | None = None,
    plot: Path | None = None,
    device: str | None = None,
    longest: int = 16384,
) -> int:
    """The eigenvalues of trained runs', a compiled network's or a language model's transitions.

    A run of a task is also tested on words of 256 letters, then of twice as many, and so on; what
    is found is written to audit.json in its folder, for `statetrack report`. Of a language model it
    says which heads have eigenvalues below 0, how often and on which tokens, and writes heads.json.

    Parameters
    ----------
    models
        Run folders, folders that hold runs (then the best of every table cell), folders of language
        models, or folders that `statetrack compile` wrote.
    data
        What a language model reads: text files, .jsonl files with a "text" in every line, or
        folders of them. By default the text that its run has held out.
    plot
        Also draw the spectrum, or the heads of a language model, into this PNG or SVG file.
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
            _expect_no_text(data, model)
            _audit_compiled(model, plot)
        elif _is_language_model(model):
            _audit_language(model, data or [], plot, choose_device(device))
        else:
            _audit_runs(model, data or [], plot, choose_device(device), longest)
    return 0


def _expect_no_text(data: list[Path] | None, folder: Path) -> None:
    if data:
        raise ValueError(f"--data is what a language model reads, and {folder} is none")


def _audit_compiled(model: Path, plot: Path | None) -> None:
    from statetrack import analysis, compiler

    found = analysis.audit(compiler.CompiledRNN.load(model))
    print(found)
    if plot is not None:
        found.plot().savefig(plot, dpi=120)
        print(f"Spectrum: {plot}")


def _audit_runs(
    folder: Path, data: list[Path], plot: Path | None, device: str, longest: int
) -> None:
    from statetrack import analysis
    from statetrack.analysis.horizons import LENGTHS
    from statetrack.analysis.run_audit import words_of
    from statetrack.runs.labels import label

    lengths = [length for length in LENGTHS if length <= longest]
    if not lengths:
        raise ValueError(f"longest={longest} must be at least {LENGTHS[0]}")
    runs = analysis.to_audit(folder)
    if not runs:
        raise ValueError(
            f"{folder} is neither a run folder nor a language model nor a compiled network, and "
            "holds no finished run with its weights"
        )
    if plot is not None and len(runs) != 1:
        raise ValueError(f"--plot draws one model; {folder} holds {len(runs)}")
    for run in runs:
        if run.config.KIND == "lm":
            _audit_language(run.folder, data, plot, device)
            continue
        _expect_no_text(data, run.folder)
        found = analysis.audit_run(run, lengths=lengths, device=device)
        print(f"{label(run.config)}, seed {run.config.seed}")
        for line in str(found).splitlines():
            print(f"  {line}")
        print(f"Audit: {run.audit_at}")
        if plot is not None:
            analysis.audit(run.model(), words_of(run, 1)[0]).plot().savefig(plot, dpi=120)
            print(f"Spectrum: {plot}")


# -- language models ----------------------------------------------------------------------------


def _is_language_model(folder: Path) -> bool:
    from statetrack.models.folder import CONFIG, MODEL_TYPE

    try:
        found = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("model_type") == MODEL_TYPE


def _audit_language(folder: Path, data: list[Path], plot: Path | None, device: str) -> None:
    """Which heads have negative eigenvalues, how often, and on which tokens."""
    from statetrack import lm
    from statetrack.experiments.language import ANSWERS
    from statetrack.experiments.language_heads import (
        HeadSettings,
        held_out,
        look_at_heads,
        windows_of,
    )
    from statetrack.models import CausalLM
    from statetrack.runs.files import write_atomically
    from statetrack.runs.folder import INFO, Run
    from statetrack.runs.labels import label

    run = Run(folder) if (folder / INFO).exists() else None
    settings, precision, called = HeadSettings(), "fp32", folder.name
    if run is not None:
        settings, precision = HeadSettings(length=run.config.length), run.config.precision
        called = f"{label(run.config)}, seed {run.config.seed}"
    model = CausalLM.load(folder).to(device)
    text = lm.load_text(folder, model)
    if data:
        end = text.end
        windows = {
            name: windows_of(lm.read_documents(path), text, settings)
            for name, path in by_name(data).items()
        }
    elif run is not None and run.config.validates:
        manifest = lm.Manifest.read(run.config.data)
        windows, end = held_out(manifest, settings), manifest.end
    else:
        raise ValueError(f"{folder} has no held-out text of its own: give text with --data")
    count = sum(len(row) for rows in windows.values() for row in rows)
    print(f"{called}: reading {count:,} tokens", file=sys.stderr, flush=True)
    found = look_at_heads(model, text, windows, settings, end=end, precision=precision)
    _tell_heads(called, found)
    path = folder / ANSWERS["heads"]
    read = {"data": list(map(str, data))} if data else {}
    kept = found | {"settings": found["settings"] | read, "precision": precision}
    write_atomically(path, f"{json.dumps(kept)}\n".encode())
    print(f"Heads: {path}")
    if plot is not None:
        _draw_heads(plot, called, found)


def _tell_heads(called: str, found: Mapping[str, Any]) -> None:
    from statetrack.cli.show import table

    read = ", ".join(f"{count:,} tokens of {name}" for name, count in found["tokens"].items())
    print(f"{called}, on {read}")
    if "all" not in found:
        print("  no layer of it has eigenvalues: attention and other non-linear layers have none")
        return
    every = found["all"]
    print(
        f"  lowest eigenvalue of A(x): {every['mean']:.3f} on average, {every['lowest']:.3f} at "
        f"least, below 0 on {every['below_0']:.1%} of tokens and heads, below -0.5 on "
        f"{every['below_half']:.1%}"
    )
    kinds = sorted(found["by_class"].items(), key=lambda item: -item[1]["below_0"])
    print("  below 0 by kind of token: ", end="")
    print(", ".join(f"{name} {one['below_0']:.1%}" for name, one in kinds))
    heads = sorted(found["heads"], key=lambda one: (-one["below_0"], one["mean"]))[:SHOWN_HEADS]
    rows = [
        [
            str(one["layer"]),
            str(one["head"]),
            f"{one['below_0']:.1%}",
            f"{one['below_half']:.1%}",
            f"{one['mean']:.3f}",
            " ".join(repr(each["token"]) for each in one["tokens"][:SHOWN_TOKENS]),
        ]
        for one in heads
    ]
    if rows:
        columns = ["layer", "head", "below 0", "below -0.5", "mean", "lowest on"]
        table("Heads that are below 0 most often:", columns, rows)


def _draw_heads(plot: Path, called: str, found: Mapping[str, Any]) -> None:
    from statetrack.report.language_figures import heads_picture

    picture = heads_picture("heads", found, called)
    if picture is None:
        print("No picture: there is no head to tell of by itself")
        return
    picture.figure.savefig(plot, dpi=120)
    print(f"Heads by layer: {plot}")
