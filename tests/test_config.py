"""Configs: values are what the annotations say, and JSON gives them back."""

import copy
import json
import pickle
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from statetrack.config import Bounds, Config, FrozenDict, frozen_defaults, plain


@dataclass(frozen=True, kw_only=True)
class Inner(Config):
    rate: Annotated[float, Bounds(above=0.0)] = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer(Config):
    IDLE = frozenset({"every"})

    name: str
    size: Annotated[int, Bounds(least=1, most=9)] = 3
    flag: bool = False
    pair: tuple[float, float] | None = None
    many: tuple[int, ...] = ()
    kind: Literal["one", "two"] = "one"
    options: FrozenDict = FrozenDict({})
    anything: Any = None
    inner: Inner = field(default_factory=Inner)
    every: int = 10


def test_values_become_what_the_annotation_says() -> None:
    config = Outer(
        name="a", pair=[-1, 1], many=[1, 2], inner={"rate": 2}, options={"x": [1, {"y": [2]}]}
    )
    assert config.pair == (-1.0, 1.0) and all(type(x) is float for x in config.pair)
    assert config.many == (1, 2)
    assert config.inner == Inner(rate=2.0)
    assert config.options["x"][1]["y"] == (2,)
    assert hash(config) == hash(Outer.from_json(config.to_json()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "name=3 must be a text"),
        ({"size": "3"}, "size='3' must be a whole number at least 1 and at most 9"),
        ({"size": 0}, "size=0 must be a whole number at least 1 and at most 9"),
        ({"size": True}, "size=True must be a whole number"),
        ({"size": 2.0}, "size=2.0 must be a whole number"),
        ({"flag": "no"}, "flag='no' must be True or False"),
        ({"flag": 1}, "flag=1 must be True or False"),
        ({"pair": (1.0,)}, "must be 2 values or None"),
        ({"pair": (1.0, "x")}, "must be a number or None"),
        ({"pair": (1.0, float("nan"))}, "must be a number or None"),
        ({"many": 3}, "many=3 must be a list"),
        ({"kind": "tow"}, "must be one of 'one', 'two'; did you mean 'two'?"),
        ({"options": [1]}, "must be a mapping"),
        ({"inner": {"rat": 1}}, "Inner has no field 'rat'; did you mean 'rate'?"),
        ({"inner": {"rate": -1}}, "Inner: rate=-1 must be a number above 0"),
        ({"inner": 3}, "inner=3 must be a Inner"),
    ],
)
def test_what_is_something_else_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Outer(**({"name": "a"} | change))
    assert message in str(caught.value)


def test_strict_json() -> None:
    config = Outer(name="a", inner=Inner(rate=0.25))
    text = config.to_json()
    assert Outer.from_json(text) == config
    assert json.loads(text)["inner"] == {"rate": 0.25}
    with pytest.raises(ValueError, match="Outer needs name"):
        Outer.from_dict({})
    with pytest.raises(ValueError, match="has no field 'nane'; did you mean 'name'?"):
        Outer.from_dict({"nane": "a"})
    with pytest.raises(ValueError, match="needs named fields"):
        Outer.from_dict([1])


def test_the_essence_is_what_decides_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields at their frozen default and idle ones are left out, whatever the code's default is."""
    frozen = {"Outer": {"size": 4, "flag": False, "kind": "one", "many": []}}
    monkeypatch.setattr("statetrack.config.frozen_defaults", lambda: frozen)
    essence = Outer(name="a", every=99).essence()
    assert essence == {
        "name": "a",
        "size": 3,  # the code's default, but not the frozen one
        "pair": None,  # in no file: always written
        "options": {},
        "anything": None,
        "inner": {"rate": 0.5},
    }
    assert "size" not in Outer(name="a", size=4).essence()


def test_a_mapping_that_cannot_change() -> None:
    frozen = FrozenDict({"a": 1, "b": (2, 3)})
    assert dict(frozen) == {"a": 1, "b": (2, 3)} and len(frozen) == 2
    assert hash(frozen) == hash(FrozenDict({"b": (2, 3), "a": 1}))
    assert copy.deepcopy(frozen) == frozen and pickle.loads(pickle.dumps(frozen)) == frozen
    with pytest.raises(TypeError):
        frozen["a"] = 2  # type: ignore[index]
    assert plain(frozen) == {"a": 1, "b": [2, 3]}


def test_the_frozen_defaults_have_a_schema() -> None:
    assert frozen_defaults()["schema"] == 2
