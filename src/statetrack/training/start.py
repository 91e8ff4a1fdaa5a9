"""Weights that a run starts from, instead of drawn ones: named by what they are.

The config has their digest, so that a run from other weights is another run. The weights themselves
lie in the run's folder, where a run that was killed before its first checkpoint finds them again.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from statetrack.runs.files import write_atomically
from statetrack.runs.folder import START
from statetrack.runs.identity import RunDescription
from statetrack.runs.tensors import load_tensors, save_tensors
from statetrack.training.config import RunConfig

__all__ = ["expect_fit", "start_in", "started", "weights_digest"]

Weights = Mapping[str, Tensor]
Described = TypeVar("Described", bound=RunDescription)


def weights_digest(weights: Weights) -> str:
    """The sha256 of names, dtypes, shapes and bits, whatever the order.

    >>> weights_digest({"a": torch.zeros(2)}) == weights_digest({"a": torch.zeros(1, 2)})
    False
    """
    found = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def started(config: Described, weights: Weights | None) -> Described:
    """The config with the digest of the weights it starts from."""
    if weights is None or config.start is not None:
        return config
    if not isinstance(config, RunConfig):
        raise ValueError(f"a run of kind {config.KIND!r} cannot start from given weights yet")
    return dataclasses.replace(config, start=weights_digest(weights))


def expect_fit(config: RunDescription, weights: Weights) -> None:
    """Refuses weights that are not those the config names, or not of its model."""
    wanted = {name: tuple(t.shape) for name, t in config.build().state_dict().items()}
    shapes = {name: tuple(t.shape) for name, t in weights.items()}
    if shapes != wanted:
        differ = sorted(name for name in {*wanted, *shapes} if wanted.get(name) != shapes.get(name))
        raise ValueError(
            f"the weights to start from are of another model: {differ[0]} has shape "
            f"{shapes.get(differ[0], 'none')}, the config's model {wanted.get(differ[0], 'none')}; "
            "take the config of the model they are from"
        )
    if config.start != (digest := weights_digest(weights)):
        raise ValueError(
            f"the config starts from weights with the digest {config.start}, and these have "
            f"{digest}; leave out start in the config, and it is filled in"
        )


def start_in(folder: Path, config: RunDescription, given: Weights | None) -> Weights | None:
    """What a run in a folder starts from: as given, and then kept there; None where it is drawn."""
    if config.start is None:
        return None
    path = folder / START
    if given is None:
        if not path.is_file():
            raise ValueError(
                f"the run starts from weights that are not in {path}; give them as start="
            )
        given = load_tensors(path.read_bytes())
    expect_fit(config, given)
    if not path.is_file():
        write_atomically(path, save_tensors(dict(given)))
    return given
