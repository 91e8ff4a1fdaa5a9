"""Layers by name, and the options each of them takes."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from statetrack._suggest import did_you_mean
from statetrack.config import coerced
from statetrack.layers._base import Layer
from statetrack.layers.attention import Attention
from statetrack.layers.capped_delta_net import CappedDeltaNet
from statetrack.layers.capped_gated_delta_net import CappedGatedDeltaNet
from statetrack.layers.capped_gla import CappedGLA
from statetrack.layers.channel_mix import ChannelMix
from statetrack.layers.delta_net import DeltaNet
from statetrack.layers.delta_product import DeltaProduct
from statetrack.layers.diagonal import Diagonal
from statetrack.layers.full_matrix import FullMatrix
from statetrack.layers.gated_delta_net import GatedDeltaNet
from statetrack.layers.gla import GLA
from statetrack.layers.kda import KDA
from statetrack.layers.lru import LRU
from statetrack.layers.lstm import LSTM
from statetrack.layers.mamba import Mamba
from statetrack.layers.mamba2 import Mamba2
from statetrack.layers.mlstm import MLSTM
from statetrack.layers.rwkv7 import RWKV7
from statetrack.layers.slstm import SLSTM
from statetrack.layers.tracker import Tracker
from statetrack.layers.ttt_linear import TTTLinear

__all__ = ["BUILT_IN", "LAYERS", "get", "has_depth", "options", "register"]

AnyLayer = TypeVar("AnyLayer", bound=type[Layer])

LAYERS: dict[str, type[Layer]] = {
    layer.__name__: layer
    for layer in (
        Attention,
        ChannelMix,
        DeltaNet,
        DeltaProduct,
        Diagonal,
        FullMatrix,
        GatedDeltaNet,
        GLA,
        KDA,
        LRU,
        LSTM,
        Mamba,
        Mamba2,
        MLSTM,
        RWKV7,
        SLSTM,
        TTTLinear,
    )
}

SET_BY_OTHERS = ("d_model", "depth", "device", "dtype")
"""Parameters of a layer's constructor that are not its options."""

BUILT_IN = frozenset(LAYERS)
"""Those that come with the package."""

UNLISTED: dict[str, type[Layer]] = {
    "CappedDeltaNet": CappedDeltaNet,
    "CappedGatedDeltaNet": CappedGatedDeltaNet,
    "CappedGLA": CappedGLA,
    "Tracker": Tracker,
}
"""They come with the package too, and configs may name them. Three are controls of an experiment,
the other has no defaults: it needs a machine and tokens to read."""


def register(layer: AnyLayer) -> AnyLayer:
    """Makes a layer of your own known by its class name, in configs and on the command line.

    The class is a subclass of `Layer`, whose docstring says what it must have and shows one. A name
    that another class has is refused; a class that is defined again, as in a notebook, takes the
    place it had. Returns the class, so that it may stand over its definition as a decorator.
    """
    if not (isinstance(layer, type) and issubclass(layer, Layer)):
        raise ValueError(f"{layer!r} is no class built on statetrack.layers.Layer")
    name = layer.__name__
    if missing := sorted(getattr(layer, "__abstractmethods__", ())):
        raise ValueError(f"{name} lacks {', '.join(missing)}; see help(statetrack.layers.Layer)")
    _parameters(layer)
    every = [*LAYERS.values(), *UNLISTED.values()]
    if layer in UNLISTED.values():
        return layer
    other = next((known for known in every if _key(known.__name__) == _key(name)), None)
    if other is not None and _origin(other) != _origin(layer):
        raise ValueError(
            f"there already is a layer {other.__name__!r} ({'.'.join(_origin(other))}): "
            "give yours another name"
        )
    LAYERS[name] = layer
    return layer


def get(name: str) -> type[Layer]:
    """The layer class called `name`, whatever the case; a miss suggests the nearest.

    >>> get("deltanet").__name__
    'DeltaNet'
    """
    by_key = {_key(known): layer for known, layer in (LAYERS | UNLISTED).items()}
    if _key(name) in by_key:
        return by_key[_key(name)]
    near = did_you_mean(name, LAYERS, cutoff=0.0)
    raise ValueError(
        f"there is no layer {name!r}; {near}The layers are {', '.join(LAYERS)}; "
        "statetrack.layers.register adds one of your own, which `statetrack --import` loads"
    )


def options(layer: type[Layer], given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of `layer` with its value: the given ones, and defaults for the rest.

    Values are what the annotations of the constructor say: (-1, 1) is stored as (-1.0, 1.0).
    `d_model` and `depth` are not options: the model that stacks the layers sets them. Neither are
    `device` and `dtype`, which are no part of what a layer computes.

    >>> options(get("Diagonal"), {"eigen_range": [0, 1]})
    {'eigen_range': (0.0, 1.0), 'backend': 'auto'}
    """
    known = _parameters(layer)
    for name in given:
        if name not in known:
            near = did_you_mean(name, known)
            raise ValueError(
                f"{layer.__name__} has no option {name!r}; {near}"
                f"It takes {', '.join(known) or 'none'}"
            )
    values = {name: parameter.default for name, parameter in known.items()} | dict(given)
    missing = [name for name, value in values.items() if value is inspect.Parameter.empty]
    if missing:
        raise ValueError(f"{layer.__name__} needs the option {', '.join(missing)}")
    hints = get_type_hints(layer.__init__)
    return {
        name: coerced(layer.__name__, name, hints.get(name, Any), value)
        for name, value in values.items()
    }


def has_depth(layer: type[Layer]) -> bool:
    """Whether `layer` wants to know its place in the stack."""
    return "depth" in inspect.signature(layer).parameters


def _parameters(layer: type[Layer]) -> dict[str, inspect.Parameter]:
    """The options of a layer's constructor."""
    found = dict(inspect.signature(layer).parameters)
    named = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in found.values())
    if "d_model" not in found or not named:
        raise ValueError(
            f"{layer.__name__}{inspect.signature(layer)} must take d_model, and every option by a "
            "name of its own: no *args, no **kwargs"
        )
    return {name: found[name] for name in found if name not in SET_BY_OTHERS}


def _origin(layer: type[Layer]) -> tuple[str, str]:
    return layer.__module__, layer.__qualname__


def _key(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
