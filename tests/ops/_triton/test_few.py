"""The small kernels of decoding against plain products, in the interpreter and for Hopper."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear, silu

from tests.helpers import relative_error
from tests.ops.hopper import for_hopper
from tests.ops.interpreter import INTERPRETED

pytest.importorskip("triton")
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("rows", "outputs", "features"), [((3, 1), 8, 1030), ((5,), 1, 7), ((2, 1), 5, 2048)]
)
def test_few_outputs(
    rows: tuple[int, ...], outputs: int, features: int, dtype: torch.dtype
) -> None:
    from statetrack.ops._triton.few import few_outputs

    x, weight = drawn(*rows, features, dtype=dtype), drawn(outputs, features, dtype=dtype)
    exact = linear(x.double(), weight.double())
    found = few_outputs(x, weight)
    assert found.dtype == torch.float32 and found.shape == exact.shape
    assert torch.equal(found, found.to(dtype).float()), "rounded as a product"
    tolerance = 1e-6 if dtype == torch.float32 else 1e-3
    assert relative_error(found.double(), exact) < tolerance
    gate = few_outputs(x / 40, weight, sigmoid=True)
    assert relative_error(gate.double(), (exact / 40).sigmoid()) < tolerance


@interpreted
@pytest.mark.parametrize("features", [1, 33, 1100])
def test_gated_by_silu(features: int) -> None:
    from statetrack.ops._triton.few import gated_by_silu

    x = drawn(3, 1, 2 * features, dtype=torch.float32)
    gate, up = x.double().chunk(2, dim=-1)
    assert relative_error(gated_by_silu(x).double(), silu(gate) * up) < 1e-6


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
def test_they_fit_on_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statetrack.ops._triton import few

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = "*bf16 *bf16 *fp32 i32 i32"
    stack, _ = for_hopper(few._few_outputs_kernel, types, 4, SIGMOID=True, BN=8, BK=1024)
    assert stack == 0
    stack, _ = for_hopper(few._gated_by_silu_kernel, "*bf16 *bf16 i32", 4, BLOCK=1024)
    assert stack == 0
