"""The eigenvalues of what was trained or compiled."""

from pathlib import Path

from statetrack.cli.options import choose_device

__all__ = ["audit"]


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
            _audit_runs(model, plot, choose_device(device), longest)
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
        print(f"Audit: {run.audit_at}")
        if plot is not None:
            analysis.audit(run.model(), words_of(run, 1)[0]).plot().savefig(plot, dpi=120)
            print(f"Spectrum: {plot}")
