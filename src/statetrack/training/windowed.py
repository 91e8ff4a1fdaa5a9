"""The executor of a run that reads its sequences in windows, the state carried over."""

from collections.abc import Sequence

import torch
from torch import Tensor

from statetrack._typing import Float, Int
from statetrack.models._tokens import ModelState
from statetrack.training.carrying import expect_to_carry, named, no_state
from statetrack.training.config import RunConfig
from statetrack.training.eager import Eager
from statetrack.training.precision import autocast
from statetrack.training.windows import Windows

__all__ = ["Windowed"]


class Windowed(Eager):
    """For one run. A row goes on with the state that its last window has left, or begins a word."""

    def __init__(self, configs: Sequence[RunConfig], device: torch.device) -> None:
        super().__init__(configs, device)
        expect_to_carry(self.model, "window")
        self.windows = Windows(self.config, device)
        self.carried = self._empty_state()

    @torch.no_grad()
    def _empty_state(self) -> ModelState:
        token = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        with autocast(self.device, self.config.precision):
            after: ModelState = self.model(token)[1]
        return no_state(after, self.config.batch)

    def _answers(
        self, at: int
    ) -> tuple[Float[Tensor, "asked classes"], Int[Tensor, "asked *labels"]]:
        tokens, targets, begins = self.windows.at(at)
        start = tuple(
            {key: _zero_where(begins, value) for key, value in layer.items()}
            for layer in self.carried
        )
        with autocast(self.device, self.config.precision):
            said, after = self.model(tokens, start, generator=self._dice(at))
        self.carried = tuple(
            {key: value.detach() for key, value in layer.items()} for layer in after
        )
        return said.flatten(0, 1), targets.flatten(0, 1)

    def state(self, run: int) -> dict[str, Tensor]:
        return super().state(run) | named(self.carried)

    def restore(self, run: int, tensors: dict[str, Tensor], step: int) -> None:
        super().restore(run, tensors, step)
        if step:  # before the first step there is nothing to go on with
            self.carried = tuple(
                {key: tensors[f"carried.{index}.{key}"].to(self.device, copy=True) for key in layer}
                for index, layer in enumerate(self.carried)
            )


def _zero_where(rows: Tensor, value: Tensor) -> Tensor:
    """Not by a product, which would keep a NaN."""
    return value.masked_fill(rows.view(-1, *[1] * (value.dim() - 1)), 0.0)
