"""Which run a run is."""

import dataclasses

from statetrack.runs.identity import same_but_for
from statetrack.training import OptimizerConfig
from tests.training import tiny


def test_fingerprints_are_for_ever() -> None:
    """If this fails, published runs have lost their names: undo what changed the identity.

    A new option goes into defaults.json with the value that means "as before"; a default that
    changes stays in that file as it was.
    """
    assert tiny.config().fingerprint == "467a14b4e1ed6a63"
    assert tiny.config(model=tiny.model("Mamba"), seed=3).fingerprint == "ccf8cf9c9d3eee61"


def test_the_same_run_but_for() -> None:
    config = tiny.config()
    other = tiny.config(seed=4, optimizer=OptimizerConfig(lr=0.5))
    assert same_but_for(config) != same_but_for(other)
    assert same_but_for(config, ["seed"]) != same_but_for(other, ["seed"])
    fields = ["seed", "optimizer.lr"]
    assert same_but_for(config, fields) == same_but_for(other, fields)
    assert same_but_for(config, ["no.such.field"]) == same_but_for(config)


def test_a_new_field_with_a_default_renames_no_run() -> None:
    """A config class that grew a field, with its default in the file, has the old essence."""
    grown = dataclasses.make_dataclass(
        "OptimizerConfig",
        [("momentum", float, 0.0)],
        bases=(OptimizerConfig,),
        frozen=True,
        kw_only=True,
    )
    essence = grown(lr=0.5).essence()
    assert essence == {"lr": 0.5, "momentum": 0.0}  # until the file has it
