"""The block: hybrids, dropout, and each layer's place in the stack."""

import pickle
import subprocess
import sys

import pytest
import torch

from statetrack.layers import SLSTM
from statetrack.models import Backbone, BackboneConfig, Mixer
from tests.helpers import mostly_slow, relative_error
from tests.layers.cases import D_MODEL
from tests.layers.foreign import Leaky
from tests.models.cases import backbone

X = torch.randn(2, 6, D_MODEL, generator=torch.Generator().manual_seed(0))


def build(*names: str, **changes: object) -> Backbone:
    model = Backbone(backbone(*names, **changes))
    model.reset_parameters(torch.Generator().manual_seed(0))
    return model


def test_one_block_for_each_mixer_in_order() -> None:
    names = ["DeltaNet", "DeltaNet", "Attention"] * 2
    model = build(*names)
    assert [type(block.mixer).__name__ for block in model.blocks] == names
    assert model(X)[0].shape == X.shape


def test_a_layer_is_told_its_place() -> None:
    blocks = build("SLSTM", "DeltaNet", "SLSTM").blocks
    places = [block.mixer.depth for block in blocks if isinstance(block.mixer, SLSTM)]
    assert places == [0.0, 1.0]


def test_rows_are_packed_where_all_layers_take_them() -> None:
    model = build("DeltaNet", "Mamba", "GLA", "Attention")
    assert model.packs
    model.blocks[1].mixer = Leaky(D_MODEL)
    assert not model.packs


def test_no_dropout_is_nothing_at_all() -> None:
    """Neither at 0 nor when a model is used."""
    plain, other = build("DeltaNet", "GLA"), build("DeltaNet", "GLA", dropout=0.5)
    state = torch.random.get_rng_state()
    want = plain.train()(X)[0]
    assert torch.equal(plain.eval()(X)[0], want)
    assert torch.equal(other.eval()(X)[0], want)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("residual", [True, False])
def test_dropout_is_of_what_each_part_adds(residual: bool) -> None:
    model = build("DeltaNet", dropout=0.5, residual=residual, final_norm=False, mlp="none").train()
    mixed = model.blocks[0].mixer(model.blocks[0].mixer_norm(X))[0]
    got = model(X, generator=torch.Generator().manual_seed(3))[0] - (X if residual else 0)
    dropped = got.abs() < 1e-7
    assert 0.3 < dropped.double().mean() < 0.7
    torch.testing.assert_close(got[~dropped], 2 * mixed[~dropped], rtol=1e-4, atol=1e-6)


def test_dropout_is_drawn_by_the_generator() -> None:
    model = build("DeltaNet", dropout=0.5).train()
    state = torch.random.get_rng_state()
    first, again, other = (
        model(X, generator=torch.Generator().manual_seed(seed))[0] for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_gradient_checkpointing_runs_blocks_twice() -> None:
    found = []
    for again in (False, True):
        model = build("DeltaNet", "GLA", dropout=0.3)
        model.gradient_checkpointing = again
        calls: list[int] = []
        model.blocks[1].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(0)
        model(X)[0].square().sum().backward()
        assert len(calls) == 1 + again
        found.append([parameter.grad for parameter in model.parameters()])
    for plain, checkpointed in zip(*found, strict=True):
        torch.testing.assert_close(checkpointed, plain)
    with pytest.raises(ValueError, match="would draw other dropout the second time"):
        model(X, generator=torch.Generator())
    calls.clear()
    model.eval()(X)
    assert len(calls) == 1


def test_norms_after_mixer_and_mlp() -> None:
    """x + norm(mixer(x)), then x + norm(mlp(x)); blocks of both kinds in one stack."""
    mixers = [
        Mixer(layer="DeltaNet", options={"num_heads": 2}, norm=n) for n in ("before", "after")
    ]
    config = BackboneConfig(mixers=mixers, d_model=16, mlp_dim=24, final_norm=False)
    assert BackboneConfig.from_json(config.to_json()) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert "norm" not in mixers[0].essence() and mixers[1].essence()["norm"] == "after"
    model = Backbone(config)
    model.reset_parameters(torch.Generator().manual_seed(0))
    model.double()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    first, second = model.blocks
    x1 = x + first.mixer(first.mixer_norm(x))[0]
    x1 = x1 + first.mlp(first.mlp_norm(x1))
    wanted = x1 + second.mixer_norm(second.mixer(x1)[0])
    wanted = wanted + second.mlp_norm(second.mlp(wanted))
    assert relative_error(model(x)[0], wanted) < 1e-12
    folded = [norm for norm, _ in second.folds()]
    assert second.mixer_norm not in folded and second.mlp_norm not in folded
    assert second.mixer.norm in folded


COMPILED = """
import sys

import torch
from torch._dynamo.testing import CompileCounterWithBackend

from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig, backbone

for name in sys.argv[1:]:
    torch.compiler.reset()
    mixers = [name, name, name, "Attention"] if name == "DeltaNet" else [name] * 3
    body = BackboneConfig(mixers=mixers, d_model=32, mlp_dim=64)
    models = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(0)
        models.append(CausalLM(CausalLMConfig(vocab_size=50, backbone=body), generator=generator))
    usual, compiled = models
    counter = CompileCounterWithBackend("aot_eager")
    backbone._keeping_less = counter
    compiled.backbone.compile_blocks()
    tokens = torch.arange(2 * 70).reshape(2, 70) % 50
    grads = [
        torch.autograd.grad(model.loss(tokens, tokens)[0], [*model.parameters()])
        for model in models
    ]
    far = max(float((a - b).norm() / (b.norm() + 1e-6)) for a, b in zip(*grads))
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    print(name, counter.frame_count, breaks, far)
"""
FAST, SLOW = ["DeltaNet"], ["GatedDeltaNet", "DeltaProduct", "Mamba", "Mamba2", "GLA", "KDA"]


@pytest.mark.parametrize("names", mostly_slow([FAST, SLOW], fast=[FAST]), ids=" ".join)
def test_equal_blocks_share_one_compiled_graph(names: list[str]) -> None:
    """In a process of its own: the checks of shapes here cannot be compiled."""
    done = subprocess.run([sys.executable, "-c", COMPILED, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == names
    for name, graphs, breaks, far in lines:
        assert int(graphs) == (3 if name == "DeltaNet" else 2), "one a kind, and the norm"
        assert int(breaks) == 0
        assert float(far) < 1e-4
