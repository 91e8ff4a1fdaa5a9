"""Eigenvalues and products against plain linear algebra."""

import numpy as np
import pytest
import torch

from statetrack.analysis.spectra import (
    MAX_DOTS,
    dots,
    eigenvalues,
    eigenvalues_in_double,
    eigenvalues_on,
    gates,
    lifetime,
    product_norm,
    products,
)
from statetrack.layers import DeltaNet, DeltaProduct, Diagonal, FullMatrix, Layer
from statetrack.layers.transitions import Transitions
from statetrack.models import Tagger
from tests.training import tiny

LAYERS = [
    Diagonal(8),
    DeltaNet(8, num_heads=2),
    DeltaProduct(8, num_heads=2, num_householders=2),
    FullMatrix(8),
]


def name_of(layer: Layer) -> str:
    return type(layer).__name__


def transitions_of(layer: Layer) -> Transitions:
    x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return layer.transitions(x)


def by_size(values: object) -> np.ndarray:
    return np.sort(np.abs(np.asarray(values)), axis=-1)


@pytest.mark.parametrize("layer", LAYERS, ids=name_of)
def test_eigenvalues_are_those_of_the_matrices(layer: Layer) -> None:
    found = eigenvalues(transitions_of(layer))
    wanted = np.linalg.eigvals(transitions_of(layer).dense()[0].double().numpy())
    assert found.dtype == np.complex128 and found.shape == wanted.shape
    assert by_size(found) == pytest.approx(by_size(wanted), abs=1e-5)


@pytest.mark.parametrize("layer", LAYERS, ids=name_of)
def test_products_have_the_last_token_on_the_left(layer: Layer) -> None:
    transitions = transitions_of(layer)
    dense = transitions.dense()[0].double().numpy()
    found = products(transitions, [0, 3], 3)
    wanted = [dense[2] @ dense[1] @ dense[0], dense[5] @ dense[4] @ dense[3]]
    assert found.dense()[0].numpy() == pytest.approx(np.stack(wanted), abs=1e-6)
    values = by_size(eigenvalues_in_double(found))
    assert values == pytest.approx(by_size(np.linalg.eigvals(wanted)), abs=1e-5)
    norms = [np.linalg.norm(matrix, 2) for product in wanted for matrix in product]
    assert product_norm(found) == pytest.approx(max(norms), abs=1e-5)


def test_many_factors_are_multiplied_out() -> None:
    transitions = transitions_of(DeltaProduct(8, num_heads=1, num_householders=3))
    dense = transitions.dense()[0].double().numpy()
    found = products(transitions, [0], 6)  # 18 factors of 8 keys
    wanted = np.linalg.multi_dot([matrix[0] for matrix in dense[::-1]])
    assert by_size(eigenvalues_in_double(found)) == pytest.approx(
        by_size(np.linalg.eigvals(wanted)[None, None]), abs=1e-5
    )


def test_directions_that_are_left_alone_have_eigenvalue_exactly_1() -> None:
    for layer in LAYERS[1:3]:
        values = eigenvalues(transitions_of(layer))
        alone = values.shape[-1] - (1 if layer is LAYERS[1] else 2)
        assert ((values == 1).sum(axis=-1) >= alone).all()


def test_gates_are_beta_or_the_diagonal() -> None:
    assert [gates(transitions_of(layer))[0] for layer in LAYERS] == ["a", "beta", "beta", "a"]
    name, values = gates(transitions_of(LAYERS[2]))
    assert values.shape == (6, 2 * 2) and values.min() >= 0 and values.max() <= 2
    dense = transitions_of(LAYERS[3]).dense()[0, :, 0]
    diagonal = dense.diagonal(dim1=-2, dim2=-1).double().numpy()
    assert (gates(transitions_of(LAYERS[3]))[1] == diagonal).all()


def test_words_follow_each_other() -> None:
    model = Tagger(tiny.model())
    words = [torch.tensor([1, 2, 1]), torch.tensor([2, 2])]
    (name,) = both = eigenvalues_on(model, words)
    parts = [eigenvalues_on(model, [word])[name] for word in words]
    assert name == "backbone.blocks.0.mixer" and both[name].shape[0] == 5
    assert torch.equal(both[name], torch.cat(parts))


def test_eigenvalues_of_each_layer_come_from_its_own_input() -> None:
    model = Tagger(tiny.model())
    word = torch.tensor([1, 2, 2])
    (values,) = eigenvalues_on(model, [word]).values()
    assert values.shape == (3, 2, 4)  # tokens, heads, keys
    block = model.backbone.blocks[0]
    x = block.mixer_norm(model.embedding(word[None]))  # type: ignore[operator, union-attr]
    expected = block.mixer.transitions(x).eigenvalues()[0]  # type: ignore[operator, union-attr]
    torch.testing.assert_close(values.real, expected.detach().double())


def test_lifetime() -> None:
    assert lifetime(1.0) == np.inf and lifetime(0.0) == 1.0
    assert lifetime(0.9921875) == pytest.approx(587, abs=1)  # the largest bfloat16 below 1, as 1-β
    assert lifetime(0.5, remaining=0.25) == pytest.approx(2)


def test_dots_are_few_and_the_commonest_stay() -> None:
    spread = torch.linspace(-1, 1, 5000, dtype=torch.float64) * (1 + 0.3j)
    many = [torch.cat([spread, torch.ones(5000)]).to(torch.complex128)] * 2
    found = dots(many)
    assert len(found) <= MAX_DOTS and list(found) == sorted(found)
    assert sum(dot.share for dot in found) == pytest.approx(1, abs=1e-4)
    commonest = max(found, key=lambda dot: dot.share)
    assert (commonest.real, commonest.imag) == (1.0, 0.0)
    assert dots([]) == ()
