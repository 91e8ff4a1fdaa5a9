"""Configs: frozen dataclasses whose values are what their annotations say, and JSON.

    @dataclass(frozen=True, kw_only=True)
    class OptimizerConfig(Config):
        lr: Annotated[float, Bounds(above=0.0)] = 1e-3
        betas: tuple[float, float] = (0.9, 0.999)

Values are checked and coerced by annotation when a config is made: `lr=1` is stored as 1.0, a list
becomes a tuple, a mapping a config, and `lr="x"` is refused. Equal configs so have equal JSON.

`essence` is the part of a config that decides numbers, which a run is identified by: without what
only sets how often one looks (`IDLE`), and without fields that have their frozen default. Those
stand in defaults.json, so that a default that changes later, or a new field, renames no old run.
"""

import dataclasses
import functools
import importlib.resources
import inspect
import json
import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from statetrack._suggest import did_you_mean

__all__ = ["Bounds", "Config", "FrozenDict", "coerced", "frozen_defaults", "plain"]


AnyConfig = TypeVar("AnyConfig", bound="Config")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """A range for a number, as the metadata of `Annotated`.

    It is larger than `above`, at least `least`, at most `most` and smaller than `below`.
    """

    above: int | float = -math.inf
    least: int | float = -math.inf
    most: int | float = math.inf
    below: int | float = math.inf

    def hold(self, value: int | float) -> bool:
        return self.above < value < self.below and self.least <= value <= self.most

    def __str__(self) -> str:
        """
        >>> str(Bounds(above=0.0, most=1.0))
        'above 0 and at most 1'
        """
        words = {"above": self.above, "at least": self.least}
        words |= {"at most": self.most, "below": self.below}
        return " and ".join(f"{word} {x:g}" for word, x in words.items() if math.isfinite(x))


class FrozenDict(Mapping[Any, Any]):
    """A mapping that cannot change: it may be hashed, copied and sent to another process."""

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: Any) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What all configs share. `_check` is for what annotations cannot say.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Warmup(Config):
    ...     share: Annotated[float, Bounds(least=0.0, most=1.0)] = 0.1
    >>> Warmup(share=1)
    Warmup(share=1.0)
    >>> Warmup(share=2)
    Traceback (most recent call last):
    ValueError: Warmup: share=2 must be a number at least 0 and at most 1
    """

    IDLE: ClassVar[frozenset[str]] = frozenset()
    """Fields that change no number of a run."""
    __no_type_check__: ClassVar[bool] = True
    """Shape checkers leave constructors alone: values are coerced first, and then checked here."""

    def __post_init__(self) -> None:
        for name, hint in _hints(self.__class__).items():  # type: ignore[arg-type]
            value = coerced(type(self).__name__, name, hint, getattr(self, name))
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        """Refuses what does not fit together and fills in what follows; values are coerced."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls: type[AnyConfig], values: Any) -> AnyConfig:
        """The inverse of `to_dict`; an unknown key is an error that suggests the nearest."""
        if not isinstance(values, Mapping):
            raise ValueError(f"{cls.__name__} needs named fields, not {values!r}")
        fields = {f.name: f for f in dataclasses.fields(cls)}
        for name in values:
            if name not in fields:
                hint = did_you_mean(str(name), fields) or f"there are {', '.join(fields)}"
                raise ValueError(f"{cls.__name__} has no field {name!r}; {hint.strip()}")
        missing = [name for name, f in fields.items() if name not in values and _is_required(f)]
        if missing:
            raise ValueError(f"{cls.__name__} needs {', '.join(missing)}")
        return cls(**values)

    def to_json(self) -> str:
        """Canonical JSON: equal configs give equal text."""
        return json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls: type[AnyConfig], text: str) -> AnyConfig:
        return cls.from_dict(json.loads(text))

    def essence(self) -> dict[str, Any]:
        """What of `to_dict` decides numbers: neither idle, nor the frozen default."""
        frozen = frozen_defaults().get(type(self).__name__, {})
        found = {}
        for field in dataclasses.fields(self):
            name, value = field.name, getattr(self, field.name)
            is_default = name in frozen and plain(value) == frozen[name]
            if name not in self.IDLE and not is_default:
                found[name] = _essence_of(value)
        return found


@functools.cache
def frozen_defaults() -> dict[str, Any]:
    """defaults.json: for every config class its fields' defaults, for every layer its options'."""
    text = importlib.resources.files("statetrack").joinpath("defaults.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def coerced(owner: str, name: str, hint: Any, value: Any) -> Any:
    """`value` as the annotation `hint` has it; a ValueError names `owner` and `name`, and the rule.

    >>> coerced("Warmup", "share", float, 1)
    1.0
    """
    try:
        return _coerced(hint, value)
    except _Mismatch as found:
        raise ValueError(f"{owner}: {name}={value!r} must be {found}") from None


def plain(value: Any) -> Any:
    """A config's value in JSON types."""
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {_key_text(name): plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def _key_text(key: Any) -> Any:
    """JSON has no numbers for keys."""
    return f"{key:g}" if isinstance(key, float) else key


def _essence_of(value: Any) -> Any:
    if isinstance(value, Config):
        return value.essence()
    if isinstance(value, tuple):
        return [_essence_of(item) for item in value]
    return plain(value)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        hints |= inspect.get_annotations(base, eval_str=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


class _Mismatch(Exception):
    """A value that is not what the annotation says; the text is what it must be."""


def _coerced(hint: Any, value: Any) -> Any:
    """`value` as the annotation has it, or `_Mismatch`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in (Any, object):
        return _frozen(value)
    if origin is Annotated:
        return _within(arguments[0], arguments[1:], value)
    if origin in (Union, types.UnionType):
        return _any_of(arguments, value)
    if origin is Literal:
        if value not in arguments:
            near = did_you_mean(str(value), map(str, arguments))
            raise _Mismatch(f"one of {', '.join(map(repr, arguments))}; {near}".rstrip("; "))
        return value
    if origin is tuple:
        return _tuple(arguments, value)
    if origin in (Mapping, dict) or hint in (Mapping, FrozenDict):
        return _mapping(arguments or (Any, Any), value)
    if isinstance(hint, type) and issubclass(hint, Config):
        return _config(hint, value)
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple, in JSON a list
        return hint(*_tuple(tuple(get_type_hints(hint).values()), value))
    return _simple(hint, value)


def _simple(hint: Any, value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float:
        if not number or not math.isfinite(value):
            raise _Mismatch("a number")
        return float(value)
    if hint is int:
        if not number or not isinstance(value, int):
            raise _Mismatch("a whole number")
        return int(value)
    words = {bool: "True or False", str: "a text", types.NoneType: "None"}
    if not isinstance(value, hint):
        raise _Mismatch(words.get(hint, f"a {hint.__name__}"))
    return value


def _within(hint: Any, metadata: tuple[Any, ...], value: Any) -> Any:
    bounds = [bound for bound in metadata if isinstance(bound, Bounds)]
    limits = " and ".join(map(str, bounds))
    try:
        found = _coerced(hint, value)
    except _Mismatch as mismatch:
        raise _Mismatch(f"{mismatch} {limits}".rstrip()) from None
    if not all(bound.hold(found) for bound in bounds):
        kind = {int: "a whole number", float: "a number"}.get(hint, "")
        raise _Mismatch(f"{kind} {limits}".strip())
    return found


def _any_of(hints: tuple[Any, ...], value: Any) -> Any:
    wanted = []
    for hint in hints:
        try:
            return _coerced(hint, value)
        except _Mismatch as mismatch:
            wanted.append(str(mismatch))
    raise _Mismatch(" or ".join(wanted))


def _tuple(hints: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _Mismatch("a list")
    if len(hints) == 2 and hints[1] is ...:
        return tuple(_coerced(hints[0], item) for item in value)
    if len(value) != len(hints):
        raise _Mismatch(f"{len(hints)} values")
    return tuple(_coerced(hint, item) for hint, item in zip(hints, value, strict=True))


def _mapping(hints: tuple[Any, ...], value: Any) -> FrozenDict:
    """
    >>> _mapping((float, tuple[int, ...]), {"-0.9": [1, 2]})
    {-0.9: (1, 2)}
    """
    if not isinstance(value, Mapping):
        raise _Mismatch("a mapping")
    keys, items = hints
    return FrozenDict({_key(keys, name): _coerced(items, item) for name, item in value.items()})


def _key(hint: Any, key: Any) -> Any:
    if hint is float and isinstance(key, str):
        try:
            key = float(key)
        except ValueError:
            raise _Mismatch("a mapping of numbers") from None
    return _coerced(hint, key)


def _config(kind: type[Config], value: Any) -> Config:
    if isinstance(value, kind):
        return value
    if isinstance(value, Mapping):
        return kind.from_dict(value)
    raise _Mismatch(f"a {kind.__name__}")


def _frozen(value: Any) -> Any:
    """The same value where nothing can be changed."""
    if isinstance(value, Mapping):
        return FrozenDict({name: _frozen(item) for name, item in value.items()})
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value
