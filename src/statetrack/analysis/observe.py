"""What every layer of a model is given while the model reads a word."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from statetrack._typing import Float, Int
from statetrack.layers import Layer, LayerState
from statetrack.layers.transitions import Transitions

__all__ = ["Observed", "observe"]


@dataclass(frozen=True, eq=False)
class Observed:
    """One layer and what it was given.

    Attributes:
        name: where the layer sits in the model.
        layer: the layer.
        x: its inputs.
        state: the state it started from; `None` for the empty one.
    """

    name: str
    layer: Layer
    x: Float[Tensor, "1 time d_model"]
    state: LayerState | None = None

    @torch.no_grad()
    def transitions(self) -> Transitions:
        """A(x_t) and B(x_t) of the layer on these inputs."""
        return self.layer.transitions(self.x, self.state)


@torch.no_grad()
def observe(model: nn.Module, word: Int[Tensor, "time"]) -> list[Observed]:
    """The model reads the word; its layers in the order they ran, each with its last call."""
    found: dict[str, Observed] = {}

    def watch(name: str, layer: Layer) -> torch.utils.hooks.RemovableHandle:
        def keep(module: nn.Module, arguments: tuple[Tensor | LayerState | None, ...]) -> None:
            x, state, *_ = (*arguments, None)
            assert isinstance(x, Tensor) and not isinstance(state, Tensor)
            found[name] = Observed(name, layer, x, state)

        return layer.register_forward_pre_hook(keep)

    layers = [(name, part) for name, part in model.named_modules() if isinstance(part, Layer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} holds no layer of statetrack.layers to audit")
    hooks = [watch(name, layer) for name, layer in layers]
    device = next(iter([*model.parameters(), *model.buffers()])).device
    try:
        model(word[None].to(device))
    finally:
        for hook in hooks:
            hook.remove()
    return list(found.values())
