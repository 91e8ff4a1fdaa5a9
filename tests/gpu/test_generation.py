"""Generation on a GPU: what captured steps write is what the eager model writes."""

import pytest
import torch

from statetrack.models import Constraint, Sampling, generation
from tests.layers.cases import SIZES
from tests.models.test_causal_lm import build

PROMPTS = [[1, 2, 3, 4, 5], [6], [7, 8]]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def written(model, monkeypatch, *, eager: bool, count: int = 70, **options):  # type: ignore[no-untyped-def]
    """What a model writes, and how many graphs it was captured in."""
    captured = []
    real = generation._Writer._capture

    def capture(self) -> None:  # type: ignore[no-untyped-def]
        if eager:
            self.eager = True
        else:
            real(self)
            captured.append(self.graph)

    with monkeypatch.context() as patch:
        patch.setattr(generation._Writer, "_capture", capture)
        found = model.generate(PROMPTS, max_new_tokens=count, **options)
    return found, captured


@pytest.mark.parametrize("name", list(SIZES))
def test_captured_steps_are_eager_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name, "DeltaNet", "Attention").float().cuda()
    expected, none = written(model, monkeypatch, eager=True)
    found, captured = written(model, monkeypatch, eager=False)
    assert not none and len(captured) == 1 and captured[0] is not None
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("count", [2, 63, 64, 65, 71])
def test_any_number_of_tokens(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole bursts and others; with ends in their middle."""
    model = build("DeltaNet", "Attention").double().cuda()
    expected, _ = written(model, monkeypatch, eager=True, count=count)
    stop = [int(expected[0][count // 2])]
    for options in ({}, {"stop": stop}):
        expected, _ = written(model, monkeypatch, eager=True, count=count, **options)
        found, _ = written(model, monkeypatch, eager=False, count=count, **options)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_machine_holds_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("DeltaNet", "Mamba2").double().cuda()
    letters = [token % 2 for token in range(len(model.embedding.weight))]
    even = Constraint([[0, 1], [1, 0]], letters, [True, False], end=3)
    options = {"constraint": even, "sampling": Sampling(temperature=0.0, repetition_penalty=1.5)}
    expected, _ = written(model, monkeypatch, eager=True, **options)
    found, captured = written(model, monkeypatch, eager=False, **options)
    assert captured
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("count", [30, 80])
def test_drawn_tokens_follow_the_seed(count: int) -> None:
    model = build("DeltaNet", "Mamba2").float().cuda()

    def drawn(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(seed)
        sampling = Sampling(temperature=1.5, top_k=10, top_p=0.9, repetition_penalty=1.1)
        return model.generate(PROMPTS, max_new_tokens=count, sampling=sampling, generator=generator)

    assert all(torch.equal(a, b) for a, b in zip(drawn(0), drawn(0), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(drawn(0), drawn(1), strict=True))
    assert len(set(drawn(0)[0].tolist())) > 5  # a graph draws other numbers every time


@pytest.mark.parametrize("name", ["DeltaNet", "GatedDeltaNet"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_without_a_gradient_say_what_layers_say(name: str, dtype: torch.dtype) -> None:
    """Norms, gates and activations have kernels of their own where no gradient is asked for."""
    model = build(name).to("cuda", dtype)
    tokens = torch.randint(len(model.embedding.weight), (3, 5), device="cuda")
    with_gradient, _ = model(tokens)
    assert with_gradient.requires_grad
    with torch.no_grad():
        without, _ = model(tokens)
    error = (without - with_gradient).norm() / with_gradient.norm()
    assert error < (1e-5 if dtype == torch.float32 else 2e-2)
