"""Programs as JSON: every number comes back, and what is not as written is refused."""

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from statetrack.automata import read
from statetrack.compiler import METHODS, compile_program, json_of_program, program_of_json
from statetrack.compiler.program import DeltaLayer, DenseLayer, DiagonalLayer, Program
from statetrack.compiler.program_json import _plain
from tests.automata.cases import lively_word
from tests.compiler.expect import expect_one_line

TEXTS = ("parity", "z5", "s3", "q8", "(a|b)*ab", "(a|b)*aba", "counter_3", "cerny_4", "z2_x_z3")


def programs(text: str) -> list[Program]:
    """What every method makes of a machine, where it fits."""
    machine, found = read(text), []
    for method in METHODS:
        try:
            found.append(compile_program(machine, method))
        except ValueError:
            continue
    return found


def test_every_kind_of_layer_is_tried() -> None:
    layers = [type(s.layer) for text in TEXTS for p in programs(text) for s in p.stages]
    assert set(layers) == {DeltaLayer, DiagonalLayer, DenseLayer}


@pytest.mark.parametrize("text", TEXTS)
def test_a_program_comes_back_to_the_last_bit(text: str) -> None:
    for program in programs(text):
        written = json.dumps(json_of_program(program), allow_nan=False)
        back = program_of_json(json.loads(written))
        assert json.dumps(json_of_program(back)) == written
        assert back.machine == program.machine
        assert (back.method, back.exact, back.note) == (program.method, program.exact, program.note)
        word = lively_word(np.random.default_rng(0), program.machine, 30)
        assert str(back.trace(word)) == str(program.trace(word))
        for one, two in zip(program.stages, back.stages, strict=True):
            assert one.layer.leaves == two.layer.leaves
            for symbol in range(len(one.layer.symbol_names)):
                for x, y in zip(
                    one.layer.transition(symbol), two.layer.transition(symbol), strict=True
                ):
                    assert x.tobytes() == y.tobytes()


def test_whole_numbers_have_no_point_and_the_others_keep_their_bits() -> None:
    values = [1.0, -2.0, 0.0, -0.0, 2.0**53, 2.0**60, 0.1, 8.9e-13, -0.25]
    written = json.loads(json.dumps(_plain(values)))
    assert np.array([float(x) for x in written]).tobytes() == np.array(values).tobytes()
    assert [type(x) for x in written[:4]] == [int, int, int, float]


BROKEN: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("no object", lambda p: [p], "must be an object"),
    ("another format", lambda p: p | {"format": 2}, "has format 2; this version reads 1"),
    ("a key too many", lambda p: p | {"size": 2}, "look at 'size'"),
    ("a key too few", lambda p: p.pop("note") and p or p, "look at 'note'"),
    ("exact is no boolean", lambda p: p | {"exact": 1}, "exact: 1 must be true or false"),
    ("no layer", lambda p: p | {"stages": []}, "has no layer"),
]


@pytest.mark.parametrize("name, breaks, says", BROKEN, ids=[name for name, _, _ in BROKEN])
def test_what_is_not_as_written_is_refused(
    name: str, breaks: Callable[[dict[str, Any]], object], says: str
) -> None:
    good = json_of_program(compile_program(read("parity"), "group"))
    expect_one_line(lambda: program_of_json(breaks(good)), says)


DEEP: list[tuple[tuple[str | int, ...], object, str]] = [
    (("machine", "delta", 0, 1), 0, "not numbered as a program's are"),
    (("stages", 0, "symbol", 0), 2, "symbol: 2 must be at least 0 and below 2"),
    (("stages", 0, "symbol"), [0], "1 contexts in symbol and 2 in after"),
    (("stages", 0, "after", 0, 0), 2, "after: 2 is not below 2"),
    (("stages", 0, "after", 0), [0], "after has 1 entries and needs 2"),
    (("stages", 0, "layer", "kind"), "eval", "kinds are delta, diagonal, dense"),
    (("stages", 0, "layer", "symbols", 1, "gate"), float("nan"), "must be a finite number"),
    (("stages", 0, "layer", "symbols", 1, "gate"), True, "True must be a number"),
    (("stages", 0, "layer", "symbols", 1, "gate"), 10**400, "must be a finite number"),
    (("stages", 0, "layer", "symbols", 1, "leaves"), -2, "-2 must be at least -1 and below 2"),
    (("stages", 0, "layer", "symbols", 1, "steps", 0), ["swap", 0], "is no step"),
    (("stages", 0, "layer", "symbols", 1, "steps", 0), ["swap", 0, 3], "below 3"),
    (("stages", 0, "layer", "symbols", 1, "steps", 0), ["reflect", [1]], "needs 3"),
    (("stages", 0, "layer", "symbols", 1, "steps", 0), ["write", 0, [1]], "needs 2"),
    (("stages", 0, "layer", "symbols", 1, "queries", 0), [1, 2], "needs 3"),
    (("stages", 0, "layer", "readout", 0), [1], "needs 2"),
    (("stages", 0, "layer", "rows"), [], "empty list of names"),
    (("stages", 0, "layer", "labels", 0), 7, "7 must be a text"),
    (("stages", 0, "layer", "symbols"), [], "has no symbols"),
]


@pytest.mark.parametrize("path, value, says", DEEP, ids=[f"{i}" for i in range(len(DEEP))])
def test_a_wrong_place_is_named(path: tuple[str | int, ...], value: object, says: str) -> None:
    content: Any = copy.deepcopy(json_of_program(compile_program(read("parity"), "group")))
    at = content
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    expect_one_line(lambda: program_of_json(content, "mine.json"), "mine.json", says)


def test_contexts_must_follow_from_one_another() -> None:
    content = json_of_program(compile_program(read("(a|b)*ab"), "cascade"))
    content["stages"] = content["stages"][1:]
    expect_one_line(lambda: program_of_json(content), "layer 1 has 4 contexts, and there are 2")
