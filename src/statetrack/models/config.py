"""The description of a model: frozen, complete, and the same after a trip through JSON."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from statetrack.config import Bounds, Config, FrozenDict, frozen_defaults, plain
from statetrack.layers import Layer, registry

__all__ = ["BackboneConfig", "CausalLMConfig", "Mixer", "Size", "TaggerConfig"]

Size = Annotated[int, Bounds(least=1)]
Std = Annotated[float, Bounds(least=0.0)]

FORMS = """"DeltaNet", ("DeltaNet", {"num_heads": 2}), MyLayer, (MyLayer, {...}), a Mixer"""


@dataclass(frozen=True, kw_only=True)
class Mixer(Config):
    """One layer of a backbone: which, its options, and where its block has its norms.

    Options left out are filled in with the layer's defaults, so that a stored config says
    everything, and values are what the layer's annotations say. With `norm="after"` the block has
    its norms after the mixer and after the MLP.

    >>> Mixer.of(("deltanet", {"num_heads": 2})).options["eigen_range"]
    (-1.0, 1.0)
    """

    layer: str
    options: Mapping[str, Any] = FrozenDict({})
    norm: Literal["before", "after"] = "before"  # of the mixer and of the MLP

    @classmethod
    def of(cls, entry: Any) -> "Mixer":
        """A mixer from an `entry`: a name or a class, alone or with options, or a mapping."""
        if isinstance(entry, Mixer):
            return entry
        if isinstance(entry, Mapping):
            return cls.from_dict(entry)
        layer, options = (
            entry if isinstance(entry, tuple | list) and len(entry) == 2 else (entry, {})
        )
        if isinstance(layer, type) and issubclass(layer, Layer):
            layer = registry.register(layer).__name__
        if not isinstance(layer, str) or not isinstance(options, Mapping):
            raise ValueError(f"{entry!r} is no mixer: write {FORMS}")
        return cls(layer=layer, options=options)

    def _check(self) -> None:
        layer = registry.get(self.layer)
        object.__setattr__(self, "layer", layer.__name__)
        object.__setattr__(self, "options", FrozenDict(registry.options(layer, self.options)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Takes the class along, so that a layer of your own is known where this is read."""
        return _restored, (registry.get(self.layer), dict(self.options), self.norm)

    def essence(self) -> dict[str, Any]:
        """The layer, and the options that are not the frozen defaults of its name.

        A layer that has none writes all of them. Which backend runs is no part of it.
        """
        frozen = frozen_defaults()["layers"].get(self.layer, {})
        options = {
            name: plain(value)
            for name, value in self.options.items()
            if name != "backend" and not (name in frozen and plain(value) == frozen[name])
        }
        place = {} if self.norm == "before" else {"norm": self.norm}
        return {"layer": self.layer, "options": options, **place}

    def build(self, d_model: int, depth: float = 0.0) -> Layer:
        """The layer; `depth` is its place in the stack, from 0 to 1, for layers that ask."""
        layer: Any = registry.get(self.layer)
        place = {"depth": depth} if registry.has_depth(layer) else {}
        built: Layer = layer(d_model, **self.options, **place)
        return built


def _restored(layer: type[Layer], options: dict[str, Any], norm: Any) -> Mixer:
    return dataclasses.replace(Mixer.of((layer, options)), norm=norm)


@functools.lru_cache(maxsize=4096)
def _expect_fit(layer: type[Layer], mixer: Mixer, d_model: int) -> None:
    """Lets the layer refuse what does not fit together; once, for the many configs of a sweep."""
    with torch.device("meta"):
        mixer.build(d_model)


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(Config):
    """A stack of blocks, one for each entry of `mixers`.

    An entry is the name of a layer of `statetrack.layers`, or its class, alone or with options.
    Layers may differ:

    >>> period = [("DeltaNet", {"num_heads": 2})] * 2 + ["Attention"]
    >>> hybrid = BackboneConfig(mixers=period * 8, d_model=32)
    >>> hybrid.num_layers, hybrid.mixers[2].layer
    (24, 'Attention')
    >>> BackboneConfig.from_json(hybrid.to_json()) == hybrid
    True

    Attributes:
        mixers: the layers, first block first.
        d_model: width of the residual stream.
        mlp: the MLP after each layer, or `none`.
        mlp_dim: its inner width.
        norm: `rms` for RMSNorm, `layer` for LayerNorm.
        norm_eps: what is added beneath the root of every norm.
        residual: whether each part's input is added to its output.
        final_norm: whether there is a norm after the last block.
        mlp_in_std, mlp_out_std: standard deviations of the initial weights of the MLPs.
        dropout: the share of each part's output that is set to zero in training.
    """

    mixers: tuple[Mixer, ...]
    d_model: Size = 128
    mlp: Literal["swiglu", "geglu", "none"] = "swiglu"
    mlp_dim: Size = 512
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: Annotated[float, Bounds(least=0.0)] = 1e-6
    residual: bool = True  # add each part's input to its output
    final_norm: bool = True
    mlp_in_std: Std = 0.02
    mlp_out_std: Std = 0.01
    dropout: Annotated[float, Bounds(least=0.0, below=1.0)] = 0.0  # of each part's output
    norm_bias: bool = False  # of layer norms
    first_norm: bool = False  # of what the first block gets

    def __post_init__(self) -> None:
        entries: Any = self.mixers
        if not isinstance(entries, list | tuple) or not entries:
            raise ValueError(
                f"mixers={entries!r} must be a list with one entry for each layer, for example "
                '["DeltaNet"] * 2; an entry is ' + FORMS
            )
        object.__setattr__(self, "mixers", tuple(map(Mixer.of, entries)))
        super().__post_init__()

    def _check(self) -> None:
        if self.norm_bias and self.norm == "rms":
            raise ValueError('norm_bias=True needs norm="layer": an RMS norm has no bias')
        for mixer in dict.fromkeys(self.mixers):
            _expect_fit(registry.get(mixer.layer), mixer, self.d_model)

    @property
    def num_layers(self) -> int:
        return len(self.mixers)


@dataclass(frozen=True, kw_only=True)
class TaggerConfig(Config):
    """A tagger: embedding, backbone and a linear head.

    An unknown field or option, or one that does not fit the rest, is refused here. `head_std` is
    the standard deviation of the head's initial weights; with None they are uniform within
    1/√d_model, as PyTorch has it.

    >>> backbone = BackboneConfig(mixers=["DeltaNet"], d_model=32)
    >>> config = TaggerConfig(vocab_size=3, num_classes=3, backbone=backbone)
    >>> config.backbone.mixers[0].options["eigen_range"]
    (-1.0, 1.0)
    >>> TaggerConfig.from_json(config.to_json()) == config
    True
    """

    vocab_size: Size
    num_classes: Size
    backbone: BackboneConfig
    embedding_std: Std = 0.02
    head_std: Std | None = 0.02  # None: uniform within 1/sqrt(d_model), PyTorch's own


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig(Config):
    """A language model: embedding, backbone and a head, which may share the embedding's weights.

    `projection_std` is the standard deviation of the initial projections; with None each layer
    draws its own. `embedding_std` is also that of a head with weights of its own.

    >>> backbone = BackboneConfig(mixers=[("DeltaNet", {"num_heads": 2})] * 2, d_model=32)
    >>> config = CausalLMConfig(vocab_size=100, backbone=backbone)
    >>> CausalLMConfig.from_json(config.to_json()) == config
    True
    """

    vocab_size: Size
    backbone: BackboneConfig
    tie_embeddings: bool = False
    embedding_std: Std = 0.006  # the head's too, if it has weights of its own
    projection_std: Std | None = 0.006  # None: as each layer draws its own
