"""Configs that tell the truth: complete, frozen, the same after JSON, and nothing ignored."""

import dataclasses
import json
import pickle
from typing import Any

import pytest
import torch

from statetrack.config import Config, frozen_defaults, plain
from statetrack.layers import DeltaNet, registry
from statetrack.models import BackboneConfig, Mixer, TaggerConfig
from tests.layers.cases import NOT_LINEAR, SIZES, every_layer
from tests.layers.foreign import Leaky
from tests.models.cases import TOKENS, backbone, build, small

# ---------------------------------------------------------------------------------------- mixers


@pytest.mark.parametrize(
    "entry",
    [
        "DeltaNet",
        "delta_net",
        DeltaNet,
        ("DeltaNet", {}),
        ("DeltaNet", {"eigen_range": (-1, 1)}),
        ["DeltaNet", {"eigen_range": [-1.0, 1.0]}],
        (DeltaNet, {"num_heads": 4}),
        Mixer(layer="DeltaNet"),
        {"layer": "DeltaNet"},
        {"layer": "DeltaNet", "options": {"norm_eps": 1e-6}},
    ],
    ids=repr,
)
def test_all_ways_to_write_a_mixer_are_the_same(entry: Any) -> None:
    config = BackboneConfig(mixers=[entry])
    plain_one = BackboneConfig(mixers=[Mixer(layer="DeltaNet")])
    assert config == plain_one and hash(config) == hash(plain_one)
    assert config.to_json() == plain_one.to_json()


def test_the_plain_form_of_a_mixer() -> None:
    assert Mixer.of(("Diagonal", {"eigen_range": (0, 1)})).to_dict() == {
        "layer": "Diagonal",
        "options": {"eigen_range": [0.0, 1.0], "backend": "auto"},
        "norm": "before",
    }


@pytest.mark.parametrize(
    "entry", [3, None, ("DeltaNet", 3), ("DeltaNet", {}, {}), (), torch.nn.GRU]
)
def test_what_is_no_mixer_is_shown_the_forms(entry: Any) -> None:
    with pytest.raises(ValueError, match=r'no mixer: write "DeltaNet", \("DeltaNet", \{.*MyLayer'):
        BackboneConfig(mixers=["DeltaNet", entry])


@pytest.mark.parametrize(
    "mixers", ["DeltaNet", [], None, {"layer": "DeltaNet"}, Mixer(layer="GLA")]
)
def test_mixers_are_a_list(mixers: Any) -> None:
    with pytest.raises(ValueError, match="must be a list with one entry for each layer"):
        BackboneConfig(mixers=mixers)


def test_a_mixer_that_lacks_its_layer_or_has_more_is_refused() -> None:
    with pytest.raises(ValueError, match="Mixer needs layer"):
        BackboneConfig(mixers=[{"options": {}}])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no field 'option'; did you mean 'options'"):
        BackboneConfig(mixers=[{"layer": "GLA", "option": {}}])  # type: ignore[arg-type]


def test_a_class_of_your_own_is_registered_and_travels() -> None:
    config = BackboneConfig(mixers=[(Leaky, {"rate": 1})] * 2)
    assert registry.get("Leaky") is Leaky
    assert BackboneConfig.from_json(config.to_json()) == config
    sent = pickle.dumps(config)
    del registry.LAYERS["Leaky"]  # as in another process
    assert pickle.loads(sent) == config and registry.get("Leaky") is Leaky


# -------------------------------------------------------------------------------- identity


def test_the_essence_of_a_mixer_is_what_differs() -> None:
    given = {"eigen_range": (-1, 1), "num_heads": 2, "backend": "reference"}
    assert Mixer.of("DeltaNet").essence() == {"layer": "DeltaNet", "options": {}}
    assert Mixer.of(("DeltaNet", given)).essence()["options"] == {"num_heads": 2}
    assert Mixer.of(Leaky).essence() == {"layer": "Leaky", "options": {"rate": 0.5}}


def test_the_essence_of_a_tagger() -> None:
    config = small("GLA", "LSTM", mlp="none", d_model=128, mlp_dim=512)
    assert config.essence() == {
        "vocab_size": 3,
        "num_classes": 4,
        "backbone": {
            "mixers": [
                {"layer": "GLA", "options": {"num_heads": 2}},
                {"layer": "LSTM", "options": {}},
            ],
            "mlp": "none",
        },
    }


CHANGED_SINCE: set[tuple[str, str]] = set()
"""(class, field) or (layer, option) whose default in the code is not the frozen one any more."""

WHAT_TO_DO = (
    "src/statetrack/defaults.json names runs: what has its value there is left out of their "
    "identity. For a new field or option, add it there with the value that means 'as before'. "
    "For a changed default, never change the file, or old runs get other names: add the pair to "
    "CHANGED_SINCE in this test."
)


def defaults_in_code() -> dict[tuple[str, str], Any]:
    found = {}
    for kind in (BackboneConfig, Mixer, TaggerConfig):
        for field in dataclasses.fields(kind):
            assert field.default_factory is dataclasses.MISSING
            if field.default is not dataclasses.MISSING:
                found[kind.__name__, field.name] = plain(field.default)
    for name, layer in registry.LAYERS.items():
        for option, value in registry.options(layer, {}).items():
            found[name, option] = plain(value)
    return found


def test_frozen_defaults_are_those_of_the_code() -> None:
    file = frozen_defaults()
    kinds = [BackboneConfig.__name__, Mixer.__name__, TaggerConfig.__name__]
    frozen = {(kind, name): value for kind in kinds for name, value in file[kind].items()}
    for layer, options in file["layers"].items():
        frozen |= {(layer, name): value for name, value in options.items()}
    code = {key: value for key, value in defaults_in_code().items() if key[1] != "backend"}
    assert frozen.keys() == code.keys(), WHAT_TO_DO
    for key in frozen:
        assert (json.dumps(frozen[key]) == json.dumps(code[key])) != (key in CHANGED_SINCE), (
            f"{key}: {code[key]!r} in the code, {frozen[key]!r} in the file. {WHAT_TO_DO}"
        )


def test_no_layer_has_the_name_of_a_config() -> None:
    """They share the keys of the test above."""
    assert not set(registry.LAYERS) & {kind.__name__ for kind in Config.__subclasses__()}


# ---------------------------------------------------------------------------------- the whole


@every_layer
def test_config_round_trips_and_says_everything(name: str) -> None:
    config = small(name, name)
    assert TaggerConfig.from_json(config.to_json()) == config
    assert TaggerConfig.from_dict(json.loads(json.dumps(config.to_dict()))).to_json() == (
        config.to_json()
    )
    assert hash(config) == hash(small(name, name))
    options = config.backbone.mixers[0].options
    assert set(options) == set(registry.options(registry.get(name), {}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.vocab_size = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        options["num_heads"] = 3  # type: ignore[index]


def test_equal_values_are_stored_equally() -> None:
    whole = small("DeltaNet", norm_eps=1, mlp_in_std=0, dropout=0)
    real = small("DeltaNet", norm_eps=1.0, mlp_in_std=0.0, dropout=0.0)
    assert whole.to_json() == real.to_json()


def differ(one: TaggerConfig, other: TaggerConfig) -> bool:
    """Same seed, other model: other shapes, other weights, or other outputs."""
    a, b = build(one), build(other)
    shapes = [tuple(p.shape) for p in a.parameters()] != [tuple(p.shape) for p in b.parameters()]
    if shapes:
        return True
    weights = zip(a.parameters(), b.parameters(), strict=True)
    if any(not torch.equal(p, q) for p, q in weights):
        return True
    scores = [model(TOKENS, generator=torch.Generator().manual_seed(5))[0] for model in (a, b)]
    return not torch.allclose(*scores, rtol=1e-7, atol=1e-9)


FIELD_CHANGES: dict[str, Any] = {
    "vocab_size": 5,
    "num_classes": 7,
    "backbone": backbone("GLA"),
    "embedding_std": 0.5,
    "head_std": None,
    "mixers": ["GatedDeltaNet"],
    "d_model": 32,
    "mlp": "geglu",
    "mlp_dim": 40,
    "norm": "layer",
    "norm_eps": 0.5,
    "residual": False,
    "final_norm": False,
    "mlp_in_std": 0.5,
    "mlp_out_std": 0.5,
    "dropout": 0.5,
    "norm_bias": True,
    "first_norm": True,
}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(TaggerConfig)])
def test_every_field_of_a_tagger_reaches_the_model(field: str) -> None:
    base = small("DeltaNet")
    assert not differ(base, small("DeltaNet"))
    assert differ(base, dataclasses.replace(base, **{field: FIELD_CHANGES[field]}))


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(BackboneConfig)])
def test_every_field_of_a_backbone_reaches_the_model(field: str) -> None:
    base = small("DeltaNet", norm="layer") if field == "norm_bias" else small("DeltaNet")
    changed = dataclasses.replace(base.backbone, **{field: FIELD_CHANGES[field]})
    assert differ(base, dataclasses.replace(base, backbone=changed))


OPTION_CHANGES: dict[str, Any] = {  # but for flags, which are turned over
    "num_heads": 4,
    "eigen_range": (0.0, 1.0),
    "head_dim": 4,
    "value_dim": 3,
    "conv_size": 2,
    "norm_eps": 0.5,
    "num_value_heads": 4,
    "qk_eps": 0.5,
    "beta_stretch": 0.5,
    "beta_start": 0.5,
    "hidden_dim": 20,
    "num_householders": 2,
    "state_dim": 6,
    "expand_k": 1.0,
    "gate_rank": 3,
    "decay_rank": 3,
    "removal_rank": 3,
    "output_rank": 3,
    "value_rank": 3,
    "r_min": 0.5,
    "r_max": 0.5,
    "max_phase": 0.1,
    "chunk": 2,
    "d_state": 5,
    "num_groups": 4,
    "expand": 3,
    "dt_rank": 3,
    "block_size": 2,
    "num_kv_heads": 1,
    "window": 3,
    "rotary_base": 100.0,
    "rotary_dim": 4,
    "qk_norm": "all_heads",
}
ALL_OPTIONS = [
    (name, option) for name in SIZES for option in registry.options(registry.get(name), {})
]


@pytest.mark.parametrize(("name", "option"), ALL_OPTIONS)
def test_every_option_reaches_the_layer(name: str, option: str) -> None:
    """No flag is silently ignored, in any layer."""
    if option == "backend":
        mixers = [(name, SIZES[name] | {"backend": "reference"})] * 2
        model = build(small(name, mixers=mixers))
        assert all(block.mixer.backend == "reference" for block in model.backbone.blocks)
        return
    if option == "eigen_range" and name in NOT_LINEAR:
        with pytest.raises(ValueError, match="takes no eigen_range"):
            small(name, mixers=[(name, SIZES[name] | {option: (-1.0, 1.0)})])
        return
    before = registry.options(registry.get(name), SIZES[name])[option]
    value = not before if isinstance(before, bool) else OPTION_CHANGES[option]
    changed = [(name, SIZES[name] | {option: value})]
    assert differ(small(name), small(name, mixers=changed))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixers": ["DeltaNte"]}, "no layer 'DeltaNte'; did you mean 'DeltaNet'"),
        ({"mixers": [("DeltaNet", {"num_head": 2})]}, "no option 'num_head'; did you mean 'num_h"),
        ({"mixers": [("DeltaNet", {"num_heads": 3})]}, "num_heads=3 must divide d_model=16"),
        ({"mixers": ["GLA", ("LSTM", {"eigen_range": (0.0, 1.0)})]}, "LSTM takes no eigen_range"),
        ({"mixers": [("DeltaNet", {"eigen_range": (0.0, 1.5)})]}, "eigen_range"),
        ({"d_model": 0}, "BackboneConfig: d_model=0 must be a whole number at least 1"),
        ({"mlp_dim": True}, "mlp_dim=True must be a whole number"),
        ({"norm_bias": True}, 'norm_bias=True needs norm="layer"'),
        ({"norm": "batch"}, "norm='batch' must be one of 'rms', 'layer'"),
        ({"mlp": "swiglo"}, "mlp='swiglo' must be one of .*did you mean 'swiglu'"),
        ({"norm_eps": "x"}, "norm_eps='x' must be a number at least 0"),
        ({"residual": "no"}, "residual='no' must be True or False"),
        ({"mlp_in_std": -1.0}, "mlp_in_std=-1.0 must be a number at least 0"),
        ({"dropout": 1.0}, "dropout=1.0 must be a number at least 0 and below 1"),
        ({"dropout": -0.1}, "dropout=-0.1 must be"),
        ({"num_layers": 2}, "BackboneConfig has no field 'num_layers'"),
    ],
)
def test_impossible_backbones_are_refused_before_anything_is_built(
    changes: dict, message: str
) -> None:
    values = backbone("DeltaNet").to_dict() | changes
    with pytest.raises(ValueError, match=message):
        BackboneConfig.from_dict(values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "TaggerConfig: vocab_size=0 must be a whole number at least 1"),
        ({"num_classes": 2.0}, "num_classes=2.0 must be a whole number"),
        ({"head_std": -3}, "head_std=-3 must be a number at least 0 or None"),
        ({"embedding_std": float("nan")}, "embedding_std=nan must be a number"),
        ({"backbone": "DeltaNet"}, "backbone='DeltaNet' must be a BackboneConfig"),
        ({"backbon": 2}, "no field 'backbon'; did you mean 'backbone'"),
        ({"mixer": "DeltaNet"}, "TaggerConfig has no field 'mixer'"),
    ],
)
def test_impossible_taggers_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaggerConfig.from_dict(small("DeltaNet").to_dict() | changes)
