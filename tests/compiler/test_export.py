"""Networks for elsewhere: arrays with a runner that needs numpy alone, and ONNX."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statetrack.automata import Machine, read
from statetrack.compiler import arrays_of, compile_program, save_numpy, save_onnx
from statetrack.compiler.numpy_runner import Network
from tests.helpers import mostly_slow
from tests.test_package import BLOCK

EVERY = [
    ("(a|b)*ab", "cascade"),
    ("mod_arithmetic", "auto"),
    ("q8", "diagonal"),
    ("s5", "auto"),
    ("(ab)*", "dense"),
    ("cerny_6", "cascade"),
    ("counter_60", "auto"),
    ("z7", "reflections"),
]
cases = pytest.mark.parametrize(("name", "method"), mostly_slow(EVERY, fast=EVERY[:5]))


def words(machine: Machine, time: int = 300) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, machine.num_letters, (3, time))


@cases
def test_numpy_files_run_as_the_machine(name: str, method: str, tmp_path: Path) -> None:
    machine = read(name)
    save_numpy(compile_program(machine, method), tmp_path)
    network = Network(tmp_path / "network.npz")
    batch = words(machine)
    assert (network.run(batch) == machine.run(batch)).all()
    assert (network.run(batch[0]) == machine.run(batch[0])).all()
    assert network.run([]).tolist() == []
    assert network.says == [machine.said(q) for q in range(machine.num_states)]


ALONE = """
BLOCKED = {"torch", "statetrack", "automata", "safetensors", "numba"}
BLOCK
import runpy
sys.argv = ["run.py", "abbab"]
runpy.run_path("run.py", run_name="__main__")
assert not BLOCKED & {name.split(".")[0] for name in sys.modules}
"""


def test_the_runner_needs_numpy_alone(tmp_path: Path) -> None:
    save_numpy(compile_program(read("(a|b)*ab"), "cascade"), tmp_path)
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE.replace("BLOCK\n", BLOCK)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()] == ["1,", "2,", "0,", "1,", "2,"]
    assert done.stdout.splitlines()[1] == "b  state 2, says True"
    with np.load(tmp_path / "network.npz", allow_pickle=False) as file:
        assert all(file[name].dtype.kind in "fiU" for name in file.files)


def test_letters_of_all_kinds(tmp_path: Path) -> None:
    for alphabet, word in (
        ([("x", 1), ("y", 2)], [("y", 2), ("x", 1)]),
        (["ab", "c"], ["c", "ab"]),
    ):
        machine = Machine.from_table([[0, 1], [1, 0]], alphabet=alphabet)
        save_numpy(compile_program(machine), tmp_path)
        assert Network(tmp_path / "network.npz").run(word).tolist() == machine.run(word).tolist()


@cases
def test_onnx_graphs_run_as_the_machine(name: str, method: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    machine = read(name)
    save_onnx(compile_program(machine, method), tmp_path)
    batch = words(machine)
    wanted = machine.run(batch)

    def session(file: str) -> Any:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        return runtime.InferenceSession(tmp_path / file, options)

    def run(graph: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        names = [output.name for output in graph.get_outputs()]
        return dict(zip(names, graph.run(names, inputs), strict=True))

    whole, step = session("network.onnx"), session("step.onnx")
    assert (run(whole, {"tokens": batch})["states"] == wanted).all()
    found = run(whole, {"tokens": batch[:, :9]})
    held = {key: value for key, value in found.items() if key.startswith("held")}
    for time in range(9, 20):
        found = run(step, {"tokens": batch[:, time], **held})
        assert (found["states"] == wanted[:, time]).all()
        held = {key: found[key.replace("held", "held_after")] for key in held}


def test_missing_onnx_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'statetrack\[onnx\]'"):
        save_onnx(compile_program(read("(ab)*")), "unused")


def test_arrays_are_bounded_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_program(read("s5"))
    monkeypatch.setattr("statetrack.compiler.arrays.MAX_PROGRAM", 1000)
    with pytest.raises(
        ValueError, match="too large: entries of a layer's transitions reached 4320"
    ):
        arrays_of(program)
