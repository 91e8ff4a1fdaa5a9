"""The description of a tagger: frozen, complete, and the same after a trip through JSON."""

import dataclasses
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from statetrack.layers import registry

__all__ = ["TaggerConfig"]

NORMS = ("rms", "layer")
MLPS = ("none", "swiglu", "geglu")


@dataclass(frozen=True, kw_only=True)
class TaggerConfig:
    """A tagger: embedding, `num_layers` blocks of one mixer, a norm and a linear head.

    `mixer` names a layer of `statetrack.layers` and `mixer_options` its arguments; options left out
    are filled in with the layer's defaults, so that a stored config says everything. An unknown
    field or option, or one that does not fit the rest, is refused here.

    >>> config = TaggerConfig(vocab_size=3, num_classes=3, mixer="DeltaNet", d_model=32)
    >>> config.mixer_options["eigen_range"]
    (-1.0, 1.0)
    >>> TaggerConfig.from_json(config.to_json()) == config
    True
    """

    vocab_size: int
    num_classes: int
    mixer: str
    mixer_options: Mapping[str, Any] = field(default_factory=dict)
    d_model: int = 128
    num_layers: int = 2
    mlp: str = "swiglu"  # or "geglu", or "none"
    mlp_dim: int = 512
    norm: str = "rms"  # or "layer"
    norm_eps: float = 1e-6
    residual: bool = True  # add each part's input to its output
    final_norm: bool = True
    embedding_std: float = 0.02
    head_std: float | None = 0.02  # None: uniform within 1/sqrt(d_model), PyTorch's own
    mlp_in_std: float = 0.02
    mlp_out_std: float = 0.01

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_classes", "d_model", "num_layers", "mlp_dim"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be a whole number of at least 1")
        for name, choices in (("mlp", MLPS), ("norm", NORMS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is not one of {choices}")
        layer = registry.get(self.mixer)
        given = {name: _frozen(value) for name, value in dict(self.mixer_options).items()}
        complete = registry.options(layer, given)
        object.__setattr__(self, "mixer", layer.__name__)
        object.__setattr__(self, "mixer_options", MappingProxyType(complete))
        with torch.device("meta"):  # the layer itself refuses what does not fit together
            layer(self.d_model, **complete)

    def __hash__(self) -> int:
        return hash(self.to_json())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return fields | {"mixer_options": {k: _thawed(v) for k, v in self.mixer_options.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TaggerConfig":
        """The inverse of `to_dict`; an unknown key is an error."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; the fields are {known}"
                raise ValueError(f"TaggerConfig has no field {name!r}{hint}")
        return cls(**values)

    def to_json(self) -> str:
        """Canonical JSON: equal configs give equal text."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "TaggerConfig":
        return cls.from_dict(json.loads(text))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


def _thawed(value: Any) -> Any:
    return [_thawed(item) for item in value] if isinstance(value, tuple) else value
