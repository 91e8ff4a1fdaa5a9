"""What limits arithmetic with brackets: the length of a word, or how deep its brackets are?

    python benchmarks/brackets.py           # half a minute of one core; trains nothing

A model that is right on words nested at most d deep and guesses on all others would have a certain
accuracy at every length. That is counted for several d, beside the accuracy of the best run in
results/. If one d gives the whole curve, depth is what limits the model.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from statetrack import tasks
from statetrack.runs import StoredRun, find_runs

TASK = "mod_arithmetic_brackets"
BINS = ((3, 40), (41, 60), (61, 80), (81, 100), (101, 120), (121, 140), (141, 160), (161, 254))
DEPTHS = (6, 7, 8, 9)
WORDS = 4000
RESULTS = Path(__file__).parents[1] / "results" / "chomsky-paper-iclr"


def best_of(results: Path) -> StoredRun:
    """The run with the best number on the task."""
    runs = [run for run in find_runs(results) if run.config.task == TASK]
    return max(runs, key=lambda run: run.last("scaled_accuracy") or -1.0)


def accuracy(run: StoredRun, low: int, high: int) -> float:
    """On the test words of these lengths."""
    rows = [
        row
        for row in run.records
        if row.split == "test" and row.metric == "accuracy" and not row.overall
        if row.length is not None and low <= row.length <= high
    ]
    counts = [row.count or 0 for row in rows]
    return sum(row.value * n for row, n in zip(rows, counts, strict=True)) / sum(counts)


def depths(low: int, high: int, seed: int = 0) -> Tensor:
    """How deep the brackets of so many words are nested."""
    task = tasks.get(TASK)
    stream = tasks.generator(task, "test", seed=seed)
    words = task.sample(WORDS, high, min_length=low, generator=stream).tokens
    opened, closed = (words == task.token_names.index(name) for name in "()")
    return (opened.long() - closed.long()).cumsum(dim=1).amax(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    run, guess = best_of(arguments.results), tasks.get(TASK).chance
    trained = depths(*tasks.get(TASK).train_lengths)
    share = [(trained == depth).float().mean().item() for depth in range(10)]
    print(f"{run.place}: scaled accuracy {run.last('scaled_accuracy'):.3f}")
    print("depths in training: " + ", ".join(f"{d}: {100 * x:.2f} %" for d, x in enumerate(share)))
    print("lengths     model  " + "  ".join(f"d = {depth}" for depth in DEPTHS))
    errors = torch.zeros(len(DEPTHS))
    for low, high in BINS:
        found, deep = accuracy(run, low, high), depths(low, high)
        right = [(deep <= depth).float().mean().item() for depth in DEPTHS]
        expected = [x + (1 - x) * guess for x in right]
        errors += torch.tensor([(x - found) ** 2 / len(BINS) for x in expected])
        print(f"{low:3} to {high:3}  {found:.3f}  " + "  ".join(f"{x:.3f}" for x in expected))
    print("root of the mean square  " + "  ".join(f"{x:.3f}" for x in errors.sqrt().tolist()))


if __name__ == "__main__":
    main()
