"""Runs a compiled network from network.npz, with numpy alone.

    python run.py WORD          the state after each letter, and what the machine says there

In Python: `Network("network.npz").run("abab")`, or letter by letter with `start` and `step`.
Every layer is H <- A H + B with A and B chosen by a symbol; tables lead from layer to layer.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

State = list[np.ndarray]


class Network:
    """A machine as layers of linear recurrences; it follows batches of words."""

    def __init__(self, path: str | Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        self.alphabet = [tuple(a) if isinstance(a, list) else a for a in about["alphabet"]]
        self.says: list[Any] = about["says"]
        count = 1 + max(int(name.partition(".")[0]) for name in arrays)
        self.layers: list[dict[str, Any]] = [{} for _ in range(count)]
        for name, array in arrays.items():
            layer, _, key = name.partition(".")
            self.layers[int(layer)][key] = array

    def start(self, batch: int = 1) -> State:
        """What the layers hold before the first letter."""
        return [np.repeat(layer["start"][None], batch, axis=0) for layer in self.layers]

    def step(self, letters: Any, held: State) -> tuple[np.ndarray, State]:
        """The machine's states after one letter (a number) of each word, and what is then held."""
        context, after = np.asarray(letters), []
        for layer, h in zip(self.layers, held, strict=True):
            symbol = layer["symbol"][context]
            h = layer["transition"][symbol] @ h + layer["add"][symbol]
            y = (layer["query"][symbol] @ h).reshape(len(h), -1)
            label = (y @ layer["readout"].T + layer["offset"][symbol]).argmax(axis=1)
            context = layer["after"][context, label]
            after.append(h)
        return context, after

    def run(self, word: Any) -> np.ndarray:
        """The state after each letter of a word (letters or their numbers), or of a batch."""
        if isinstance(word, str) or (len(word) and isinstance(word[0], str | tuple)):
            word = [self.alphabet.index(letter) for letter in word]
        words = np.atleast_2d(np.asarray(word, dtype=np.int64))
        states, held = np.empty_like(words), self.start(len(words))
        for time in range(words.shape[1]):
            states[:, time], held = self.step(words[:, time], held)
        return states if np.ndim(word) == 2 else states[0]


if __name__ == "__main__":
    network = Network(Path(__file__).with_name("network.npz"))
    for letter, state in zip(sys.argv[1], network.run(sys.argv[1]).tolist(), strict=True):
        print(f"{letter}  state {state}, says {network.says[state]}")
