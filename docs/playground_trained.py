"""Writes the eigenvalues of trained models that the playground shows beside the exact ones.

make demo && .venv/bin/python docs/playground_trained.py

Reads the demo's runs of DeltaNet: parity with eigenvalues in [-1, 1] and in [0, 1].
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from statetrack import tasks
from statetrack.analysis.observe import observe
from statetrack.analysis.spectra import eigenvalues
from statetrack.automata import read
from statetrack.experiments.demo import TRAINED_TO
from statetrack.runs import Run, find_runs
from statetrack.runs.labels import eigen_range

ROOT = Path(__file__).parents[1]
OUT = ROOT / "src" / "statetrack" / "playground" / "trained.json"
APART = 0.02  # eigenvalues nearer to one another share a dot
NOTE = (
    "One layer each, trained on words of up to 40 with parity asked after every bit. On every "
    "bit the dots are the eigenvalues of A(x), larger where more are alike; the bar is the range "
    "that the layer was given, the black mark above it the eigenvalue of the exact program: 1 on "
    "reading 0, −1 on reading 1. A model that may not go below 0 cannot come near the mark."
)


def layer_of(run: Run) -> str:
    """The class of the one layer."""
    name: str = run.config.model.backbone.mixers[0].layer
    return name


def dots(values: Iterable[float]) -> list[dict[str, float]]:
    """Values that are nearly alike as one, with their share."""
    groups: list[list[float]] = []
    for value in sorted(values):
        if groups and value - groups[-1][0] < APART:
            groups[-1].append(value)
        else:
            groups.append([value])
    total = sum(map(len, groups))
    return [{"value": round(sum(g) / len(g), 3), "share": round(len(g) / total, 4)} for g in groups]


def accuracy(run: Run, first: int, last: int) -> dict[str, Any]:
    """The mean over lengths in bits."""
    curve = run.curve()
    found = [value for length, value in curve.items() if first <= length <= last]
    return {"lengths": f"{first} to {last} bits", "value": round(sum(found) / len(found), 4)}


def entry(run: Run) -> dict[str, Any]:
    """One run, as the page reads it."""
    task = tasks.get("parity")
    bits = {bit: task.token_names.index(bit) for bit in ("0", "1")}
    word = torch.tensor([bits["0"], bits["1"]] * 32)
    (layer,) = observe(run.model(), word)
    found = eigenvalues(layer.transitions())
    assert abs(found.imag).max() < 1e-9
    by_bit = {
        bit: found.real[(word == token).numpy()].reshape(-1).tolist() for bit, token in bits.items()
    }
    longest = max(run.curve())
    return {
        "model": layer_of(run),
        "eigen_range": list(eigen_range(run.config)),
        "lowest": round(min(by_bit["1"]), 6),
        "accuracy": [
            accuracy(run, min(run.curve()), TRAINED_TO - 1),
            accuracy(run, TRAINED_TO, longest),
        ],
        "eigenvalues": {bit: dots(values) for bit, values in by_bit.items()},
    }


def exact() -> dict[str, float]:
    """The eigenvalue on each bit of the program that `compile` takes for parity."""
    from statetrack.compiler import compile_program

    machine = read("parity")
    layer = compile_program(machine).stages[0].layer
    return {str(bit): float(layer.transition(bit)[0][0, 0]) for bit in machine.alphabet}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "demo"
    runs = [run for run in find_runs(folder) if run.finished and layer_of(run) == "DeltaNet"]
    if not runs:
        raise SystemExit(f"there are no finished runs in {folder}: run `make demo` first")
    entries = sorted(
        (entry(run) for run in runs), key=lambda one: (one["model"], one["eigen_range"])
    )
    content = {"task": "parity", "note": NOTE, "exact": exact(), "runs": entries}
    OUT.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"written to {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
