"""Every mistake is one clear line that names the culprit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from statetrack.automata import Machine, groups, named, read
from statetrack.compiler import CompiledRNN, check, compile, compile_program


def assert_one_line(act: Callable[[], object], *parts: str) -> None:
    with pytest.raises(ValueError) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize(
    ("name", "method", "parts"),
    [
        ("s5", "quick", ("method='quick'", "auto")),
        ("t_3", "group", ("needs letters that permute",)),
        ("t_3", "one-layer", ("does not fit", "proves nothing")),
        ("z3", "diagonal", ("does not fit", "theorem 2")),
        ("q8", "rotation", ("addition modulo m",)),
        ("parity", "rotation", ()),
        ("even_a_ends_b", "reflections", ("addition modulo m",)),
    ],
)
def test_methods_that_do_not_fit(name: str, method: str, parts: tuple[str, ...]) -> None:
    if parts:
        assert_one_line(lambda: compile(named(name), method), *parts)
    else:
        compile(named(name), method)


def test_machines_that_are_too_large() -> None:
    rng = np.random.default_rng(0)
    wide = Machine.from_table(rng.integers(0, 40, (40, 3)))
    assert_one_line(lambda: compile(wide, "cascade"), "too large", "reached", "the limit is")
    many = groups.cyclic(600)
    assert_one_line(lambda: compile_program(many, "dense"), "too large", "216000000")
    deep = Machine.from_regex("(a|b)*a(a|b){6}", "ab")
    assert_one_line(lambda: compile(deep, "one-layer"), "shift register reached 7")


def test_long_registers_fall_back_to_another_method() -> None:
    deep = Machine.from_regex("(a|b)*a(a|b){6}", "ab")
    network = compile(deep)
    assert network.plan.method in ("cascade", "diagonal")
    assert check(network, length=200).errors == 0


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        (torch.tensor([[0, 2]]), "letters 0 to 1"),
        (torch.tensor([[-1, 0]]), "from -1 to 0"),
        (torch.zeros(1, 0, dtype=torch.long), "there is no token"),
    ],
)
def test_tokens(tokens: torch.Tensor, part: str) -> None:
    network = compile(read("(ab)*"))
    assert_one_line(lambda: network(tokens), part)


def test_words() -> None:
    network = compile(read("(ab)*"))
    assert_one_line(lambda: network.run("abc"), "symbol 'c'")
    assert_one_line(lambda: network.trace(""), "at least one letter")
    assert_one_line(lambda: check(network, words=0), "at least one word")
    assert_one_line(lambda: compile_program(network.machine).run([[0, 1]]), "one word")


def test_an_empty_batch_is_fine() -> None:
    network = compile(read("(ab)*"))
    assert network(torch.zeros(0, 3, dtype=torch.long)).shape == (0, 3)


def test_folders(tmp_path: Path) -> None:
    assert_one_line(lambda: CompiledRNN.load(tmp_path), "holds no compiled network")
    compile(read("(ab)*")).save(tmp_path)
    config = json.loads((tmp_path / "compiled.json").read_text())
    for broken in (
        config | {"format": 99},
        {key: value for key, value in config.items() if key != "stages"},
        config | {"stages": [config["stages"][0] | {"d_model": 9}]},
        config | {"stages": [config["stages"][0] | {"layer": "Magic"}]},
        config | {"stages": [config["stages"][0] | {"options": ["value_dim"]}]},
        config | {"stages": [with_option(config, value_dim=0)]},
        config | {"stages": [with_option(config, value_dim=9)]},
        config | {"stages": [with_option(config, columns=9)]},
        [config],
    ):
        (tmp_path / "compiled.json").write_text(json.dumps(broken))
        assert_one_line(lambda: CompiledRNN.load(tmp_path), "is not a compiled network")
    (tmp_path / "compiled.json").write_text("{")
    assert_one_line(lambda: CompiledRNN.load(tmp_path), "is not a compiled network")
    (tmp_path / "compiled.json").write_text(json.dumps(config))
    CompiledRNN.load(tmp_path)
    weights = (tmp_path / "weights.safetensors").read_bytes()
    for cut in (0, 4, 100, len(weights) - 1):
        (tmp_path / "weights.safetensors").write_bytes(weights[:cut])
        assert_one_line(lambda: CompiledRNN.load(tmp_path), "is not a compiled network")


def with_option(config: dict[str, Any], **option: int) -> dict[str, Any]:
    """The first stage of a saved network with an option of its layer changed."""
    stage: dict[str, Any] = config["stages"][0]
    return stage | {"options": stage["options"] | option}
