"""The tagger: sizes as published, configs that tell the truth, seeds that mean something."""

import dataclasses
import json
import math
from typing import Any

import pytest
import torch

from statetrack.layers import registry
from statetrack.models import Tagger, TaggerConfig, paper_config
from tests.helpers import relative_error
from tests.layers.cases import SIZES, every_layer

TOKENS = torch.randint(3, (2, 17), generator=torch.Generator().manual_seed(0))


def count(config: TaggerConfig) -> int:
    return sum(parameter.numel() for parameter in Tagger(config).parameters())


@pytest.mark.parametrize(
    ("expected", "mixer", "settings"),
    [
        (529_856, "DeltaNet", {"vocab_size": 3}),
        (531_648, "DeltaNet", {"vocab_size": 10}),
        (796_128, "DeltaNet", {"vocab_size": 10, "num_layers": 3}),
        (232_448, "Mamba", {"vocab_size": 3, "conv_size": 1}),
        (233_984, "Mamba", {"vocab_size": 3, "conv_size": 4}),
        (219_792, "MLSTM", {"vocab_size": 3}),
        (215_680, "SLSTM", {"vocab_size": 3}),
    ],
)
def test_parameter_counts_of_the_paper(expected: int, mixer: str, settings: dict) -> None:
    assert count(paper_config(mixer, **settings)) == expected


def small(name: str, **changes: Any) -> TaggerConfig:
    fields = {"mixer_options": SIZES[name], "d_model": 16, "mlp_dim": 24, "mixer": name}
    return TaggerConfig(**({"vocab_size": 3, "num_classes": 4} | fields | changes))


def build(config: TaggerConfig, seed: int = 0) -> Tagger:
    return Tagger(config, generator=torch.Generator().manual_seed(seed))


@every_layer
def test_tagger_runs_cut_and_step(name: str) -> None:
    model = build(small(name)).double()
    scores, state = model(TOKENS)
    assert scores.shape == (2, 17, 4)
    first, middle = model(TOKENS[:, :9])
    second, _ = model(TOKENS[:, 9:], middle)
    assert relative_error(torch.cat([first, second], dim=1), scores) < 1e-9
    state = None
    for t in range(17):
        step, state = model.step(TOKENS[:, t], state)
        assert relative_error(step, scores[:, t]) < 1e-9


@every_layer
def test_config_round_trips_and_says_everything(name: str) -> None:
    config = small(name)
    assert TaggerConfig.from_json(config.to_json()) == config
    assert TaggerConfig.from_dict(json.loads(json.dumps(config.to_dict()))).to_json() == (
        config.to_json()
    )
    assert hash(config) == hash(small(name))
    assert set(config.mixer_options) == set(registry.options(registry.get(name), {}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.mixer_options["num_heads"] = 3  # type: ignore[index]


def differ(one: TaggerConfig, other: TaggerConfig) -> bool:
    """Same seed, other model: other shapes, other weights, or other outputs."""
    a, b = build(one), build(other)
    shapes = [tuple(p.shape) for p in a.parameters()] != [tuple(p.shape) for p in b.parameters()]
    if shapes:
        return True
    weights = zip(a.parameters(), b.parameters(), strict=True)
    if any(not torch.equal(p, q) for p, q in weights):
        return True
    return not torch.allclose(a(TOKENS)[0], b(TOKENS)[0], rtol=1e-7, atol=1e-9)


FIELD_CHANGES: dict[str, Any] = {
    "vocab_size": 5,
    "num_classes": 7,
    "mixer": "GatedDeltaNet",
    "mixer_options": {"num_heads": 4},
    "d_model": 32,
    "num_layers": 3,
    "mlp": "geglu",
    "mlp_dim": 40,
    "norm": "layer",
    "norm_eps": 0.5,
    "residual": False,
    "final_norm": False,
    "embedding_std": 0.5,
    "head_std": None,
    "mlp_in_std": 0.5,
    "mlp_out_std": 0.5,
}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(TaggerConfig)])
def test_every_field_reaches_the_model(field: str) -> None:
    base = small("DeltaNet")
    assert not differ(base, small("DeltaNet"))
    assert differ(base, small("DeltaNet", **{field: FIELD_CHANGES[field]}))


OPTION_CHANGES: dict[str, Any] = {
    "num_heads": 4,
    "eigen_range": (0.0, 1.0),
    "head_dim": 4,
    "value_dim": 3,
    "conv_size": 2,
    "qk_silu": False,
    "norm_eps": 0.5,
    "num_householders": 2,
    "forget_gate": False,
    "state_dim": 6,
    "expand_k": 1.0,
    "gate_rank": 3,
    "d_state": 5,
    "expand": 3,
    "dt_rank": 3,
    "block_size": 2,
    "rotary": False,
}
ALL_OPTIONS = [
    (name, option) for name in SIZES for option in registry.options(registry.get(name), {})
]


@pytest.mark.parametrize(("name", "option"), ALL_OPTIONS)
def test_every_option_reaches_the_layer(name: str, option: str) -> None:
    """No flag is silently ignored, in any layer."""
    if option == "backend":
        model = build(small(name, mixer_options=SIZES[name] | {"backend": "reference"}))
        assert all(block.mixer.backend == "reference" for block in model.backbone.blocks)
        return
    if option == "eigen_range" and name in ("Attention", "LSTM", "SLSTM"):
        with pytest.raises(ValueError, match="takes no eigen_range"):
            small(name, mixer_options=SIZES[name] | {option: (-1.0, 1.0)})
        return
    changed = SIZES[name] | {option: OPTION_CHANGES[option]}
    assert differ(small(name), small(name, mixer_options=changed))


def test_seed_decides_the_weights() -> None:
    config = small("DeltaNet")
    state = torch.random.get_rng_state()
    first, again, other = build(config, 1), build(config, 1), build(config, 2)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was used"
    assert all(
        torch.equal(p, q) for p, q in zip(first.parameters(), again.parameters(), strict=True)
    )
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixer": "DeltaNte"}, "no layer 'DeltaNte'; did you mean 'DeltaNet'"),
        ({"mixer_options": {"num_head": 2}}, "no option 'num_head'; did you mean 'num_heads'"),
        ({"mixer_options": {"num_heads": 3}}, "num_heads=3 must divide d_model=16"),
        ({"mixer_options": {"eigen_range": (0.0, 1.5)}}, "eigen_range"),
        ({"d_model": 0}, "d_model=0 must be a whole number of at least 1"),
        ({"num_layers": True}, "num_layers=True"),
        ({"norm": "batch"}, "norm='batch' is not one of"),
        ({"mlp": "relu"}, "mlp='relu' is not one of"),
    ],
)
def test_impossible_configs_are_refused_before_anything_is_built(
    changes: dict, message: str
) -> None:
    values = small("DeltaNet").to_dict() | {"mixer_options": {"num_heads": 2}} | changes
    with pytest.raises(ValueError, match=message):
        TaggerConfig.from_dict(values)


def test_unknown_field_suggests_the_nearest() -> None:
    values = small("DeltaNet").to_dict() | {"num_layer": 2}
    with pytest.raises(ValueError, match="no field 'num_layer'; did you mean 'num_layers'"):
        TaggerConfig.from_dict(values)


def test_vmap_over_stacked_taggers_equals_a_loop() -> None:
    models = [build(small("DeltaNet"), seed).double() for seed in (0, 1, 2)]
    parameters, _ = torch.func.stack_module_state(models)

    def run(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(models[0], values, (TOKENS,))[0]

    together = torch.vmap(run)(parameters)
    for index, model in enumerate(models):
        assert relative_error(together[index], model(TOKENS)[0]) < 1e-10


@pytest.mark.parametrize("shape", [(3, 7), (4, 32)], ids=["one product", "many"])
@pytest.mark.parametrize("mapped", [False, True], ids=["alone", "vmap"])
def test_a_look_up_by_products_is_an_embedding(shape: tuple[int, int], mapped: bool) -> None:
    """Its gradient, too, which no autocast region makes less precise."""
    from statetrack.models.embedding import PARTS, LookUp

    assert math.prod(shape) % PARTS == 0 or shape == (3, 7)

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(2, 5, 8, generator=generator).requires_grad_()
    tokens = torch.randint(0, 5, (2, *shape), generator=generator)
    weights = torch.randn(2, *shape, 8, generator=generator)
    wanted = torch.stack([weight[run][tokens[run]] for run in (0, 1)])
    want = torch.autograd.grad((wanted * weights).sum(), weight)[0]

    def one(weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return LookUp.apply(weight[None], tokens[None])[0]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        run = torch.vmap(one) if mapped else LookUp.apply
        got = run(weight, tokens)
        assert torch.equal(got, wanted)
        torch.testing.assert_close(torch.autograd.grad((got * weights).sum(), weight)[0], want)


@pytest.mark.parametrize("token", [-1, 5])
def test_a_look_up_of_no_token_fails(token: int) -> None:
    from statetrack.models.embedding import LookUp, look_up

    weight, tokens = torch.zeros(1, 5, 8), torch.full((1, 2, 3), token)
    for run in (LookUp.apply, look_up):
        with pytest.raises(IndexError):
            run(weight, tokens)
