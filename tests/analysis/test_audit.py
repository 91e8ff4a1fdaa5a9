"""The auditor on trained classes and compiled networks, and on the paper's counterexamples."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from statetrack.analysis import audit
from statetrack.automata import Machine, groups, read
from statetrack.compiler import check, compile
from statetrack.layers import DeltaNet, DeltaProduct, Diagonal
from statetrack.models import BackboneConfig, Tagger, TaggerConfig

LINEAR = ["DeltaNet", "DeltaProduct", "GatedDeltaNet", "Mamba", "GLA", "RWKV7", "FullMatrix"]


def tagger(mixer: str, **options: object) -> Tagger:
    backbone = BackboneConfig(mixers=[(mixer, options)] * 2, d_model=32)
    config = TaggerConfig(vocab_size=3, num_classes=3, backbone=backbone)
    return Tagger(config, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mixer", LINEAR)
def test_taggers_show_every_layer_in_their_range(mixer: str) -> None:
    found = audit(tagger(mixer), [0, 1, 2, 2, 1, 0, 1])
    assert len(found.layers) == 2 and found.tokens == tuple("0122101")
    for index, layer in enumerate(found.layers):
        assert layer.kind == mixer and layer.eigenvalues.shape[0] == 7
        assert layer.window == 2**index and len(layer.products) == 7 - layer.window + 1
        assert layer.lowest >= -1 - 1e-6
        assert np.abs(layer.eigenvalues).max() <= 1 + 1e-5
    assert "theorem 1" in str(found)


@pytest.mark.parametrize("mixer", ["DeltaNet", "Mamba", "GLA"])
def test_models_in_0_1_meet_neither_theorem(mixer: str) -> None:
    found = audit(tagger(mixer, eigen_range=(0.0, 1.0)))
    assert not found.theorem1.weak and not found.theorem2.weak and found.theorem1.where is None


def test_a_layer_alone() -> None:
    layer = DeltaNet(16, num_heads=2, conv_size=0)
    found = audit(layer, torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0)))
    assert found.layers[0].eigenvalues.shape == (5, 2, 8)
    beta = found.layers[0].gates
    least = np.sort(found.layers[0].eigenvalues.real, axis=-1)[..., 0]
    assert np.allclose(least, np.minimum(1 - beta, 1), atol=1e-6)


class Stack(nn.Module):
    """Layers one after another on one-hot tokens; what is between them is left out."""

    def __init__(self, *layers: Diagonal, vocabulary: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.vocabulary = vocabulary

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.nn.functional.one_hot(tokens, self.vocabulary).float()
        for layer in self.layers:
            x, _ = layer(x)
        return x


def diagonal(decay: list[float]) -> Diagonal:
    """A diagonal layer whose decays are the same for all tokens."""
    layer = Diagonal(len(decay))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.decay_proj.bias.copy_(torch.tensor(decay).atanh().clamp(-50, 50))
        layer.input_proj.bias.fill_(1.0)
    return layer


@pytest.mark.parametrize(
    ("decay", "tokens"), [(0.9991, 5114), (0.99999, 459_890), (0.5, 6.6), (-0.9991, 5114)]
)
def test_an_eigenvalue_near_1_fades(decay: float, tokens: float) -> None:
    found = audit(Stack(diagonal([decay, decay]), vocabulary=2), [0, 1]).layers[0]
    assert found.lifetime == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize("decay", [[1.0, 1.0], [1.0, -1.0]])
def test_an_eigenvalue_on_the_circle_does_not(decay: list[float]) -> None:
    found = audit(Stack(diagonal(decay), vocabulary=2), [0, 1])
    assert found.layers[0].lifetime == np.inf and "for ever" in str(found)


@pytest.mark.parametrize("letters", [200, 400])
@pytest.mark.parametrize("where", [0, 0.37, 0.71, 1])
def test_one_letter_of_many_meets_theorem_2(letters: int, where: float) -> None:
    """All others are the identity; the one that turns three points may stand anywhere."""
    same = list(range(letters))
    same[round(where * (letters - 1))] = -1
    table = [[state if a >= 0 else (state + 1) % 3 for a in same] for state in range(3)]
    found = audit(compile(Machine.from_table(table)))
    assert found.theorem1.strong and found.theorem2.strong
    assert f"{letters} different" in str(found)


@pytest.mark.parametrize("name", ["mod_arithmetic_3", "dyck_2_depth_3"])
def test_the_word_that_is_read_stays_out_of_sinks(name: str) -> None:
    machine = read(name)
    found = audit(compile(machine))
    word = [int(np.flatnonzero([str(a) == token for a in machine.alphabet])[0])
            for token in found.tokens]  # fmt: skip
    assert set(word) == set(range(machine.num_letters))
    sink = (machine.delta == np.arange(machine.num_states)[:, None]).all(axis=1)
    assert sink[machine.run(word)].mean() < 0.1
    assert found.theorem2.strong == (name == "mod_arithmetic_3")


def test_letters_that_only_lead_into_a_sink_are_read_too() -> None:
    found = audit(compile(Machine.from_table([[0, 1], [1, 1]], outputs=[0, 1])))
    assert set(found.tokens) == {"0", "1"} and found.tokens[0] == "0"


def test_what_is_a_sample_is_said() -> None:
    word = torch.randint(0, 3, (600,), generator=torch.Generator().manual_seed(0))
    few = audit(tagger("RWKV7"), word)
    assert "256 of the 599 products of 2" in str(few) and "all 600 products of 1" in str(few)
    assert "not ruled out" in str(few)
    assert [len(layer.starts) for layer in few.layers] == [600, 256]
    assert (few.layers[1].starts[[0, -1]] == [0, 598]).all()
    every = audit(tagger("DeltaNet"), word)
    assert [len(layer.products) for layer in every.layers] == [600, 599]
    assert "all 599 products of 2" in str(every) and "largest norm of 64 of them" in str(every)


def test_a_witness_is_named_by_its_place() -> None:
    found = audit(compile(groups.cyclic(5), "reflections"), [0] * 300 + [1, 2])
    assert "tokens 300 to 301" in str(found.theorem2)
    values = found.layers[1].products[300]
    assert (
        np.abs(values.imag).max() > 0.5 and np.abs(found.layers[1].products[:299].imag).max() == 0
    )


def test_e1_one_layer_with_a_negative_eigenvalue_is_enough() -> None:
    """Parity in layer 1, A = 0 in layer 2: "every layer" is false, "at least one" holds."""
    model = Stack(diagonal([-1.0, -1.0]), diagonal([0.0, 0.0]), vocabulary=2)
    found = audit(model, [0, 1, 1, 0])
    assert found.layers[0].lowest == -1 and found.layers[1].lowest == 0
    assert found.theorem1.strong and not found.theorem2.weak


def test_e2_counting_modulo_m_with_symmetric_matrices_only() -> None:
    """Theorem 6: every A(x) has spectrum {1, -1}; products of two tokens of layer 2 turn."""
    found = audit(compile(groups.cyclic(5), "reflections"))
    for layer in found.layers:
        assert np.abs(layer.eigenvalues.imag).max() == 0
        assert np.allclose(np.abs(layer.eigenvalues), 1, atol=1e-6)
    assert np.abs(found.layers[1].products.imag).max() > 0.5
    assert found.theorem2.strong and "layer, tokens" in str(found.theorem2.where)


def test_e3_three_factors_in_0_1_meet_theorem_1_weakly_only() -> None:
    layer = DeltaProduct(
        3,
        1,
        num_householders=3,
        head_dim=2,
        eigen_range=(0.0, 1.0),
        conv_size=0,
        qk_silu=False,
    )
    with torch.no_grad():
        layer.qkv_proj.weight.zero_()
        layer.beta_proj.weight.fill_(float(np.log(4)))  # β = 0.8
        for j, degrees in enumerate((0, 60, 120)):
            line = [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]
            layer.qkv_proj.weight[2 + 2 * j : 4 + 2 * j, 0] = torch.tensor(line)
    found = audit(layer, torch.eye(3)[None, :1])
    assert found.theorem1.weak and not found.theorem1.strong
    assert found.layers[0].eigenvalues.flat[0].real == pytest.approx(0.072, abs=1e-3)


@pytest.mark.parametrize(("regex", "order"), [("(abab)*", 2), ("(ababab)*", 3)])
def test_e9_a_word_can_turn_where_no_letter_does(regex: str, order: int) -> None:
    """So the theorems, which are about one letter, are not met, and the network is right."""
    network = compile(read(regex), "one-layer")
    found = audit(network)
    assert check(network).errors == 0
    assert set(np.unique(found.layers[0].eigenvalues.round(6))) == {0, 1}
    assert not found.theorem1.weak and not found.theorem2.weak and "one letter" in str(found)
    assert "fading to 1 %: 1 token\n" in str(found)
    assert [(p.order, p.periods, p.enough) for p in found.periods] == [(order, (order,), True)]


@pytest.mark.parametrize(
    ("name", "method", "theorem1", "theorem2"),
    [
        ("(a|b)*ab", "cascade", False, False),
        ("(a|b)*ab", "diagonal", False, False),
        ("(a|bb)*", "diagonal", True, False),
        ("q8", "diagonal", True, False),
        ("s5_points", "group", True, True),
        ("mod_arithmetic", "cascade", True, True),
        ("z7", "rotation", True, True),
        ("s5_points", "dense", True, True),
    ],
)
def test_compiled_networks_meet_what_their_machine_needs(
    name: str, method: str, theorem1: bool, theorem2: bool
) -> None:
    found = audit(compile(read(name), method))
    assert (found.theorem1.strong, found.theorem2.strong) == (theorem1, theorem2)
    assert all(period.enough for period in found.periods)


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (DeltaNet(16, num_heads=2), None, "give inputs"),
        (nn.Linear(2, 2), [0, 1], "holds no layer"),
        (nn.Linear(2, 2), None, "does not say how many tokens"),
    ],
)
def test_bad_input(model: nn.Module, inputs: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit(model, inputs)


def test_words_outside_the_alphabet_and_empty_words() -> None:
    network = compile(read("(ab)*"))
    with pytest.raises(ValueError, match="symbol 'c'"):
        audit(network, "abc")
    with pytest.raises(ValueError, match="at least one token"):
        audit(network, "")


def test_layers_without_transitions_say_so() -> None:
    with pytest.raises(ValueError, match="has no transitions"):
        audit(tagger("LSTM"), [0, 1])
