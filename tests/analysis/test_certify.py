"""Certificates against every short word, against long words, and against spoilt weights."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from statetrack.analysis import certify
from statetrack.analysis.one_layer import one_layer
from statetrack.analysis.probes import every_word
from statetrack.analysis.rounding import rounding_of
from statetrack.automata import Machine, read
from statetrack.compiler import compile
from statetrack.layers import DeltaNet
from statetrack.layers.transitions import HouseholderTransitions
from statetrack.models import BackboneConfig, Tagger, TaggerConfig

NAMES = ["parity", "z3", "s3_swaps", "(a|b)*ab", "(ab)*"]


def tagger_for(name: str, length: int = 500) -> tuple[Tagger, Machine]:
    machine = read(name)
    return compile(machine).to_tagger(length), machine


def noisy(tagger: Tagger, share: float, seed: int = 0) -> Tagger:
    """Every weight off by a share of the largest of its tensor."""
    draw = torch.Generator().manual_seed(seed)
    found = copy.deepcopy(tagger)
    with torch.no_grad():
        for parameter in found.parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            parameter += share * parameter.abs().max() * noise
    return found


def right_to(tagger: Tagger, machine: Machine, length: int) -> int:
    """By running every word of a length: the letters before the first wrong answer of any."""
    words = every_word(machine.num_letters, length, machine.num_letters**length)
    classes = np.unique(machine.outputs, return_inverse=True)[1].reshape(-1)
    with torch.no_grad():
        says = tagger(torch.from_numpy(words))[0].argmax(-1).numpy()
    wrong = (says != classes[machine.run(words)]).any(axis=0)
    return int(wrong.argmax()) if wrong.any() else length


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_tagger_is_certified_to_the_length_it_says(name: str) -> None:
    tagger, machine = tagger_for(name)
    found = certify(tagger, machine)
    assert 500 <= found.stepwise <= found.exact and 0 < found.chunked <= found.exact
    assert "every word is answered rightly" in str(found)
    wide = certify(tagger.double(), machine)  # rounding is all that makes the difference
    assert wide.stepwise > 0.9 * wide.exact and wide.chunked > found.chunked


@pytest.mark.parametrize(
    "name", ["parity", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])]
)
def test_no_word_contradicts_a_certificate(name: str) -> None:
    """Brute force over all words, for weights that are more and more wrong."""
    tagger, machine = tagger_for(name, 30)
    length = 12 if machine.num_letters == 2 else 6
    seen = []
    for share in (0.0, 0.05, 0.2, 0.5):
        spoilt = noisy(tagger, share)
        found, true = certify(spoilt, machine), right_to(spoilt, machine, length)
        assert min(found.exact, length) <= true
        assert found.stepwise <= found.exact and found.chunked <= found.exact
        seen.append((found.exact, true))
    lengths = [exact for exact, _ in seen]
    assert lengths[0] > 30 > lengths[-1]  # noise takes it away


def test_the_worst_word_of_a_fading_reflection() -> None:
    """β just below 2: only the ones fade it, so 111… breaks first, and after the certificate."""
    tagger, machine = tagger_for("parity", 30)
    ones = torch.ones(1, 20_000, dtype=torch.long)
    with torch.no_grad():
        says = tagger(ones)[0].argmax(-1)[0]
    wrong = says != ones[0].cumsum(0) % 2
    observed = int(wrong.int().argmax())
    found = certify(tagger, machine)
    assert wrong.any() and found.exact / 2 < found.stepwise <= found.exact <= observed


def test_a_wrong_machine_is_never_certified() -> None:
    tagger, machine = tagger_for("z3")
    other = Machine.from_table(machine.delta, 0, outputs=[0, 2, 1], alphabet=machine.alphabet)
    assert certify(tagger, other).exact == 0


@torch.no_grad()
def test_a_gate_of_zero_and_a_key_of_zero_are_bounded_too() -> None:
    tagger, machine = tagger_for("counter_3")  # its resets have a gate
    closed = copy.deepcopy(tagger)
    closed.backbone.blocks[0].mixer.decay_proj.weight.mul_(1e4)  # type: ignore[union-attr, operator]
    found = certify(closed, machine)
    assert certify(tagger, machine).exact <= found.exact and 500 < found.stepwise <= found.exact
    tagger, machine = tagger_for("z3")
    layer = tagger.backbone.blocks[0].mixer
    keys = layer.num_heads * layer.head_dim  # type: ignore[operator]
    layer.qkv_proj.weight[keys : 2 * keys] = 0  # type: ignore[index, union-attr]
    assert certify(tagger, machine).exact <= right_to(tagger, machine, 6) < 6


def other_model(**changes: object) -> Tagger:
    fields = {"mixers": [("DeltaNet", {"num_heads": 1, "conv_size": 0})], "mlp": "none"}
    backbone = BackboneConfig(**({"d_model": 8} | fields | changes))  # type: ignore[arg-type]
    return Tagger(TaggerConfig(vocab_size=3, num_classes=2, backbone=backbone))


@torch.no_grad()
def test_a_learnt_range_is_rounded_too() -> None:
    """β = (1 + tanh g)·σ: where tanh g is near -1, β is tiny and what tanh is off by is not."""
    options = {"num_heads": 8, "conv_size": 0, "learn_range": True}
    tagger = other_model(mixers=[("DeltaNet", options)], d_model=16)
    layer = tagger.backbone.blocks[0].mixer
    assert isinstance(layer, DeltaNet) and layer.range_gate is not None
    layer.beta_proj.weight.zero_()
    layer.range_gate.copy_(torch.linspace(-2.0, -6.0, 8))
    model = one_layer(tagger, read("parity"))
    bounds = rounding_of(model, model.factors(), torch.ones(8), 2.0**-24)
    x = torch.randn(1, 2, 16)
    found, exact = layer.transitions(x), copy.deepcopy(layer).double().transitions(x.double())
    assert isinstance(found, HouseholderTransitions) and isinstance(exact, HouseholderTransitions)
    off = (found.beta.double() - exact.beta).abs().amax(dim=(0, 1, 2))
    assert (off > 0).any() and (bounds.inputs >= off).all()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: other_model(mixers=["DeltaNet"]), "has a convolution"),
        (
            lambda: other_model(mixers=[("DeltaNet", {"conv_size": 0, "beta_stretch": 1.0})]),
            "the layer has beta_stretch",
        ),
        (
            lambda: other_model(mixers=[("DeltaNet", {"conv_size": 0, "beta_start": 0.5})]),
            "the layer has beta_start",
        ),
        (lambda: other_model(mixers=["Diagonal"]), "the layer is Diagonal"),
        (lambda: other_model(mixers=[("DeltaNet", {"conv_size": 0})] * 2), "has 2 layers"),
        (lambda: other_model(mlp="swiglu", mlp_dim=4), "the model has an MLP"),
        (lambda: other_model(norm="layer"), "has layer norms"),
        (lambda: other_model(first_norm=True), "has a norm before its block"),
        (lambda: other_model().to(torch.bfloat16), "float32 and float64"),
        (lambda: torch.nn.Identity(), "give a task or an alphabet"),
    ],
)
def test_what_is_not_bounded_is_refused(model: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        certify(model(), read("parity"))  # type: ignore[operator]


def test_other_letters_and_classes_are_refused() -> None:
    tagger, machine = tagger_for("z3")
    with pytest.raises(ValueError, match="knows 4 tokens and 3 classes, not the 3 and 2"):
        certify(tagger, read("parity"))
    with pytest.raises(ValueError, match="must have the same letters"):
        certify(tagger, machine, alphabet="abc")
    assert certify(tagger, machine, alphabet=machine.alphabet) == certify(tagger, machine)
    assert dataclasses.is_dataclass(certify(tagger, machine))
