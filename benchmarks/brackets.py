"""What limits arithmetic with brackets: the length of a word, or how deep its brackets are?

    python benchmarks/brackets.py           # half a minute of one core; trains nothing
    python benchmarks/brackets.py --run runs/arithmetic-far-quick/FINGERPRINT      # a minute more

A model that is right on words nested at most d deep and guesses on all others would have a certain
accuracy at every length. That is counted for several d, beside the accuracy of the best run in
results/. If one d gives the whole curve, depth is what limits the model. A run whose weights are
there can be asked directly: its answers are sorted by depth and length at once.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from statetrack import tasks
from statetrack.runs import StoredRun, find_runs
from statetrack.runs.folder import run_at

TASK = "mod_arithmetic_brackets"
BINS = ((3, 40), (41, 60), (61, 80), (81, 100), (101, 120), (121, 140), (141, 160), (161, 254))
DEPTHS = (6, 7, 8, 9)
DEEPEST = 14
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
    return nested(task.sample(WORDS, high, min_length=low, generator=stream).tokens)


def nested(words: Tensor) -> Tensor:
    """How deep the brackets of each word go."""
    opened, closed = (words == tasks.get(TASK).token_names.index(name) for name in "()")
    return (opened.long() - closed.long()).cumsum(dim=1).amax(dim=1)


def by_depth(run: StoredRun, low: int, high: int) -> list[tuple[float, int]]:
    """The share of words of these lengths answered rightly, and how many words, by depth."""
    model, task, found = run.model(), tasks.get(TASK), []
    stream = tasks.generator(task, "test", seed=1)
    words = task.sample(WORDS, high, min_length=low, generator=stream)
    with torch.no_grad():
        for tokens in words.tokens.split(500):
            found.append(model(tokens)[0].argmax(dim=-1))
    right = ((torch.cat(found) == words.targets) & words.mask).any(dim=1)
    deep = nested(words.tokens)
    return [
        (right[deep == depth].float().mean().item(), int((deep == depth).sum()))
        for depth in range(1, DEEPEST + 1)
    ]


def print_by_depth(run: StoredRun) -> None:
    """Cells of fewer than 20 words are left empty."""
    print(f"{run.place}: scaled accuracy {run.last('scaled_accuracy'):.3f}; right at depth")
    print("lengths     " + "  ".join(f"{depth:5}" for depth in range(1, DEEPEST + 1)))
    for low, high in BINS:
        cells = [f"{share:.3f}" if n >= 20 else "     " for share, n in by_depth(run, low, high)]
        print(f"{low:3} to {high:3}  " + "  ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--run", type=Path, help="the folder of a run with weights")
    arguments = parser.parse_args()
    if arguments.run:
        print_by_depth(run_at(arguments.run))
        return
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
