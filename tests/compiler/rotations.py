"""How far rotations drift: the angle of the last layer against the sum it should stand for.

Run as a script it prints the table of docs/measurements/compiler.md (two minutes on one core).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from statetrack.automata import groups
from statetrack.compiler import compile


@dataclass(frozen=True)
class Drift:
    """Largest angle error up to each length, in units of the margin π/m, and the first failure."""

    errors: dict[int, float]
    first_wrong: int | None


def drift(m: int, method: str, word: np.ndarray, dtype: torch.dtype, lengths: list[int]) -> Drift:
    """The network of `method` for addition modulo m on one word of residues."""
    network = compile(groups.cyclic(m), method).to(dtype)
    outputs: list[Tensor] = []
    last = list(network.stages)[-1].layer
    hook = last.register_forward_hook(lambda *call: outputs.append(call[2][0][0, :, :2].float()))
    states = network(torch.from_numpy(word)[None])[0].numpy()
    hook.remove()
    y = torch.cat(outputs)[-len(word) :].double().numpy()
    total = np.cumsum(word) % m
    angle = -np.arctan2(y[:, 1], y[:, 0]) - 2 * np.pi * total / m
    error = np.abs((angle + np.pi) % (2 * np.pi) - np.pi) / (np.pi / m)
    wrong = np.flatnonzero(states != total)
    return Drift(
        {length: float(error[:length].max()) for length in lengths},
        int(wrong[0]) if len(wrong) else None,
    )


def main() -> None:
    torch.set_num_threads(1)
    lengths = [10**3, 10**4, 10**5, 10**6]
    print("| m | method | dtype | word | 10^3 | 10^4 | 10^5 | 10^6 | first wrong |")
    print("|---|---|---|---|---|---|---|---|---|")
    for m in (3, 5, 7, 60):
        rng = np.random.default_rng(0)
        words = {"1 1 1 …": np.ones(10**6, dtype=np.int64), "random": rng.integers(0, m, 10**6)}
        for method in ("rotation", "reflections"):
            for dtype in (torch.float32, torch.bfloat16):
                for name, word in words.items():
                    found = drift(m, method, word, dtype, lengths)
                    cells = " | ".join(f"{found.errors[length]:.1e}" for length in lengths)
                    first = "never" if found.first_wrong is None else f"{found.first_wrong:,}"
                    kind = str(dtype).removeprefix("torch.")
                    print(f"| {m} | {method} | {kind} | {name} | {cells} | {first} |", flush=True)


if __name__ == "__main__":
    main()
