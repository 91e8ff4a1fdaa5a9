"""Layers by name, and the options each of them takes."""

import difflib
import inspect
from types import UnionType
from typing import Any, get_args

from statetrack.layers._base import Layer
from statetrack.layers.attention import Attention
from statetrack.layers.delta_net import DeltaNet
from statetrack.layers.delta_product import DeltaProduct
from statetrack.layers.diagonal import Diagonal
from statetrack.layers.full_matrix import FullMatrix
from statetrack.layers.gated_delta_net import GatedDeltaNet
from statetrack.layers.gla import GLA
from statetrack.layers.lstm import LSTM
from statetrack.layers.mamba import Mamba
from statetrack.layers.mamba2 import Mamba2
from statetrack.layers.mlstm import MLSTM
from statetrack.layers.rwkv7 import RWKV7
from statetrack.layers.slstm import SLSTM

__all__ = ["LAYERS", "get", "has_depth", "options"]

LAYERS: dict[str, type[Layer]] = {
    layer.__name__: layer
    for layer in (
        Attention,
        DeltaNet,
        DeltaProduct,
        Diagonal,
        FullMatrix,
        GatedDeltaNet,
        GLA,
        LSTM,
        Mamba,
        Mamba2,
        MLSTM,
        RWKV7,
        SLSTM,
    )
}


def get(name: str) -> type[Layer]:
    """The layer class called `name`, whatever the case; a miss suggests the nearest.

    >>> get("deltanet").__name__
    'DeltaNet'
    """
    by_key = {_key(known): layer for known, layer in LAYERS.items()}
    if _key(name) in by_key:
        return by_key[_key(name)]
    near = difflib.get_close_matches(_key(name), by_key, n=1, cutoff=0.0)
    raise ValueError(
        f"there is no layer {name!r}; did you mean {by_key[near[0]].__name__!r}? "
        f"The layers are {', '.join(LAYERS)}"
    )


def options(layer: type[Layer], given: dict[str, Any]) -> dict[str, Any]:
    """Every option of `layer` with its value: the given ones, and defaults for the rest.

    `d_model` and `depth` are not options: the model that stacks the layers sets them.
    """
    known = {
        name: parameter
        for name, parameter in inspect.signature(layer).parameters.items()
        if name not in ("d_model", "depth")
    }
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(
                f"{layer.__name__} has no option {name!r}{hint} "
                f"It takes {', '.join(known) or 'none'}"
            )
        wanted = known[name].annotation
        kinds = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
        if PLAIN.issuperset(kinds) and not any(_is_a(kind, value) for kind in kinds):
            words = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
            raise ValueError(f"{layer.__name__}: {name}={value!r} must be {words}")
    return {name: parameter.default for name, parameter in known.items()} | given


PLAIN = {int, float, bool, str, type(None)}


def _is_a(kind: type, value: object) -> bool:
    """As JSON has it: a whole number is a float too, but True is no number."""
    return type(value) is kind or (kind is float and type(value) is int)


def has_depth(layer: type[Layer]) -> bool:
    """Whether `layer` wants to know its place in the stack."""
    return "depth" in inspect.signature(layer).parameters


def _key(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
