"""The table of vectors, by look-up and by products, and dropout."""

import math

import pytest
import torch

from statetrack.models.parts import PARTS, LookUp, dropout, look_up


@pytest.mark.parametrize("shape", [(3, 7), (4, 32)], ids=["one product", "many"])
@pytest.mark.parametrize("mapped", [False, True], ids=["alone", "vmap"])
def test_a_look_up_by_products_is_an_embedding(shape: tuple[int, int], mapped: bool) -> None:
    """Its gradient, too, which no autocast region makes less precise."""
    assert math.prod(shape) % PARTS == 0 or shape == (3, 7)

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2, 5, 8, generator=generator).requires_grad_()
    tokens = torch.randint(0, 5, (2, *shape), generator=generator)
    weights = torch.randn(2, *shape, 8, generator=generator)
    wanted = torch.stack([weight[run][tokens[run]] for run in (0, 1)])
    want = torch.autograd.grad((wanted * weights).sum(), weight)[0]

    def one(weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return LookUp.apply(weight[None], tokens[None])[0]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        run = torch.vmap(one) if mapped else LookUp.apply
        got = run(weight, tokens)
        assert torch.equal(got, wanted)
        torch.testing.assert_close(torch.autograd.grad((got * weights).sum(), weight)[0], want)


@pytest.mark.parametrize("token", [-1, 5])
def test_a_look_up_of_no_token_fails(token: int) -> None:
    weight, tokens = torch.zeros(1, 5, 8), torch.full((1, 2, 3), token)
    for run in (LookUp.apply, look_up):
        with pytest.raises(IndexError):
            run(weight, tokens)


def test_dropout_keeps_the_mean_and_has_a_generator() -> None:
    x = torch.ones(100, 100)
    first, again, other = (
        dropout(x, 0.25, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    kept = first != 0
    assert abs(kept.double().mean() - 0.75) < 0.02
    assert torch.allclose(first[kept], torch.tensor(4 / 3))
