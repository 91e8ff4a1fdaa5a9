"""Swaps that may have happened: what can be known of the variables, and how well?

    python benchmarks/beliefs.py

A line of level 5 of `repl` swaps two variables with probability p, and nobody says whether it did.
What is known of a variable is then a probability for each value, and a line mixes those of two:
(1 - p) of itself and p of the other, which is the matrix I - 2p kkᵀ with k = (e_i - e_j)/√2, a step
of the delta rule with β = 2p. Printed are the loss and the accuracy of one who does exactly that,
on silent traces of the lengths of training and of sixteen times those; and the accuracy by how many
lines have named the printed variable.
"""

import argparse
import collections
import math
from collections.abc import Iterator

import torch

from statetrack import tasks

CASES = {"repl_5_p50_silent": 0.5, "repl_5_p75_silent": 0.75}
LENGTHS = ((8, 32), (512, 512))
NAMED = (0, 1, 2, 3, 4, 8)


def beliefs(lines: list[list[str]], p: float) -> Iterator[tuple[list[float], int]]:
    """What is known at each print, a probability for each value, and the lines that named it."""
    count = len(lines[0]) // 4  # `>>> x0 , ... = 2 , ...`
    known = {f"x{i}": [0.0] * count for i in range(count)}
    for name, value in zip(lines[0][1 : 2 * count : 2], lines[0][2 * count + 1 :: 2], strict=True):
        known[name][int(value)] = 1.0
    named = dict.fromkeys(known, 0)
    for line in lines[1:]:
        if line[1:2] == ["print"]:
            yield known[line[3]], named[line[3]]
        elif line[1:2] == ["if"]:
            i, j = line[6], line[8]
            both = list(zip(known[i], known[j], strict=True))
            known[i] = [(1 - p) * x + p * y for x, y in both]
            known[j] = [(1 - p) * y + p * x for x, y in both]
            named[i], named[j] = named[i] + 1, named[j] + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=4000, help="of the short ones; fewer long")
    chosen = parser.parse_args()
    after = " | ".join(map(str, NAMED))
    print(f"| p | statements | loss | accuracy | scaled | named {after} |", flush=True)
    for name, p in CASES.items():
        task = tasks.get(name)
        for low, high in LENGTHS:
            count = max(1, chosen.traces * LENGTHS[0][1] // high)
            stream = torch.Generator().manual_seed(0)
            drawn = task.sample(count, high, min_length=low, generator=stream)
            loss, best = 0.0, collections.defaultdict[int, list[float]](list)
            for tokens in drawn.tokens.tolist():
                text = " ".join(task.token_names[token] for token in tokens)
                for known, times in beliefs([line.split() for line in text.split("\\n")], p):
                    loss -= sum(x * math.log(x) for x in known if x > 0)
                    best[times].append(max(known))
            total = sum(map(len, best.values()))
            accuracy = sum(map(sum, best.values())) / total
            shares = [f"{sum(best[n]) / len(best[n]):.3f}" if best[n] else "" for n in NAMED]
            print(
                f"| {p} | {low} to {high} | {loss / total:.4f} | {accuracy:.3f} "
                f"| {task.scaled_accuracy(accuracy):.3f} | {' | '.join(shares)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
