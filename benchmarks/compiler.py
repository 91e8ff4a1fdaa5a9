"""CPU seconds of what docs/measurements/compiler.md says of large cascades, tokens and exports.

python benchmarks/compiler.py [--states 16 18]
python benchmarks/compiler.py --images        # image sets of random machines
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from statetrack.automata import Machine, drop_point, over_tokens, read
from statetrack.automata.limits import MAX_IMAGES
from statetrack.compiler import CompiledRNN, compile_program, save_numpy, save_onnx
from statetrack.compiler.from_cascade import program_of_cascade
from statetrack.compiler.numpy_runner import Network

EXPORTS = {
    "(a|b)*ab": "cascade",
    "mod_arithmetic": "cascade",
    "s5": "group",
    "cerny_6": "cascade",
    "q8": "diagonal",
}


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.process_time()
    return function(*arguments), time.process_time() - start


def near_permutations(states: int) -> Machine:
    """Two letters that are random permutations, but for one state."""
    rng = np.random.default_rng(0)
    letters = []
    for _ in range(2):
        letter = rng.permutation(states)
        first, second = rng.choice(states, 2, replace=False)
        letter[first] = letter[second]
        letters.append(letter)
    return Machine.from_table(np.array(letters).T)


def cascades(sizes: list[int]) -> None:
    for size in sizes:
        machine = near_permutations(size)
        cascade, first = timed(drop_point, machine)
        program, second = timed(program_of_cascade, cascade)
        network, third = timed(CompiledRNN.from_program, program)
        print(
            f"{machine.num_states} states, {cascade.num_contexts} contexts: cascade {first:.1f} s, "
            f"program {second:.1f} s, weights {third:.1f} s; {network.plan.cost}",
            flush=True,
        )


def random_machine(states: int, rng: np.random.Generator) -> Machine:
    """Two uniform letters; drawn again until every state can be reached."""
    while True:
        machine = Machine.from_table(rng.integers(0, states, (states, 2)))
        if machine.num_states == states:
            return machine


def images() -> None:
    """How many sets of states words leave."""
    rng = np.random.default_rng(0)
    for states in (10, 15, 20, 25, 30, 35, 40):
        found = sorted(
            len(reached_sets(random_machine(states, rng))) for _ in range(20 if states <= 30 else 8)
        )
        large = sum(count > MAX_IMAGES for count in found)
        middle = found[len(found) // 2]
        print(f"{states} states: {middle} and at most {found[-1]}; {large} of {len(found)} large")


def reached_sets(machine: Machine) -> set[int]:
    """As bits; without the bounds of `image_graph`."""
    letters = [[1 << target for target in column] for column in machine.delta.T.tolist()]
    found = {(1 << machine.num_states) - 1}
    queue = list(found)
    while queue:
        here = queue.pop()
        members = [state for state in range(machine.num_states) if here >> state & 1]
        for letter in letters:
            there = 0
            for state in members:
                there |= letter[state]
            if there not in found:
                found.add(there)
                queue.append(there)
    return found


def tokens() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 32_000)
    vocabulary = [bytes(rng.integers(97, 123, length).tolist()) for length in lengths]
    words = ["".join(map(chr, rng.integers(97, 105, 6))) for _ in range(300)]
    machine = Machine.from_regex("|".join(words), "abcdefghijklmnopqrstuvwxyz")
    found, seconds = timed(over_tokens, machine, vocabulary)
    print(f"{machine!r}: {found!r}, {seconds:.1f} s")


def exports() -> None:
    import onnxruntime

    for name, method in EXPORTS.items():
        machine = read(name)
        program = compile_program(machine, method)
        batch = np.random.default_rng(0).integers(0, machine.num_letters, (4, 2000))
        with tempfile.TemporaryDirectory() as folder:
            save_numpy(program, folder)
            save_onnx(program, folder)
            plain = Network(Path(folder) / "network.npz")
            graph = onnxruntime.InferenceSession(Path(folder) / "network.onnx")
            ours, first = timed(plain.run, batch)
            theirs, second = timed(graph.run, ["states"], {"tokens": batch})
            right = (ours == machine.run(batch)).all() and (theirs[0] == ours).all()
            sizes = [(Path(folder) / f"network.{end}").stat().st_size for end in ("npz", "onnx")]
        print(
            f"{name}, {method}: numpy {first:.2f} s, ONNX {second:.2f} s, {sizes} bytes, {right=}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--states", type=int, nargs="*", default=[16, 18])
    parser.add_argument("--images", action="store_true", help="count image sets, and nothing else")
    given = parser.parse_args()
    if given.images:
        images()
        return
    tokens()
    exports()
    cascades(given.states)


if __name__ == "__main__":
    main()
