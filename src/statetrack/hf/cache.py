"""What a model carries from one call to the next, as transformers' generation expects it."""

from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import Cache

from statetrack.models._tokens import ModelState

__all__ = ["StatetrackCache"]


class StatetrackCache(Cache):
    """The states of all layers, and how many tokens they have seen.

    Its size does not grow with the tokens, but for layers that attend. It is changed by every call
    that it is given to; `copy.deepcopy` keeps what it was.

    It has none of the entries for each layer that transformers' own caches have: those count tokens
    by their keys, and a recurrent state has none.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.states: ModelState | None = None
        self.seen = 0

    def advance(self, states: ModelState, tokens: int) -> None:
        """The states after so many more tokens, padding included."""
        self.states = states
        self.seen += tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: there is no longest sequence."""
        return -1

    def has_previous_state(
        self, layer_idx: int | None = None, state_idx: int | None = None
    ) -> bool:
        return self.states is not None

    @property
    def batch_size(self) -> int:
        """-1 before the first token."""
        for state in self.states or ():
            for part in state.values():
                return len(part)
        return -1

    @property
    def is_compileable(self) -> bool:
        """False, as generation then hands over the attention mask as it is."""
        return False

    @property
    def is_initialized(self) -> bool:
        return self.states is not None

    @property
    def is_croppable(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.states or ())

    def __repr__(self) -> str:
        return f"StatetrackCache(layers={len(self)}, seen={self.seen})"

    def reset(self) -> None:
        self.states, self.seen = None, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row `beam_idx[i]` was."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._each(lambda part: part[indices.to(part.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda part: part.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> NoReturn:
        raise ValueError(
            f"crop({tokens_to_remove}): a recurrent state cannot forget its last tokens, so there "
            "is no assisted generation; keep a copy.deepcopy of the cache from before them"
        )

    def activate_past_recording(self) -> NoReturn:
        raise ValueError("a recurrent state cannot go back, so there is no assisted generation")

    def update(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError("this cache holds no keys and values: it belongs to a statetrack model")

    @torch.no_grad()
    def _each(self, change: Any) -> None:
        if self.states is not None:
            self.states = tuple(
                {key: change(part) for key, part in state.items()} for state in self.states
            )
