"""The loss without all scores: the numbers and gradients of cross-entropy, in little memory."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig, loss
from statetrack.models.loss import linear_cross_entropy
from tests.helpers import relative_error

TOKENS, WIDTH, VOCAB = 37, 5, 11


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("chunk", [1, 8, 37, 64])
@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_numbers_and_gradients(chunk: int, z_loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK", chunk)
    x, weight = drawn(TOKENS, WIDTH), drawn(VOCAB, WIDTH, seed=1)
    targets = torch.randint(VOCAB, (TOKENS,), generator=torch.Generator().manual_seed(2))
    scores = x @ weight.T
    each = cross_entropy(scores, targets, reduction="none")
    wanted = each.mean() + z_loss * scores.logsumexp(1).square().mean()
    expected = torch.autograd.grad(wanted * 3, [x, weight])
    mean, losses = linear_cross_entropy(x, weight, targets, z_loss=z_loss)
    found = torch.autograd.grad(mean * 3, [x, weight])
    assert relative_error(mean.double(), wanted) < 1e-6
    assert relative_error(losses.double(), each) < 1e-6
    assert not losses.requires_grad
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < 1e-6


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = function(*args, **(kwargs or {}))
        made = found if isinstance(found, tuple | list) else [found]
        self.bytes = max([self.bytes, *(t.nbytes for t in made if isinstance(t, torch.Tensor))])
        return found


def test_scores_are_never_all_in_memory() -> None:
    tokens, vocab = 4 * loss.CHUNK, 512
    x, weight = drawn(tokens, 4).float(), drawn(vocab, 4, seed=1).float()
    targets = torch.zeros(tokens, dtype=torch.long)
    with Largest() as seen:
        linear_cross_entropy(x, weight, targets)[0].backward()
    assert seen.bytes == loss.CHUNK * vocab * 4 < tokens * vocab * 4


@pytest.mark.parametrize("tied", [False, True])
def test_the_model_s_loss_is_the_mean_of_its_losses(tied: bool) -> None:
    backbone = BackboneConfig(mixers=["DeltaNet"], d_model=16, mlp_dim=16)
    config = CausalLMConfig(vocab_size=VOCAB, backbone=backbone, tie_embeddings=tied)
    gradients = []
    for way in ("loss", "losses"):
        model = CausalLM(config, generator=torch.Generator().manual_seed(0))
        tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
        if way == "loss":
            mean, each, _ = model.loss(tokens[:, :-1], tokens[:, 1:])
        else:
            losses, _ = model.losses(tokens[:, :-1], tokens[:, 1:])
            assert relative_error(each, losses) < 1e-6
            assert relative_error(mean, losses.mean()) < 1e-6
            mean = losses.mean()
        mean.backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert relative_error(one, other) < 1e-5


def test_bf16_scores_under_autocast() -> None:
    x, weight = drawn(TOKENS, WIDTH).float(), drawn(VOCAB, WIDTH, seed=1).float()
    targets = torch.zeros(TOKENS, dtype=torch.long)
    exact, _ = linear_cross_entropy(x, weight, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mean, _ = linear_cross_entropy(x, weight, targets)
    assert mean.dtype == torch.float32 and mean != exact
    assert relative_error(mean, exact) < 1e-2
