"""`CausalLM` as a model of transformers: the same weights and the same function, other names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init
from transformers import Cache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from statetrack import ops
from statetrack.hf.cache import StatetrackCache
from statetrack.hf.configuration import StatetrackConfig
from statetrack.models import Backbone, CausalLM
from statetrack.models._tokens import expect_integers
from statetrack.ops._checks import check_shape, checking_values

__all__ = ["StatetrackForCausalLM"]

IGNORED = -100
"""The label of a token that does not count."""


class StatetrackForCausalLM(PreTrainedModel, GenerationMixin):
    """A language model of any layers of this library, for all that takes transformers' models.

    >>> from statetrack.models import BackboneConfig, CausalLMConfig
    >>> backbone = BackboneConfig(mixers=["DeltaNet"], d_model=32)
    >>> config = StatetrackConfig(CausalLMConfig(vocab_size=100, backbone=backbone))
    >>> model = StatetrackForCausalLM(config)
    >>> tokens = torch.tensor([[7, 2, 9]])
    >>> model(tokens, labels=tokens).logits.shape
    torch.Size([1, 3, 100])
    >>> model.generate(tokens, max_new_tokens=5, do_sample=False).shape
    torch.Size([1, 8])
    """

    config_class = StatetrackConfig
    config: StatetrackConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _no_split_modules = ["Block"]
    _is_stateful = True

    def __init__(self, config: StatetrackConfig) -> None:
        super().__init__(config)
        self.model = CausalLM(config.description)
        for parameter in self.model.parameters():
            parameter._is_hf_initialized = not parameter.is_meta
        self.post_init()

    @classmethod
    def of(cls, model: CausalLM) -> "StatetrackForCausalLM":
        """The same model, not a copy."""
        with torch.device("meta"):
            wrapped = cls(StatetrackConfig(model.config, dtype=model.embedding.weight.dtype))
        wrapped.model = model
        return wrapped.train(model.training)

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Draws what a checkpoint lacks; `CausalLM` has drawn the rest, or it was loaded."""
        missing = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if not getattr(parameter, "_is_hf_initialized", False)
        }
        if missing:
            with torch.device("cpu"):
                drawn = CausalLM(self.config.description).state_dict()
            for name, parameter in missing.items():
                parameter.copy_(drawn[name])
                parameter._is_hf_initialized = True

    def _init_weights(self, module: nn.Module) -> None:
        """Draws the rows that `resize_token_embeddings` adds; it calls this for nothing else."""
        if isinstance(module, nn.Embedding | nn.Linear):
            init.normal_(module.weight, std=self.config.description.embedding_std)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Nothing: a saved folder imports this class, and needs no copy of its source."""

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embedding = value

    def get_output_embeddings(self) -> nn.Module | None:
        """The head, or None where it is the embedding."""
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module | None) -> None:
        self.model.head = new_embeddings

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """Changes the vocabulary, as in every model of transformers."""
        table = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.model.config = self.config.description
        return table

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        *,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
        seq_idx: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        token_type_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Scores for the next token after each, and the loss where `labels` are given.

        Tokens, positions and labels are [batch, time]; labels are the tokens themselves, -100 where
        they do not count. `attention_mask` is 1 at tokens and 0 at padding, on the left or the
        right: each sequence has the scores it has alone.

        Several sequences in one row are packed: `cu_seq_lens_q` and `max_length_q` say where each
        begins, or `seq_idx`, or `position_ids` that start anew in a batch of one row. So
        `DataCollatorWithFlattening` works with each of its options. Positions are used for nothing
        else, `token_type_ids`, `cu_seq_lens_k` and `max_length_k` for nothing at all.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give one of input_ids and inputs_embeds")
        if output_attentions:
            raise ValueError("a statetrack model shows no attention weights: output_attentions")
        if input_ids is not None:
            expect_integers("input_ids", input_ids)
        else:
            sizes = {"hidden_size": self.config.hidden_size}
            check_shape("inputs_embeds", inputs_embeds, "batch time hidden_size", sizes)
        given = input_ids if input_ids is not None else inputs_embeds
        assert given is not None
        batch, time = given.shape[:2]
        mask = _mask(attention_mask, batch, time)
        cache = None if past_key_values is None else _expect_ours(past_key_values)
        states = None if cache is None else cache.states
        packing = _packing(cu_seq_lens_q, max_length_q)
        if packing is None and mask is None and states is None:
            packing = _packing_by_tokens(seq_idx, position_ids)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        checkpointing = self.model.backbone.gradient_checkpointing and self.training
        use_cache = use_cache and packing is None and not checkpointing
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        x = self.model.embed(input_ids, mask) if inputs_embeds is None else inputs_embeds
        kept = _places(logits_to_keep, given)
        with _recording(self.model.backbone, bool(output_hidden_states)) as hidden:
            x, states = self.model.backbone(
                x,
                states,
                read_at=None if output_hidden_states else kept,
                cu_seqlens=packing,
                mask=mask,
                tokens=input_ids,
            )
        if hidden is not None:
            hidden.append(x)
            x = x if kept is None else x[:, kept[0].to(x.device)]
        logits = self.model.scores(x)
        loss = None
        if labels is not None:
            if kept is not None:
                raise ValueError("a loss needs the scores of all tokens: leave out logits_to_keep")
            _check_labels(labels, given, logits.shape[-1])
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=logits.shape[-1],
                num_items_in_batch=num_items_in_batch,
            )
        if use_cache:
            cache = StatetrackCache() if cache is None else cache
            cache.advance(states, time)
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=cache if use_cache else None,
            hidden_states=None if hidden is None else tuple(hidden),  # type: ignore[arg-type]
        )
        whole = self.config.return_dict if return_dict is None else return_dict
        return output if whole else output.to_tuple()


def _expect_ours(cache: Any) -> StatetrackCache:
    if not isinstance(cache, StatetrackCache):
        raise ValueError(
            f"past_key_values is a {type(cache).__name__}, but a statetrack model takes a "
            "statetrack.hf.StatetrackCache; leave it out to begin a new one"
        )
    return cache


def _mask(attention_mask: Tensor | None, batch: int, time: int) -> Tensor | None:
    """True at tokens; None where nothing is padding. The last `time` columns are about them."""
    if attention_mask is None:
        return None
    shape = tuple(attention_mask.shape)
    if len(shape) != 2 or shape[0] != batch or shape[1] < time:
        raise ValueError(
            f"attention_mask has shape {shape}, but must be [{batch}, {time}] or longer by the "
            "tokens of the cache: 1 at tokens, 0 at padding"
        )
    mask = attention_mask[:, -time:].bool()
    return None if bool(mask.all()) else mask


def _packing(cu_seq_lens: Tensor | None, longest: int | None) -> ops.CuSeqlens | None:
    if cu_seq_lens is None or longest is None:
        return cu_seq_lens
    return ops.Packing(cu_seq_lens[None], int(longest))


def _packing_by_tokens(seq_idx: Tensor | None, position_ids: Tensor | None) -> Tensor | None:
    """The offsets of several sequences in one row, from a number of each token."""
    if seq_idx is not None:
        starts = seq_idx.diff() != 0
    elif position_ids is not None and position_ids.dim() == 2:
        starts = position_ids.diff() <= 0
    else:
        return None
    if len(starts) != 1 or not bool(starts.any()):
        return None
    inner = starts[0].nonzero().flatten() + 1
    ends = inner.new_tensor([0]), inner, inner.new_tensor([starts.shape[1] + 1])
    return torch.cat(ends).int()


def _places(logits_to_keep: int | Tensor, given: Tensor) -> Tensor | None:
    """The times whose scores are asked for, the same in every row; None is all of them."""
    batch, time = given.shape[:2]
    if isinstance(logits_to_keep, int):
        if logits_to_keep == 0:
            return None
        times = torch.arange(max(time - logits_to_keep, 0), time, device=given.device)
    else:
        times = torch.arange(time, device=given.device)[logits_to_keep.to(given.device)]
    return times.expand(batch, -1)


def _check_labels(labels: Tensor, given: Tensor, size: int) -> None:
    """Refuses what no token can be, where looking at values is free or asked for."""
    if labels.shape != given.shape[:2]:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)} and the tokens {tuple(given.shape[:2])}: "
            "labels are the tokens themselves, the model shifts them"
        )
    free = labels.device.type == "cpu" and not torch.compiler.is_compiling()
    if not (labels.numel() and (free or checking_values())):
        return
    wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= size))]
    if len(wrong):
        raise ValueError(
            f"label {int(wrong[0])} is not in the vocabulary: the model knows 0 to {size - 1}, and "
            f"{IGNORED} for tokens that do not count"
        )


@contextmanager
def _recording(backbone: Backbone, wanted: bool) -> Iterator[list[Tensor] | None]:
    """Collects what goes into each block, if it is wanted."""
    if not wanted:
        yield None
        return
    found: list[Tensor] = []

    def keep(block: nn.Module, args: tuple[Any, ...]) -> None:
        found.append(args[0])

    handles = [block.register_forward_pre_hook(keep) for block in backbone.blocks]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
