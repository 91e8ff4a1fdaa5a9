"""What a task is found by: names, machines, tables, specs, and what is refused."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from statetrack import tasks
from statetrack.automata import Machine, named, read
from statetrack.tasks import LengthRange, Task, _registry

from .oracles import APPLIED, draw

MACHINE = Machine.from_table([[1, 0], [2, 0], [2, 2]], accepting=[0, 2], alphabet="xy")
TABLE = {"delta": [[1, 0], [2, 0], [2, 2]], "accepting": [0, 2], "alphabet": "xy"}


def own(name: str = "mine") -> Task:
    """A task with a sampler that is not ours."""
    parity = tasks.get("parity")
    return dataclasses.replace(parity, name=name, summary="mine", sampler=parity.sampler)


def assert_equal(a: Task, b: Task) -> None:
    for field in dataclasses.fields(Task):
        if field.name not in ("sampler", "num_tokens"):
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    x, y = draw(a, 20, 30), draw(b, 20, 30)
    assert torch.equal(x.tokens, y.tokens) and torch.equal(x.targets, y.targets)


def test_available_says_what_each_task_is() -> None:
    lines = tasks.available()
    for name in ("parity", "parity_dense", "mod_arithmetic_brackets", "s5_4tokens", "a4_x_z5"):
        assert name in lines
    assert all(line and "\n" not in line and len(line) < 80 for line in lines.values())
    assert all(tasks.get(name).name == name for name in lines)
    assert len(set(lines.values())) == len(lines)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("pairty", "parity"),
        ("counter5", "counter_5"),
        ("mod_aritmetic", "mod_arithmetic"),
        ("", "`statetrack tasks` lists"),
    ],
)
def test_unknown_names_suggest_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"unknown task '{name}'.*{nearest}"):
        tasks.get(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s1", "nothing to track"),
        ("a5_swaps", "s5_swaps"),
        ("s5_1tokens", "2..64"),
        ("s9", "large"),
    ],
)
def test_groups_that_are_no_tasks(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tasks.get(name)


# -- one grammar --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("counter_5", "machine:counter_5"),
        ("machine:counter_5", "machine:counter_5"),
        (" Counter_5", "machine:counter_5"),
        ("dyck_2_depth_3", "machine:dyck_2_depth_3"),
        ("parity_x_z3", "machine:parity_x_z3"),
        ("machine:s3", "machine:s3"),
        ("S3", "s3"),
        ("Parity", "parity"),
        ("(a|b)*ab", "regex:(a|b)*ab"),
        ("regex:ab", "regex:ab"),
        ("regex:(aa)* over ab", "regex:(aa)* over ab"),
        ("(aa)* over ab", "regex:(aa)* over ab"),
    ],
)
def test_every_text_is_a_machine_by_one_grammar(text: str, name: str) -> None:
    task = tasks.get(text)
    assert task.name == task.spec == name
    assert task is tasks.get(name) is tasks.get(task)
    assert task.machine == read(text)


@pytest.mark.parametrize(
    "name", [*tasks.available(), "regex:(a|b)*ab", "counter_5", "q8", "s4_swaps", "s3_2tokens"]
)
def test_a_task_and_its_machine_say_the_same(name: str) -> None:
    """The answers are the outputs of the machine after the tokens that are letters of its own."""
    task = tasks.get(name)
    if task.machine is None:
        assert "brackets" in name or "tokens" in name or name in APPLIED
        return
    machine = task.machine
    if name in ("parity", "mod_arithmetic", "s5", "s5_swaps", "z60", "counter_5", "a4_x_z5"):
        assert machine == read(name)
    number = {str(letter): i for i, letter in enumerate(machine.alphabet)}
    said = ("reject", "accept") if machine.outputs.dtype == bool else None
    batch = draw(task, 20, 30)
    asked = 0
    for tokens, targets, mask in zip(batch.tokens, batch.targets, batch.mask, strict=True):
        state, names = 0, [task.token_names[token] for token in tokens.tolist()]
        for token, target, counts in zip(names, targets.tolist(), mask.tolist(), strict=True):
            if token in number:
                state = machine.delta[state, number[token]]
            if counts and token != "[BOS]":
                output = int(machine.outputs[state])
                assert task.class_names[target] == (said[output] if said else str(output))
                asked += 1
    assert asked >= 20
    marks = set(task.token_names) - set(number)
    assert marks >= {"PAD"} or marks >= {"[PAD]", "[BOS]"}


def test_the_alphabet_of_mod_arithmetic_is_its_machines_and_an_equals_sign() -> None:
    task = tasks.get("mod_arithmetic")
    assert set(task.token_names) == {*named("mod_arithmetic").alphabet, "=", "PAD"}


# -- machines, tables and specs -----------------------------------------------------------------


OPTIONS: dict[str, Any] = {
    "name": "mine",
    "dense": False,
    "balance": False,
    "sink_probability": 0.25,
    "train_lengths": LengthRange(2, 30),
    "eval_lengths": LengthRange(30, 50),
}


def test_a_machine_and_its_table_are_one_task(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(TABLE))
    by_file, by_machine = tasks.get(str(path)), tasks.get(MACHINE)
    assert by_file is by_machine is tasks.get(path) is tasks.get(f"machine:{path}")
    table = {"alphabet": ["x", "y"], "delta": TABLE["delta"], "outputs": [True, False, True]}
    assert by_file.spec == {"machine": table}
    assert_equal(by_file, tasks.from_machine(MACHINE))
    path.write_text(json.dumps([[0, 1], [1, 0]]))
    assert tasks.get(str(path)).machine == named("parity")  # the file as it is now


@pytest.mark.parametrize("given", [(), *((key,) for key in OPTIONS), tuple(OPTIONS)])
def test_a_spec_holds_the_options_that_were_given(given: tuple[str, ...]) -> None:
    task = tasks.from_machine(MACHINE, **{key: OPTIONS[key] for key in given})
    spec = task.spec
    assert isinstance(spec, dict) and set(spec) == {"machine", *given}
    assert_equal(tasks.get(json.loads(json.dumps(spec))), task)
    assert tasks.get(spec).spec == spec and tasks.get(task) is task


def test_a_spec_may_be_any_mapping() -> None:
    spec = tasks.from_machine(MACHINE, train_lengths=LengthRange(2, 30)).spec
    assert isinstance(spec, dict)
    frozen = MappingProxyType({**spec, "train_lengths": (2, 30)})
    assert tasks.get(frozen) is tasks.get(spec)


def test_specs_work_in_another_process() -> None:
    mine = [tasks.from_machine(MACHINE, dense=False), tasks.from_regex("(aa)*", "ab")]
    mine += [tasks.get(name) for name in ("parity", "s3_2tokens", "counter_5")]
    code = (
        "import json, sys\nfrom statetrack import tasks\n"
        "for spec in json.load(sys.stdin):\n"
        "    task = tasks.get(spec)\n"
        "    print(task.name, tasks.evaluation_set(task, 4).tokens.sum().item(), sep='\\t')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([task.spec for task in mine]),
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [f"{t.name}\t{tasks.evaluation_set(t, 4).tokens.sum().item()}" for t in mine]
    assert done.stdout.splitlines() == expected


def test_seeds_follow_the_task_and_not_the_spelling() -> None:
    for text in ("counter_5", "machine:counter_5", "COUNTER_5"):
        assert tasks.seed_of(text, "train", 3) == tasks.seed_of(tasks.get(text), "train", 3)
    assert tasks.seed_of("counter_5", "train", 0) == tasks.seed_of("machine:counter_5", "train", 0)


# -- tasks of users -----------------------------------------------------------------------------


def test_a_registered_task_is_known_by_its_name() -> None:
    task = own()
    with pytest.raises(ValueError, match="unknown task 'mine'"):
        tasks.get("mine")
    assert tasks.register(task) is task is tasks.register(task)
    assert tasks.get("mine") is task is tasks.get(task) is tasks.get(task.spec)
    assert tasks.available()["mine"] == "mine"
    assert tasks.seed_of("mine", "train", 0) == tasks.seed_of(task, "train", 0)
    with pytest.raises(ValueError, match="unknown task 'mien'; did you mean 'mine'?"):
        tasks.get("mien")


def test_asking_for_a_task_of_ones_own_registers_it() -> None:
    task = own()
    assert tasks.get(task) is task is tasks.get("mine")


def test_a_changed_task_of_ours_needs_another_name() -> None:
    """Its spec must not lead back to the one it was made from."""
    for task in (tasks.get("parity"), tasks.from_machine(MACHINE)):
        changed = dataclasses.replace(task, train_lengths=LengthRange(3, 5))
        assert changed.spec == task.name
        with pytest.raises(ValueError, match="give yours another name|cannot be called"):
            tasks.get(changed)
        renamed = dataclasses.replace(changed, name="shorter")
        assert tasks.get(renamed) is renamed
        del _registry._REGISTERED["shorter"]


@pytest.mark.parametrize(
    "name", ["parity", "s5", "S5", "counter_5", "Mod_Arithmetic", "s5_4tokens", "taken"]
)
def test_a_name_that_is_taken(name: str) -> None:
    tasks.register(own("taken"))
    with pytest.raises(ValueError, match=f"there is a task '{name}' already"):
        tasks.register(own(name))


@pytest.mark.parametrize("name", ["", "(ab)*", "mine.json", "my task", "regex:ab", "machine:x"])
def test_a_name_that_means_something_else(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        tasks.register(own(name))


# -- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("chest", "unknown task 'chest'"),  # no regex over c, e, h, s, t
        ("my-task", "unknown task 'my-task'"),
        ("regx:(aa)*", "did you mean 'regex:'"),
        ("machine:counter5", "did you mean 'counter_5'"),
        ("missing.json", "there is no file missing.json"),
        ({}, "has no machine"),
        ({"dense": False}, "has no machine"),
        ({"machine": 3}, "the machine of a task must hold"),
        ({"machine": TABLE, "dens": False}, "no 'dens'; did you mean 'dense'"),
        ({"machine": {**TABLE, "begin": 0}}, "the machine of a task: unknown key 'begin'"),
        ({"machine": {"delta": [[3]]}}, "the machine of a task: state 0, letter 0 goes to 3"),
        ({"machine": TABLE, "dense": 0}, "dense of a task is 0, but must be true or false"),
        ({"machine": TABLE, "name": 3}, "must be a string"),
        ({"machine": TABLE, "sink_probability": True}, "must be a number"),
        ({"machine": TABLE, "sink_probability": 2}, "out of range 0..1"),
        ({"machine": TABLE, "train_lengths": [3]}, "must be two whole numbers"),
        ({"machine": TABLE, "train_lengths": [5, 3]}, "must be two whole numbers"),
        ({"machine": TABLE, "eval_lengths": "ab"}, "must be two whole numbers"),
        ({"machine": MACHINE}, "is not JSON"),
    ],
)
def test_refused(what: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        tasks.get(what)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_no_task_is_refused_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    for content, message in (
        ([[0, 0]], "nothing to learn"),
        ([[0, 7]], "goes to 7"),
        ({"delta": [[0]], "begin": 0}, "unknown key"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{message}"):
            tasks.get(str(path))
