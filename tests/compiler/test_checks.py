"""`check` and `prove`: what they accept, what they find, and what they refuse."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from statetrack.automata import Machine, groups, named
from statetrack.compiler import CompiledRNN, check, compile, prove
from tests.automata.cases import KINDS, random_machine
from tests.helpers import mostly_slow

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize(
    "name", ["s5", "mod_arithmetic", "z60", "dyck_2_depth_2", "t_5", "cerny_6", "s5_reset", "t_4"]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_step_by_step_is_exact_for_words_of_any_length(name: str, dtype: torch.dtype) -> None:
    proof = prove(compile(named(name)).to(dtype))
    assert proof.wrong is None
    assert proof.joint_states >= named(name).num_states


@pytest.mark.parametrize("name", ["parity", "q8", "dyck_1_depth_3"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_diagonal_networks_too(name: str, dtype: torch.dtype) -> None:
    assert prove(compile(named(name), "diagonal").to(dtype)).wrong is None


@pytest.mark.parametrize("count", mostly_slow([9, 40], fast=[9]))
def test_and_random_machines(count: int) -> None:
    rng = np.random.default_rng(5)
    for i in range(count):
        machine = random_machine(rng, 2 + i % 4, int(rng.integers(1, 4)), KINDS[i % 3])
        for method in ("auto", "cascade", "dense"):
            assert prove(compile(machine, method).to(DTYPES[i % 2])).wrong is None, machine.delta


def test_a_proof_counts_what_it_went_through() -> None:
    """Addition modulo 3 on 3 points: every letter from every state, and nothing else."""
    proof = prove(compile(groups.cyclic(3), "group"))
    assert (proof.layer_states, proof.steps, proof.joint_states) == ((3,), 9, 3)
    assert "words of any length" in str(proof)


def first_wrong(network: CompiledRNN, length: int) -> int | None:
    """The length of the shortest words that the network, letter by letter, gets wrong."""
    letters = np.indices([network.machine.num_letters] * length).reshape(length, -1).T
    state, wrong = None, []
    for t, column in enumerate(torch.from_numpy(letters).T):
        now, state = network.step(column, state)
        wrong.append((now.numpy() != network.machine.run(letters)[:, t]).any())
    return int(np.argmax(wrong)) + 1 if any(wrong) else None


def test_a_wrong_weight_is_found_with_a_shortest_word() -> None:
    network = compile(named("s5_points"))
    beta = network.stages[0].layer.beta_proj.weight.detach()
    beta[0, 0] += 1.0  # σ(65) is 1 like σ(64)
    assert prove(network).wrong is None
    beta[0, 0] = -256.0  # a swap that does nothing
    proof = prove(network)
    assert proof.wrong is not None and len(proof.wrong) == first_wrong(network, 6)
    assert f"wrong after the {len(proof.wrong)} letters" in str(proof)
    assert network.run(proof.wrong)[-1] != network.machine.run(proof.wrong)[-1]


def test_a_wrong_table_is_found() -> None:
    network = compile(named("cerny_4"))
    last = network.stages[-1]
    entry = (last.after >= 0).nonzero()[0]
    last.after[tuple(entry)] = (last.after[tuple(entry)] + 1) % 4
    assert prove(network).wrong is not None


def test_a_label_that_cannot_occur_is_wrong_even_if_a_table_hides_it() -> None:
    network = compile(named("cerny_4"))
    network.stages[0].after.fill_(-1)
    proof = prove(network)
    assert proof.wrong is not None and len(proof.wrong) == 1


def test_check_counts_what_only_the_proof_can_see() -> None:
    """A state that only a run of 14 letters a reaches: random words do not get there."""
    table = [[min(q + 1, 14), 0, 0] for q in range(15)]
    network = compile(Machine.from_table(table), "cascade")
    assert check(network).errors == 0
    last = network.stages[-1]
    last.after[last.after == 14] = 13
    found = check(network)
    assert found.proof is not None and found.proof.wrong == (0,) * 14
    assert found.errors == 1 and found.first_error == 13


@pytest.mark.parametrize("method", ["rotation", "reflections"])
def test_rotations_are_not_proved(method: str) -> None:
    network = compile(groups.cyclic(5), method)
    with pytest.raises(ValueError, match="too large: steps between states of layer"):
        prove(network, limit=2000)
    assert check(network).proof is None


def test_check_says_whether_it_proved_anything() -> None:
    assert "proved letter by letter" in str(check(compile(named("t_4"))))
    large = check(compile(named("cerny_8")))
    assert large.proof is None and large.errors == 0


# a process of its own, since the shape checks of a test run are far from free
STEPS = """
import numpy as np, torch
from statetrack.automata import named
from statetrack.compiler import compile

torch.set_num_threads(1)
network = compile(named("parity"))
words = np.random.default_rng(0).integers(0, 2, (200, 5_000))
expected = np.cumsum(words, axis=1) % 2
state, errors = None, 0
for t, letters in enumerate(torch.from_numpy(words).T):
    now, state = network.step(letters, state)
    errors += int((now.numpy() != expected[:, t]).sum())
print(errors)
"""


@pytest.mark.slow
def test_a_million_tokens_step_by_step() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]
