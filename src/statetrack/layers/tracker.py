"""A finite machine inside a model: it reads the tokens themselves and shows its state, exactly."""

import torch
from torch import Tensor
from torch.nn.functional import embedding

from statetrack import ops
from statetrack._typing import Float, Int
from statetrack.layers._base import Layer, LayerState, Shared
from statetrack.layers.parts import linear, reset_linear
from statetrack.layers.placement import Device, Dtype, placed
from statetrack.ops.packing import sequences_in

__all__ = ["Tracker", "follow"]

CHUNK = 32
"""Tokens whose maps are composed in parallel; chunks follow one another."""
MAX_MAPS = 2**24
"""Numbers in the maps of the tokens that are looked at together."""


class Tracker(Layer):
    """y_t = E[q_t], where q_t is the state of a fixed machine after token t.

    The machine is a linear RNN whose weights are given, not trained: H_t = A(token_t) H_{t-1} with
    a 0/1 matrix for each letter and a one-hot H, as `compile(machine, "dense")` builds it. Such
    products are compositions of maps, which are computed in whole numbers: the state is right at
    every length and in every dtype. Trained is E alone, a vector for each state.

    It reads token numbers, which models on tokens hand on to their layers (`Shared`). Its input x
    is not looked at.

    Args:
        delta: `delta[state][letter]`, the state after a letter; state 0 is the start.
        letter: the letter of each token of the vocabulary.

    `automata.over_tokens(machine, vocabulary)` gives both, as `.options`.
    """

    packs = True
    delta: Tensor
    letter: Tensor

    @placed
    def __init__(
        self,
        d_model: int,
        *,
        delta: tuple[tuple[int, ...], ...],
        letter: tuple[int, ...],
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(d_model)
        self._tables = {"delta": delta, "letter": letter}
        widths = {len(row) for row in delta}
        if len(widths) != 1 or not letter:
            raise ValueError(
                "delta needs a row for each state, all of one length, and letter a token"
            )
        for name, values, bound in (
            ("delta", [to for row in delta for to in row], len(delta)),
            ("letter", letter, widths.pop()),
        ):
            if not 0 <= min(values, default=-1) <= max(values) < bound:
                raise ValueError(
                    f"{name} must be within 0 to {bound - 1}, got {min(values)} to {max(values)}"
                )
        for name, shape in (("delta", (len(delta), len(delta[0]))), ("letter", (len(letter),))):
            self.register_buffer(name, torch.empty(shape, dtype=torch.long))
        self.out_proj = linear(len(delta), d_model)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for name, values in self._tables.items():
            getattr(self, name).copy_(torch.tensor(values))
        reset_linear(self.out_proj, generator)

    @property
    def state_size(self) -> int:
        return 1

    @property
    def state_keys(self) -> tuple[str, ...]:
        return ("machine",)

    def _mix(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState]:
        y, after, _ = self._mix_shared(x, state, read_at, packing, Shared())
        return y, after

    def _mix_shared(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None,
        read_at: Int[Tensor, "batch asked"] | None,
        packing: ops.Packing | None,
        shared: Shared,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState, Shared]:
        if shared.tokens is None:
            raise ValueError(
                "a Tracker reads tokens, and there are none here: call the model on tokens, not on "
                "vectors, or hand them on with shared=Shared(tokens=...)"
            )
        letters = self.letter[shared.tokens.to(x.device)]
        start = letters.new_zeros(sequences_in(x, packing))
        if state is not None:
            start = state["machine"]
        states, after = follow(self.delta, letters, start, packing)
        asked = states if read_at is None else states.gather(1, read_at)
        y = embedding(asked, self.out_proj.weight.mT).to(x.dtype)
        return y, {"machine": after}, shared


def follow(
    delta: Int[Tensor, "states letters"],
    letters: Int[Tensor, "batch time"],
    start: Int[Tensor, "sequences"],
    packing: ops.Packing | None = None,
) -> tuple[Int[Tensor, "batch time"], Int[Tensor, "sequences"]]:
    """The state after every letter, and after the last of each sequence.

    >>> follow(torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1, 0, 1, 1]]), torch.tensor([0]))
    (tensor([[1, 1, 0, 1]]), tensor([1]))
    """
    batch, time = letters.shape
    begins = torch.full_like(letters, -1)  # the state after a letter that begins a sequence
    if packing is None:
        if time:
            begins[:, 0] = delta[start, letters[:, 0]]
    else:
        first, last = packing.offsets[:, :-1].long(), packing.offsets[:, 1:].long()
        places = torch.where(first < last, first, time)  # an empty sequence begins nowhere
        wider = torch.cat([letters, torch.zeros_like(letters[:, :1])], dim=1)
        value = delta[start.view_as(places), wider.gather(1, places)]
        spare = torch.full_like(wider, -1)
        begins = spare.scatter(1, places, value)[:, :time]
    length = max(1, MAX_MAPS // max(1, batch * len(delta)) // CHUNK) * CHUNK
    before = letters.new_zeros(batch)
    found = []
    for piece, begun in zip(letters.split(length, 1), begins.split(length, 1), strict=True):
        found.append(_follow(delta, piece, begun, before))
        before = found[-1][:, -1] if piece.shape[1] else before
    states = torch.cat(found, dim=1)
    if packing is None:
        return states, states[:, -1] if time else start
    ends = states.gather(1, (last - 1).clamp(min=0)) if time else start.view_as(first)
    return states, torch.where(first < last, ends, start.view_as(first)).flatten()


def _follow(
    delta: Tensor, letters: Tensor, begins: Tensor, before: Tensor
) -> Int[Tensor, "batch time"]:
    """The states of one piece: maps are composed within chunks, then chunk after chunk."""
    batch, time = letters.shape
    size = min(CHUNK, 1 << max(time - 1, 0).bit_length())
    count = -(-time // size)
    same = torch.arange(len(delta), device=delta.device)
    maps = torch.where(begins[..., None] >= 0, begins[..., None], delta.mT[letters])
    filler = same.expand(batch, count * size - time, -1)
    maps = torch.cat([maps, filler], dim=1).unflatten(1, (count, size))
    width = 1
    while width < size:
        earlier = torch.cat([same.expand(batch, count, width, -1), maps[:, :, :-width]], dim=2)
        maps = maps.gather(-1, earlier)
        width *= 2
    at = []
    for chunk in maps[:, :, -1].unbind(1):
        at.append(before)
        before = chunk.gather(1, before[:, None]).squeeze(1)
    held = torch.stack(at, dim=1)[:, :, None, None].expand(-1, -1, size, 1)
    return maps.gather(-1, held).squeeze(-1).flatten(1, 2)[:, :time]
