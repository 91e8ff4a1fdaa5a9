"""The cache: counts tokens, moves rows, and says what it cannot do."""

import copy

import pytest
import torch

from statetrack.hf import StatetrackCache
from tests.helpers import relative_error
from tests.hf.cases import TOKENS, wrapped


@torch.no_grad()
def test_counts_tokens_and_keeps_states() -> None:
    model = wrapped("DeltaNet", "Attention")
    cache = StatetrackCache()
    assert cache.get_seq_length() == 0 and cache.batch_size == -1 and not cache.is_initialized
    model(TOKENS[:, :4], past_key_values=cache, use_cache=True)
    assert cache.get_seq_length() == 4 and cache.batch_size == 3 and len(cache) == 2
    assert cache.get_mask_sizes(2, 0) == (6, 0) and cache.get_max_length() == -1
    assert cache.has_previous_state() and cache.is_initialized
    assert not cache.is_compileable and not cache.is_croppable
    before = copy.deepcopy(cache)
    whole = model(TOKENS).logits[:, 4:]
    for one in (cache, before):  # using the one has left the other as it was
        later = model(TOKENS[:, 4:], past_key_values=one, use_cache=True).logits
        assert relative_error(later, whole) < 1e-9
    cache.reset()
    assert cache.states is None and cache.get_seq_length() == 0


@torch.no_grad()
def test_rows_move() -> None:
    model = wrapped("Mamba", "Attention", "SLSTM")
    whole = model(TOKENS).logits[:, 6:]
    for move, rows in (
        (lambda cache: cache.reorder_cache(torch.tensor([2, 0, 2])), [2, 0, 2]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
    ):
        cache = model(TOKENS[:, :6], use_cache=True).past_key_values
        move(cache)
        assert cache.batch_size == len(rows)
        later = model(TOKENS[rows, 6:], past_key_values=cache).logits
        assert relative_error(later, whole[rows]) < 1e-9


def test_what_a_state_cannot_do() -> None:
    cache = StatetrackCache()
    with pytest.raises(ValueError, match="cannot forget its last tokens"):
        cache.crop(-1)
    with pytest.raises(ValueError, match="cannot go back"):
        cache.activate_past_recording()
    with pytest.raises(ValueError, match="no keys and values"):
        cache.update(torch.zeros(1), torch.zeros(1), 0)
