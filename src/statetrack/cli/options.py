"""What options of several commands share."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

__all__ = ["Flag", "by_name", "choose_device", "expect_nothing_beside", "pairs_of"]

Flag = Annotated[bool, Parameter(show_default=False)]
"""Off unless given."""


def choose_device(given: str | None, *, here: bool = True) -> str:
    """The device to train on; what the machines of a cluster have is not known here."""
    import torch

    if given is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = given.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdigit():
        raise ValueError(f"device={given!r} must be cpu or cuda")
    if here and kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but PyTorch sees no GPU here; take cpu")
    return given


def expect_nothing_beside(config: Path, recipe: Any) -> None:
    """Refuses options that describe a run, of which `config` already says everything."""
    given = [
        f"--{field.name.replace('_', '-')}"
        for part in vars(recipe).values()
        for field in dataclasses.fields(part)
        if getattr(part, field.name) != field.default
    ]
    if given:
        raise ValueError(f"--config {config} says what the run is: leave out {', '.join(given)}")


def pairs_of(option: str, given: Sequence[str], form: str = "name=value") -> dict[str, str]:
    """What stands on either side of each `=`.

    >>> pairs_of("--option", ["num_heads=2", "mode=slow"])
    {'num_heads': '2', 'mode': 'slow'}
    """
    found: dict[str, str] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{option} {pair!r} must have the form {form}")
        if name in found:
            raise ValueError(f"{option} {name} is given twice: {found[name]} and {text}")
        found[name] = text
    return found


def by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """A short name for each path; the whole path where names are the same.

    >>> list(by_name([Path("a/x"), Path("b/y")])), list(by_name([Path("a/x"), Path("b/x")]))
    (['x', 'y'], ['a/x', 'b/x'])
    """
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return dict(zip(names, paths, strict=True))
    return {str(path): path for path in paths}
