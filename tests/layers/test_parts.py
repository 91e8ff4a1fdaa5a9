"""What layers are built from."""

import pytest
import torch
from torch import Tensor, nn

from statetrack.layers.parts import RMSNorm, in_halves, linear


class Doubled(nn.Module):
    """As adapters wrap a projection."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inner(x)


@pytest.mark.parametrize("how", ["plain", "wrapped", "hook", "pre-hook", "bias"])
def test_halves_are_those_of_the_module_whatever_was_done_to_it(how: str) -> None:
    module: nn.Module = linear(6, 10, bias=how == "bias").double()
    g = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=g)
    if how == "wrapped":
        module = Doubled(module)
    elif how == "hook":
        module.register_forward_hook(lambda _, args, y: 3 * y)
    elif how == "pre-hook":
        module.register_forward_pre_hook(lambda _, args: (args[0] + 1,))
    x = torch.randn(2, 4, 6, generator=g, dtype=torch.float64)
    first, second = module(x).chunk(2, dim=-1)
    for half, want in zip(in_halves(module, x), (first, second), strict=True):
        assert half.is_contiguous() or how != "plain"
        torch.testing.assert_close(half, want, rtol=1e-12, atol=1e-12)
    whole, some = in_halves(module, x, torch.tensor([[3], [1]]))
    torch.testing.assert_close(whole, first, rtol=1e-12, atol=1e-12)
    wanted = torch.stack([second[0, 3:], second[1, 1:2]])
    torch.testing.assert_close(some, wanted, rtol=1e-12, atol=1e-12)


def test_rms_norm_of_groups_is_that_of_each_alone() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 6, generator=g, dtype=torch.float64)
    whole = RMSNorm(6, eps=0.1, groups=2).double()
    nn.init.normal_(whole.weight, generator=g)
    part = RMSNorm(3, eps=0.1).double()
    want = torch.cat([part(half) for half in x.chunk(2, dim=-1)], dim=-1) * whole.weight
    torch.testing.assert_close(whole(x), want, rtol=1e-12, atol=1e-12)
