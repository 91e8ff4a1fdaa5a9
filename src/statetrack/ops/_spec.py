"""What an op is, written once for all its backends. No op is known here by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, get_type_hints

import torch
from torch import Tensor

from statetrack.ops.context import Cut

__all__ = ["OpSpec", "find", "register"]

_KINDS = {Tensor: "Tensor", Tensor | None: "Tensor?", bool: "bool", float: "float", int: "int"}
_specs: dict[str, "OpSpec"] = {}  # by every name


@dataclass(frozen=True, eq=False)
class OpSpec:
    """An op: its arguments, its results and the backends that run it.

    Attributes:
        name: the op's name. The module of a backend has a function of this name.
        inputs: a NamedTuple with the arguments, as backends get them after the checks. Its types
            are `Tensor`, `Tensor | None`, `bool`, `float` and `int`, and its first is a `Tensor`.
        outputs: the names of the results, which are tensors. The last one is the final state.
        empty: the results without numbers, from the inputs and the number of sequences in a row.
        backends: the backends there are.
        sequences: the inputs [batch, time, ...], in which rows may hold packed sequences.
        blank: the state that nothing was read into, from a tensor of its shape.
        cut: how it runs where several processes share a sequence; None if it cannot.
        other_names: further public functions that this op runs.
        loaded: the functions of the backends used so far, which a compiler can look up.
    """

    name: str
    inputs: type[Any]
    outputs: tuple[str, ...]
    empty: Callable[..., tuple[Tensor, ...]]
    backends: tuple[str, ...]
    sequences: tuple[str, ...]
    blank: Callable[[Tensor], Tensor] = torch.zeros_like
    cut: Cut | None = None
    other_names: tuple[str, ...] = ()
    loaded: SimpleNamespace = field(default_factory=SimpleNamespace)

    @property
    def package(self) -> str:
        """The op's folder, where `inputs` is defined, with a module for every backend."""
        return str(self.inputs.__module__.rpartition(".")[0])

    @property
    def schema(self) -> str:
        """The inputs in the words of `torch.library`: "Tensor q, Tensor? decay, float scale"."""
        kinds = get_type_hints(self.inputs)
        return ", ".join(f"{_KINDS[kinds[name]]} {name}" for name in self.inputs._fields)


def register(spec: OpSpec) -> OpSpec:
    """Makes `spec` known by its names; returns it."""
    for name in (spec.name, *spec.other_names):
        assert name not in _specs, f"two ops are called {name}"
        _specs[name] = spec
    return spec


def find(name: str) -> OpSpec:
    """The spec of the op called `name`."""
    if name not in _specs:
        raise ValueError(f"op={name!r} is not one of {', '.join(sorted(_specs))}")
    return _specs[name]
