"""Finite machines: what can track them, exact networks, and what those do."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from statetrack.automata import Machine

__all__ = ["compile", "explain", "run"]

Objective = Literal["latency", "layers", "parameters", "flops"]


def explain(machine: str, *, alphabet: str | None = None, objective: Objective = "latency") -> int:
    """Which linear RNNs can track a machine, which cannot, and why.

    Parameters
    ----------
    machine
        A regular expression ('(aa)*'), a name (s5, a5, z60, mod_arithmetic), or a file: a JSON
        table or a DOT diagram.
    alphabet
        Of a regular expression; by default its own letters.
    objective
        What the cheapest network is cheap in.
    """
    from statetrack import compiler

    print(compiler.explain(_machine(machine, alphabet), objective=objective))
    return 0


def compile(
    machine: str,
    *,
    out: Path,
    method: str = "auto",
    alphabet: str | None = None,
    objective: Objective = "latency",
    minimise: bool = False,
    format: Literal["torch", "numpy", "onnx"] = "torch",
) -> int:
    """Turn a machine into an exact network: weights as safetensors, the rest as JSON.

    Parameters
    ----------
    machine
        A regular expression ('(a|b)*ab'), a name (s5, a5, z60, mod_arithmetic), or a file: a JSON
        table or a DOT diagram.
    out
        The folder to write.
    method
        auto takes the cheapest; or group, one-layer, cascade, diagonal, dense, rotation,
        reflections.
    alphabet
        Of a regular expression; by default its own letters.
    objective
        What cheap means: latency (steps that one token waits for), layers, parameters or flops.
    minimise
        Compile the smallest machine with the same outputs.
    format
        torch: layers of statetrack, for `statetrack run` and Python. numpy: a file of arrays with a
        small program that runs them, which needs numpy alone. onnx: one graph for other runtimes.
    """
    from statetrack import compiler

    if format != "torch":
        program = compiler.compile_program(
            _machine(machine, alphabet), method, objective=objective, minimise=minimise
        )
        save = compiler.save_numpy if format == "numpy" else compiler.save_onnx
        save(program, out)
        print(program)
        print(f"{'exact' if program.exact else 'not exact: rotations drift with length'}")
        print(f"Run it: python {out}/run.py WORD" if format == "numpy" else f"{out}/network.onnx")
        return 0
    network = compiler.compile(
        _machine(machine, alphabet), method, objective=objective, minimise=minimise
    )
    network.save(out)
    checked = compiler.check(network)
    print(network)
    print(f"checked on random words: {checked}")
    print(f"Weights and tables: {out}/")
    return 1 if checked.errors else 0


def run(model: Path, *, word: str) -> int:
    """Read a word with a compiled network and show its states, level by level.

    Parameters
    ----------
    model
        A folder that `statetrack compile` wrote.
    word
        Letters of the machine's alphabet.
    """
    from statetrack.compiler import CompiledRNN

    network = CompiledRNN.load(model)
    print(network.trace(word))
    if network.machine.outputs.dtype == bool:
        print("accepted" if network.machine.accepts(word) else "rejected")
    return 0


def _machine(text: str, alphabet: str | None) -> "Machine":
    """The machine that a person means."""
    from statetrack import automata

    return automata.read(text, alphabet)
