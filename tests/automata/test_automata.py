"""The examples in the docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import statetrack.automata

MODULES = sorted(m.name for m in pkgutil.iter_modules(statetrack.automata.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"statetrack.automata.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def test_every_public_name_is_explained() -> None:
    public = {
        name: value
        for name, value in vars(statetrack.automata).items()
        if getattr(value, "__module__", "").startswith("statetrack.automata")
    }
    assert {"Machine", "facts", "holonomy", "drop_point", "one_layer", "named"} <= set(public)
    for name, value in public.items():
        assert (value.__doc__ or "").strip(), name
