"""The kernel of the cross-entropy says what PyTorch says, in the interpreter and for Hopper."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.helpers import relative_error
from tests.ops.hopper import for_hopper
from tests.ops.interpreter import INTERPRETED

pytest.importorskip("triton")


@pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")
@pytest.mark.parametrize("vocab", [1, 16, 37])
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_losses_and_gradient(vocab: int, z_loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from statetrack.ops._triton import scores as kernel

    monkeypatch.setattr(kernel, "BLOCK", 16)
    generator = torch.Generator().manual_seed(0)
    scores = 4 * torch.randn(6, vocab, generator=generator)
    scores[0, vocab // 2 :] = -torch.inf
    targets = torch.randint(vocab, (6,), generator=generator)
    targets[0] = 0
    if vocab == 1:
        scores[0] = 0.5
    exact = scores.double().requires_grad_()
    each, log_z = cross_entropy(exact, targets, reduction="none"), exact.logsumexp(1)
    (expected,) = torch.autograd.grad(((each + z_loss * log_z.square()) / 7).sum(), exact)
    found = scores.clone()
    losses, found_z = kernel.cross_entropy_in_place(found, targets, 1 / 7, z_loss, gradient=True)
    assert torch.allclose(losses.double(), each, atol=1e-5)
    assert torch.allclose(found_z.double(), log_z, atol=1e-5)
    assert torch.allclose(found.double(), expected, atol=1e-6)
    kept = scores.clone()
    again, _ = kernel.cross_entropy_in_place(kept, targets, 1 / 7, z_loss, gradient=False)
    assert torch.equal(again, losses) and torch.equal(kept, scores)


@pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")
def test_half_precision_and_targets_that_are_none() -> None:
    from statetrack.ops._triton.scores import cross_entropy_in_place

    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 20, generator=generator).half()
    targets = torch.tensor([3, 19, -1, 20])
    exact = scores.double().requires_grad_()
    each = cross_entropy(exact[:2], targets[:2], reduction="none")
    (expected,) = torch.autograd.grad(each.sum(), exact)
    losses, _ = cross_entropy_in_place(scores, targets, 1.0, 0.0, gradient=True)
    assert relative_error(losses[:2].double(), each) < 1e-5
    assert relative_error(scores[:2].double(), expected[:2]) < 1e-3
    assert losses[2:].isnan().all()


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
def test_it_fits_on_hopper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statetrack.ops._triton import scores as kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = "*bf16 *i64 *fp32 *fp32 i32 fp32 fp32"
    stack, _ = for_hopper(kernel._cross_entropy_kernel, types, 8, GRADIENT=True, BLOCK=kernel.BLOCK)
    assert stack == 0
