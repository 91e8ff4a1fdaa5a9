"""The products of decoding at real sizes in bf16, and a block that takes them."""

import pytest
import torch
from torch.nn.functional import silu

from tests.helpers import relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("rows", "outputs", "features", "gated"),
    [(1, 2816, 1024, True), (1, 1024, 2816, False), (4, 3072, 1024, False), (2, 5632, 2048, True)],
)
def test_few_rows(rows: int, outputs: int, features: int, gated: bool) -> None:
    from statetrack.ops._triton.few import few_rows

    dice = torch.Generator("cuda").manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=dice).bfloat16()

    x, norm, onto = drawn(rows, 1, features), drawn(features), drawn(rows, 1, outputs)
    weight = drawn(2 * outputs if gated else outputs, features) / features**0.5
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    exact = exact * norm.double() @ weight.double().T
    if gated:
        gate, up = exact.chunk(2, dim=-1)
        exact = silu(gate) * up
    found = few_rows(x, weight, norm=norm, eps=1e-6, gated=gated, onto=onto)
    assert relative_error(found.double(), exact + onto.double()) < 1e-2


def test_a_step_of_one_sequence_is_that_of_many() -> None:
    """Five rows are too many for these kernels."""
    from statetrack.models import CausalLM, lm_config

    dice = torch.Generator().manual_seed(0)
    model = CausalLM(lm_config("DeltaNet", "20M", vocab_size=99), generator=dice).cuda().eval()
    tokens = torch.arange(5, device="cuda")
    with torch.no_grad():
        many, _ = model.step(tokens)
        one, _ = model.step(tokens[:1])
    assert relative_error(one, many[:1]) < 1e-4
