"""The optimisers of pretraining against torch's own, and their state by name."""

import pytest
import torch

from statetrack.lm import PretrainOptimizerConfig
from statetrack.lm.optimizer import Optimizer
from statetrack.models import CausalLM
from tests.lm import corpus


def built() -> CausalLM:
    return CausalLM(corpus.model(), generator=torch.Generator().manual_seed(0))


def trained(model: CausalLM, step: object, steps: int = 3) -> None:
    tokens = torch.arange(24).view(2, 12)
    for _ in range(steps):
        model.zero_grad()
        model.loss(tokens[:, :-1], tokens[:, 1:])[0].backward()
        step()  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_the_same_as_torch(kind: str) -> None:
    config = PretrainOptimizerConfig(kind=kind, lr=1e-2, weight_decay=0.1, decay="all")
    ours, theirs = built(), built()
    optimizer = Optimizer(ours, config)
    trained(ours, optimizer.step)
    named = dict(theirs.named_parameters())
    matrices = [n for n in named if "blocks" in n and n.endswith("_proj.weight")]
    by_muon = matrices if kind == "muon" else []
    adamw = torch.optim.AdamW(
        [p for n, p in named.items() if n not in by_muon],
        lr=1e-2,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        fused=True,
    )
    others: list[torch.optim.Optimizer] = [adamw]
    if by_muon:
        muon = torch.optim.Muon(
            [named[n] for n in by_muon],
            lr=1e-2,
            weight_decay=0.1,
            momentum=0.95,
            adjust_lr_fn="match_rms_adamw",
        )
        others.append(muon)
    trained(theirs, lambda: [one.step() for one in others])
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_moves_to_another(kind: str) -> None:
    config = PretrainOptimizerConfig(kind=kind, lr=1e-2)
    whole, first, second = built(), built(), built()
    optimizer = Optimizer(whole, config)
    trained(whole, optimizer.step, steps=5)
    begun = Optimizer(first, config)
    trained(first, begun.step, steps=2)
    second.load_state_dict(first.state_dict())
    rest = Optimizer(second, config)
    saved = dict(begun.state())
    for name, value in rest.state():
        value.copy_(saved.pop(name))
    assert not saved
    rest.set_updates(2)
    trained(second, rest.step, steps=3)
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_rate_is_set_for_all_and_may_change(recorded: bool) -> None:
    """A recorded step reads it from a tensor: the same numbers up to its rounding."""
    config = PretrainOptimizerConfig(lr=1e-2, weight_decay=0.1)
    model, wanted = built(), built()
    optimizer = Optimizer(model, config, recorded=recorded)
    others = Optimizer(wanted, PretrainOptimizerConfig(lr=3e-3, weight_decay=0.1))
    optimizer.set_rate(3e-3)
    trained(model, optimizer.step, steps=1)  # later ones turn rounding into steps
    trained(wanted, others.step, steps=1)
    for a, b in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-8)
    rates = [group["lr"] for part in optimizer.parts for group in part.param_groups]
    assert all(isinstance(rate, torch.Tensor) == recorded for rate in rates)
