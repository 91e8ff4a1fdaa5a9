"""State diagrams, written and read back, and as people draw them."""

from pathlib import Path

import pytest

from statetrack.automata import Machine, machine_of_dot, named, read, save
from statetrack.automata.named import NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", [".dot", ".json"])
def test_files_hold_the_machine(name: str, suffix: str, tmp_path: Path) -> None:
    machine = named(name)
    save(machine, tmp_path / f"m{suffix}")
    assert read(str(tmp_path / f"m{suffix}")) == machine


def test_words_as_outputs_survive(tmp_path: Path) -> None:
    machine = Machine.from_mealy({0: {"a": (1, 'a "b"')}, 1: {"a": (0, "c")}}, 0)
    for name in ("m.dot", "m.json"):
        save(machine, tmp_path / name)
        assert read(str(tmp_path / name)) == machine


def test_a_diagram_by_hand() -> None:
    text = """
    digraph door {
      rankdir=LR; node [shape=circle];
      // the start
      "" [shape=none]; "" -> shut;
      open [shape=doublecircle];
      shut -> open [label="o"];
      open -> shut [label="c"]
      open -> open [label="o"];
    }
    """
    machine = machine_of_dot(text)
    assert machine.accepts("o") and machine.accepts("oco") and not machine.accepts("oc")
    assert not machine.accepts("co")  # a missing arrow leads to a sink


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph {}", "no diagram"),
        ("digraph { a -> b }", "no arrow with a label"),
        ('digraph { a -> b [label="x"]; a -> a [label="x"]; }', "two arrows of state a"),
    ],
)
def test_refused_diagrams(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        machine_of_dot(text)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.json, \.dot, \.gv"):
        save(named("s3"), tmp_path / "m.txt")
