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


@interpreted
@pytest.mark.parametrize(
    ("rows", "outputs", "features"), [((1, 1), 12, 40), ((2, 1), 7, 1100), ((4,), 600, 16)]
)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_few_rows(
    rows: tuple[int, ...], outputs: int, features: int, gated: bool, norm: bool
) -> None:
    from statetrack.ops._triton.few import few_rows

    x = drawn(*rows, features, dtype=torch.float32)
    weight = drawn(2 * outputs if gated else outputs, features, dtype=torch.float32) / 8
    scale = drawn(features, dtype=torch.float32) if norm else None
    onto = drawn(*rows, outputs, dtype=torch.float32)
    read = x.double()
    if scale is not None:
        read = read / (read.square().mean(-1, keepdim=True) + 0.1).sqrt() * scale.double()
    exact = linear(read, weight.double())
    if gated:
        gate, up = exact.chunk(2, dim=-1)
        exact = silu(gate) * up
    found = few_rows(x, weight, norm=scale, eps=0.1, gated=gated)
    assert found.shape == exact.shape and relative_error(found.double(), exact) < 1e-5
    found = few_rows(x, weight, norm=scale, eps=0.1, gated=gated, onto=onto)
    assert relative_error(found.double(), exact + onto.double()) < 1e-5


@interpreted
@pytest.mark.parametrize("rows", [1, 5])
def test_a_block_takes_them_for_few_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from statetrack.layers import parts
    from statetrack.models import Backbone, BackboneConfig
    from statetrack.ops._triton import few

    config = BackboneConfig(mixers=[("DeltaNet", {"num_heads": 2, "backend": "torch"})], d_model=16)
    block = Backbone(config).blocks[0]
    block.reset_parameters(torch.Generator().manual_seed(0))
    x = drawn(rows, 1, 16, dtype=torch.float32)
    wanted = block(x)[0]
    calls = []
    original = few.few_rows
    monkeypatch.setattr(few, "few_rows", lambda *a, **k: calls.append(k) or original(*a, **k))
    monkeypatch.setattr(parts, "in_kernels", lambda x: not torch.is_grad_enabled())
    with torch.no_grad():
        found = block(x)[0]
        assert len(calls) == (4 if rows <= few.LEAST_ROWS else 0)
        assert relative_error(found, wanted) < 1e-6
        block.mlp.register_forward_hook(lambda *_: None)  # now it must be called
        found = block(x)[0]
    assert relative_error(found, wanted) < 1e-6
    assert len(calls) == (6 if rows <= few.LEAST_ROWS else 0)


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
def test_they_fit_on_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statetrack.ops._triton import few

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = "*bf16 *bf16 *fp32 i32 i32"
    stack, _ = for_hopper(few._few_outputs_kernel, types, 4, SIGMOID=True, BN=8, BK=1024)
    assert stack == 0
    stack, _ = for_hopper(few._gated_by_silu_kernel, "*bf16 *bf16 i32", 4, BLOCK=1024)
    assert stack == 0
    types = "*bf16 *bf16 *bf16 *bf16 *bf16 i32 i32 fp32"
    for gated in (False, True):
        stack, _ = for_hopper(few._few_rows_kernel, types, 8, GATED=gated, BN=8, BK=1024)
        assert stack == 0
