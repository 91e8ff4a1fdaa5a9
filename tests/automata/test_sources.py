"""What a text means: names, JSON tables and regular expressions, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from statetrack.automata import (
    Machine,
    groups,
    is_name,
    is_word_problem,
    machine_of_table,
    named,
    read,
    source,
    table_of,
)
from statetrack.automata.named import NAMES
from tests.helpers import unhooked


@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_the_same_with_and_without_its_prefix(name: str) -> None:
    assert read(name) == read(f"machine:{name}") == read(f" {name.upper()} ") == named(name)
    assert source(name) == source(f"machine:{name.upper()}")


def test_regular_expressions() -> None:
    assert read("(aa)*") == read("regex:(aa)*") == Machine.from_regex("(aa)*", "a")
    wider = Machine.from_regex("(aa)*", "ab")
    assert read("regex:(aa)* over ab") == read("(aa)* over ab") == read("(aa)*", "ab") == wider
    assert read("a{2,3}").alphabet == ("a",)
    assert read("ab").num_states == 4  # a regex, although it could be a name
    assert read("a").num_states == read("s").num_states == 3  # no misspelt a5, s5
    assert read("regex:partiy").alphabet == tuple("aiprty")
    assert read("x1", "x1").accepts("x1")  # only a regular expression has an alphabet
    assert source("regex:over over over").value == "over"


def test_tables(tmp_path: Path) -> None:
    path = tmp_path / "parity.json"
    path.write_text(json.dumps({"delta": [[0, 1], [1, 0]], "accepting": [1], "alphabet": "01"}))
    assert read(str(path)).accepts("1011")
    assert read(f"machine:{path}") == read(str(path))
    path.write_text(json.dumps([[0, 1], [1, 0]]))
    assert read(str(path)).num_states == 2


@pytest.mark.parametrize("name", ["s3", "parity", "dyck_1_depth_2", "mod_arithmetic_3"])
def test_a_machine_is_its_table(name: str) -> None:
    machine = named(name)
    assert machine_of_table(json.loads(json.dumps(table_of(machine))), "here") == machine


def test_letters_of_every_kind_survive_the_table() -> None:
    pairs = Machine.from_table([[0, 1], [1, 0]], alphabet=[(0, "a"), (1, ("b", 2))])
    numbers = unhooked(Machine.from_table)([[0, 1], [1, 0]], alphabet=np.arange(2))
    for machine in (pairs, numbers):
        assert machine_of_table(json.loads(json.dumps(table_of(machine))), "here") == machine
    assert numbers == groups.cyclic(2)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("empty text",)),
        ("machine:", ("empty text",)),
        ("regex:", ("has no letters of its own",)),
        ("(a|b", ("(a|b",)),
        ("s5_swap", ("s5_swap", "did you mean 's5_swaps'? ", "write regex:s5_swap")),
        ("partiy", ("no machine is called 'partiy'; did you mean 'parity'? ", "regex:partiy")),
        ("Partiy", ("did you mean 'parity'? ",)),
        ("counter", ("did you mean 'counter_5'? ",)),
        ("dyck", ("did you mean 'dyck_2_depth_2'? ",)),
        ("counter5", ("did you mean 'counter_5'? ",)),
        ("qqqq_17", ("there are s5, a5", "regex:qqqq_17")),
        ("regx:(aa)*", ("'regx:'", "did you mean 'regex:'? ", "write regex:regx:(aa)*")),
        ("machine:partiy", ("no machine is called 'partiy'; did you mean 'parity'? ",)),
        ("machine:(aa)*", ("no machine is called '(aa)*'",)),
        ("z0", ("at least 1",)),
        ("missing.json", ("no file missing.json",)),
        ("machine:missing.json", ("no file missing.json",)),
        ("()*", ("has no letters of its own",)),
        ("regex:(aa)* over b", ("uses 'a'", "alphabet 'b'")),
    ],
)
def test_refused_texts(text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        read(text)
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in parts), message


def test_a_folder_is_no_regular_expression(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no table of a machine.*write regex:/"):
        read(str(tmp_path))
    assert read("regex:a/b").alphabet == read(f"(a/b{'|a' * 3000})").alphabet == ("/", "a", "b")
    assert read("a/b").alphabet == ("/", "a", "b")  # nothing of that name is there


@pytest.mark.parametrize("text", ["s5", "machine:s5", "my.json", "regex:(aa)* over ab"])
def test_only_a_bare_regex_takes_an_alphabet(text: str) -> None:
    with pytest.raises(ValueError, match="leave alphabet out"):
        read(text, "ab")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("3", 'an object with "delta"'),
        ('"ab"', 'an object with "delta"'),
        ("{}", 'an object with "delta"'),
        ('{"delta": [[0]], "begin": 0}', "unknown key 'begin'"),
        ('{"delta": [[0]], "output": [1]}', "did you mean 'outputs'? "),
        ('{"delta": [[0, 1], [0]]}', "incomplete table: state 1 has 1 entries"),
        ('{"delta": [[[0, 0]]]}', "one state number in each place"),
        ('{"delta": [[0, 3], [0, 1]]}', "goes to 3, but the states are 0 to 1"),
        ('{"delta": [[0]], "start": 5}', "start 5 is not a state"),
        ('{"delta": [[0]], "start": true}', "start is True, but must be a state number"),
        ('{"delta": [[0]], "accepting": [2]}', "accepting state 2"),
        ('{"delta": [[0, 0]], "alphabet": "a"}', "2 columns"),
        ('{"delta": [[0]], "alphabet": [{}]}', "{} is no letter"),
        ('{"delta": [[0]], "accepting": 3}', "accepting is 3, but must be a list of state"),
        ('{"delta": [[0]], "accepting": "a"}', "accepting is 'a', but must be a list of state"),
        ('{"delta": 3}', "delta is 3"),
        ('{"delta": [[0]], "outputs": ["x"]}', "outputs are 1 booleans or integers"),
    ],
)
def test_refused_tables(tmp_path: Path, content: str, part: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}.*{re.escape(part)}") as caught:
        read(str(path))
    assert "\n" not in str(caught.value)


def test_which_names_are_word_problems() -> None:
    assert [name for name in NAMES if is_word_problem(name)] == [
        *("s5", "a5", "z60", "d10", "q8", "a4_x_z5", "s5_swaps", "s5_3perms")
    ]
    for name in ("parity_x_z3", "s5_swaps_x_z2"):
        assert is_name(name) and not is_word_problem(name)
    for name in ("s5_x_", "a5_swaps", "s5_4tokens", "x", ""):
        assert not is_name(name) and not is_word_problem(name)


@pytest.mark.parametrize(
    ("content", "regex"),
    [
        (
            {"transitions": {"0": {"a": 1}, "1": {"b": 0}}, "start": 0, "accepting": [0]},
            "(ab)*",
        ),
        ({"nfa": {"p": {"a": ["p", "q"], "b": ["p"]}, "q": {"b": ["r"]}}, "start": "p",
          "accepting": ["r"]}, "(a|b)*ab"),
        ({"delta": [[1, None], [None, 0]], "accepting": [0], "alphabet": "ab"}, "(ab)*"),
    ],
)  # fmt: skip
def test_arrows_by_name(content: object, regex: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps(content))
    assert read(str(tmp_path / "m.json")) == read(regex)


def test_mealy_files(tmp_path: Path) -> None:
    arrows = {"0": {"a": ["1", "up"]}, "1": {"a": ["0", "down"]}}
    (tmp_path / "m.json").write_text(json.dumps({"mealy": arrows, "start": 0}))
    assert read(str(tmp_path / "m.json")).says("aaa") == ["up", "down", "up"]
    for wrong, part in (
        ({"mealy": arrows}, "start"),
        ({"mealy": arrows, "start": 0, "accepting": []}, "unknown key 'accepting'"),
        ({"mealy": {"0": {"a": 3}}, "start": 0}, "m.json"),
    ):
        (tmp_path / "m.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=part):
            read(str(tmp_path / "m.json"))
