"""What every conversion does: take weights by name, miss none, leave none."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["UNIT", "Source", "expect_for_fla"]

UNIT = 1e-6
"""Beneath the root where fla makes keys and queries of unit length."""


def expect_for_fla(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(f"this model cannot be written for fla exactly: {why}")


class Source:
    """The config and the weights of a foreign model, each of which must be used once.

    `name` is what its owner calls it, for messages.
    """

    def __init__(self, name: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        self.name = name
        self.config = config
        self._left = dict(weights)

    def setting(self, name: str, default: Any = None) -> Any:
        """A field of the config; `default` where it is left out or None."""
        found = self.config.get(name)
        return default if found is None else found

    def needs(self, name: str, wanted: Any, why: str, default: Any = None) -> None:
        """Refuses a field of the config that has another value than the one we can express."""
        found = self.setting(name, wanted if default is None else default)
        if found != wanted:
            raise ValueError(
                f"this {self.name} cannot be converted exactly: {name}={found!r}, and {why}"
            )

    def take(self, name: str) -> Tensor:
        """The weights of that name, which must be there."""
        if name not in self._left:
            raise ValueError(f"this {self.name} has no weights {name}: is it a whole checkpoint?")
        return self._left.pop(name)

    def maybe(self, name: str) -> Tensor | None:
        """The weights of that name, if there are any."""
        return self._left.pop(name, None)

    def joined(self, *names: str) -> Tensor:
        """Weights end to end along their first axis."""
        return torch.cat([self.take(name) for name in names])

    def convolution(self, *names: str) -> Tensor:
        """[channels, 1, width] as torch has it -> [channels, width]; several end to end."""
        return self.joined(*names).squeeze(1)

    def has(self, name: str) -> bool:
        return name in self._left

    def head(self, name: str, embedding: str, tied: bool) -> dict[str, Tensor]:
        """Embedding and head; a tied head may be stored or not, but must be the embedding."""
        table = self.take(embedding)
        own = self.maybe(name)
        if tied and own is not None and not torch.equal(own, table):
            raise ValueError(f"this {self.name} says that {name} is its embedding, but they differ")
        if not tied and own is None:
            raise ValueError(f"this {self.name} has no weights {name}: is it a whole checkpoint?")
        found = {"embedding.weight": table}
        if not tied and own is not None:
            found["head.weight"] = own
        return found

    def expect_empty(self, *ignored: str) -> None:
        """All weights were taken; those that end in one of `ignored` hold nothing learnt."""
        left = [name for name in self._left if not any(map(name.endswith, ignored))]
        if left:
            raise ValueError(
                f"this {self.name} cannot be converted exactly: {left[0]} has no counterpart"
                + (f", nor have {len(left) - 1} others" if len(left) > 1 else "")
            )
