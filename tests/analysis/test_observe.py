"""What layers are given is seen, in order, and nothing is left behind."""

import pytest
import torch
from torch import Tensor, nn

from statetrack.analysis.observe import observe
from statetrack.layers import DeltaNet
from statetrack.layers.transitions import HouseholderTransitions


class Twice(nn.Module):
    """Two layers, named out of order; the first reads the word in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.second = DeltaNet(8, num_heads=2)
        self.first = DeltaNet(8, num_heads=2)
        self.embedding = nn.Embedding(3, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        if int(tokens.max()) > 1:
            raise RuntimeError("2 is not read")
        x = self.embedding(tokens)
        a, state = self.first(x[:, :2])
        b, _ = self.first(x[:, 2:], state)
        y: Tensor = self.second(torch.cat([a, b], dim=1))[0]
        return y


def hooks(model: nn.Module) -> int:
    return sum(len(part._forward_pre_hooks) for part in model.modules())


def test_layers_come_in_running_order_with_their_last_call() -> None:
    torch.manual_seed(0)
    model = Twice()
    first, second = observe(model, torch.tensor([0, 1, 1, 0, 1]))
    assert (first.name, second.name) == ("first", "second")
    assert first.layer is model.first and second.layer is model.second
    assert first.x.shape == (1, 3, 8) and second.x.shape == (1, 5, 8)
    assert first.state is not None and second.state is None
    assert torch.equal(first.x[0, 0], model.embedding.weight[1])
    assert hooks(model) == 0
    found = first.transitions()
    assert isinstance(found, HouseholderTransitions) and not found.beta.requires_grad


def test_hooks_go_also_when_the_model_fails() -> None:
    model = Twice()
    with pytest.raises(RuntimeError, match="2 is not read"):
        observe(model, torch.tensor([2]))
    assert hooks(model) == 0


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear holds no layer"):
        observe(nn.Linear(2, 2), torch.tensor([0]))
