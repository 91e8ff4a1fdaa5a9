"""The only block: norm, mixer, residual; norm, MLP, residual."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statetrack import ops
from statetrack._typing import Bool, Float, Int
from statetrack.layers import Fold, LayerState, Shared
from statetrack.layers.parts import at_times
from statetrack.models.config import BackboneConfig
from statetrack.models.parts import MLP, dropout, make_norm

__all__ = ["Backbone", "Block"]


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) where the config has an MLP.

    With the norms after them it is x + norm(mixer(x)), then x + norm(mlp(x)).
    """

    def __init__(self, config: BackboneConfig, index: int) -> None:
        super().__init__()
        self.residual, self.dropout = config.residual, config.dropout
        self.norm_after = config.mixers[index].norm == "after"
        self.folds_norms = not (self.norm_after or config.norm_bias)
        self.mixer_norm = make_norm(config)
        depth = index / max(config.num_layers - 1, 1)
        self.mixer = config.mixers[index].build(config.d_model, depth)
        self.mlp_norm = make_norm(config) if config.mlp != "none" else None
        self.mlp = MLP(config) if config.mlp != "none" else None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for part in (self.mixer_norm, self.mixer, self.mlp_norm, self.mlp):
            if part is not None:
                part.reset_parameters(generator)

    def folds(self) -> list[Fold]:
        """The folds of the mixer, with the block's norm where they mean it, and that of the MLP."""
        found = [
            Fold(self.mixer_norm if norm is None else norm, readers)
            for norm, readers in self.mixer.folds()
            if norm is not None or self.folds_norms
        ]
        if self.mlp is not None and self.folds_norms:
            found.append(Fold(self.mlp_norm, (self.mlp.up_proj,)))
        return found

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: LayerState | None = None,
        *,
        read_at: Int[Tensor, "batch asked"] | None = None,
        cu_seqlens: ops.CuSeqlens | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
        generator: torch.Generator | None = None,
        shared: Shared | None = None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], LayerState, Shared]:
        """Mixes all of x; what comes after mixing is done at the times `read_at` alone if given."""
        mixed, state, shared = self.mixer(
            x if self.norm_after else self.mixer_norm(x),
            state,
            read_at=read_at,
            cu_seqlens=cu_seqlens,
            mask=mask,
            shared=shared or Shared(),
        )
        mixed = self.mixer_norm(mixed) if self.norm_after else mixed
        x = self._add(at_times(x, read_at), mixed, generator)
        if self.mlp is not None and self.mlp_norm is not None:
            x = self._add_mlp(x, self.mlp, self.mlp_norm, generator)
        return x, state, shared

    def _add_mlp(
        self, x: Tensor, mlp: MLP, norm: nn.Module, generator: torch.Generator | None
    ) -> Tensor:
        if self.norm_after:
            return self._add(x, norm(mlp(x)), generator)
        whole = self.residual and not (self.dropout and self.training)
        if whole and (found := mlp.onto(x, norm)) is not None:
            return found
        return self._add(x, mlp(norm(x)), generator)

    def _add(self, x: Tensor, change: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.dropout and self.training:
            change = dropout(change, self.dropout, generator)
        return x + change if self.residual else change


class Backbone(nn.Module):
    """A stack of blocks and, unless the config says otherwise, a last norm; a first one if it does.

    With `gradient_checkpointing = True` training keeps only what goes into each block, and computes
    the rest again in the backward pass. The name is the one that transformers switches.

    `residual_dtype` is that of the residual stream; None keeps what comes in. In bfloat16 a GPU
    moves half of its bytes, and every block rounds what it adds to 8 bits. Norms compute in
    float32 all the same.
    """

    gradient_checkpointing: bool
    residual_dtype: torch.dtype | None
    _gradient_checkpointing_func: Callable[..., Any]

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.gradient_checkpointing = False
        self.residual_dtype = None
        self._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        self.first_norm = make_norm(config) if config.first_norm else None
        self.blocks = nn.ModuleList(Block(config, index) for index in range(config.num_layers))
        self.norm = make_norm(config) if config.final_norm else None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for block in self.blocks:
            assert isinstance(block, Block)
            block.reset_parameters(generator)
        for norm in (self.first_norm, self.norm):
            if norm is not None:
                norm.reset_parameters(generator)

    @property
    def packs(self) -> bool:
        """Whether rows may hold several sequences: all layers must take them."""
        return all(block.mixer.packs for block in self.blocks)  # type: ignore[union-attr]

    def compile_blocks(self) -> None:
        """Has torch.compile make the code of each block, and of the last norm, on their first use.

        Blocks of equal layers and sizes share it, so that a deep model takes no longer to compile
        than one block of each kind. Norms, activations and casts are computed again in the backward
        pass instead of kept: it needs them as factors of products, and what they are made of is
        there anyway.
        """
        for part in (*self.blocks, self.first_norm, self.norm):
            if part is not None:
                part.compile(backend=_keeping_less)

    def with_room(self, state: tuple[LayerState, ...], room: int) -> tuple[LayerState, ...]:
        """A copy of the state that keeps its shapes until `room` tokens are read in all."""
        return tuple(
            block.mixer.with_room(one, room)  # type: ignore[union-attr, operator]
            for block, one in zip(self.blocks, state, strict=True)
        )

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        state: tuple[LayerState, ...] | None = None,
        *,
        read_at: Int[Tensor, "batch asked"] | None = None,
        cu_seqlens: ops.CuSeqlens | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
        generator: torch.Generator | None = None,
        tokens: Int[Tensor, "batch time"] | None = None,
    ) -> tuple[Float[Tensor, "batch asked d_model"], tuple[LayerState, ...]]:
        """Outputs at every time, or at the times `read_at` alone; states after the last token.

        `mask` is True at tokens and False at padding, where outputs are zero. `generator` draws
        dropout, in training mode; None is PyTorch's own. `tokens` are for layers that read them.
        """
        if state is not None and len(state) != len(self.blocks):
            raise ValueError(f"{len(state)} states for {len(self.blocks)} blocks: one for each")
        states, shared = [], Shared(tokens=tokens)
        last = len(self.blocks) - 1
        again = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        if again and self.dropout and generator is not None:
            raise ValueError(
                "gradient checkpointing runs each block twice, and a generator would draw other "
                "dropout the second time: leave out generator, or gradient_checkpointing"
            )
        if self.residual_dtype is not None:
            x = x.to(self.residual_dtype)
        if self.first_norm is not None:
            x = self.first_norm(x)
        for index, block in enumerate(self.blocks):
            run = partial(
                block,
                read_at=read_at if index == last else None,
                cu_seqlens=cu_seqlens,
                mask=mask,
                generator=generator,
                shared=shared,
            )
            if again:
                run = partial(self._gradient_checkpointing_func, run)
            x, new, shared = run(x, None if state is None else state[index])
            states.append(new)
        if self.norm is not None:
            x = self.norm(x)
        if mask is not None:
            real = mask if read_at is None else mask.gather(1, read_at)
            x = x.masked_fill(~real[..., None].to(x.device), 0.0)
        return x, tuple(states)


def _keeping_less(graph: Any, inputs: list[Any]) -> Any:
    """torch.compile's own backend; what is cheap to compute is not kept for the backward pass.

    By default it keeps whatever the backward pass would have to write to memory once more.
    """
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    with config.patch(ban_recompute_materialized_backward=False):
        return compile_fx(graph, inputs)
