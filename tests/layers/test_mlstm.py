"""The block-diagonal projections."""

import torch

from statetrack.layers.mlstm import with_zeros


def test_one_product_with_all_the_zeros() -> None:
    """What a GPU takes for mLSTM's block-diagonal projections."""
    weight = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
    dense = with_zeros(weight)
    assert torch.equal(dense, torch.block_diag(*weight))
    (grad,) = torch.autograd.grad((dense * torch.arange(36.0).view(6, 6)).sum(), weight)
    assert torch.equal(grad[1], torch.tensor([[14.0, 15.0], [20.0, 21.0]]))
