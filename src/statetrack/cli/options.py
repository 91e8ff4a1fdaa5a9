"""What options of several commands share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["Flag", "by_name", "choose_device"]

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


def by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """A short name for each path; the whole path where names are the same.

    >>> list(by_name([Path("a/x"), Path("b/y")])), list(by_name([Path("a/x"), Path("b/x")]))
    (['x', 'y'], ['a/x', 'b/x'])
    """
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return dict(zip(names, paths, strict=True))
    return {str(path): path for path in paths}
