"""Weights that a run starts from, instead of drawn ones: named by what they are, or by their run.

The config has their digest, so that a run from other weights is another run; or the fingerprint of
the run whose final weights they are (`parent`), which is known before that run is trained. The
weights themselves lie in the run's folder, where a run that was killed before its first checkpoint
finds them again.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from statetrack.runs.errors import reason_of
from statetrack.runs.files import write_atomically
from statetrack.runs.folder import START, Run
from statetrack.runs.identity import RunDescription
from statetrack.runs.tensors import load_tensors, save_tensors
from statetrack.runs.verify import problems
from statetrack.training.config import RunConfig

__all__ = ["awaited", "expect_fit", "start_in", "started", "weights_digest"]

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
    if weights is not None and config.parent is not None:
        raise ValueError(
            f"the config starts from run {config.parent}, and weights are given as well: leave out "
            "one of the two"
        )
    if weights is None or config.start is not None:
        return config
    if not isinstance(config, RunConfig):
        raise ValueError(f"a run of kind {config.KIND!r} cannot start from given weights yet")
    return dataclasses.replace(config, start=weights_digest(weights))


def expect_fit(config: RunDescription, weights: Weights) -> None:
    """Refuses weights that are not of the config's model, or have another digest than it names."""
    wanted = {name: tuple(t.shape) for name, t in config.build().state_dict().items()}
    shapes = {name: tuple(t.shape) for name, t in weights.items()}
    if shapes != wanted:
        differ = sorted(name for name in {*wanted, *shapes} if wanted.get(name) != shapes.get(name))
        raise ValueError(
            f"the weights to start from are of another model: {differ[0]} has shape "
            f"{shapes.get(differ[0], 'none')}, the config's model {wanted.get(differ[0], 'none')}; "
            "take the config of the model they are from"
        )
    if config.parent is None and config.start != (digest := weights_digest(weights)):
        raise ValueError(
            f"the config starts from weights with the digest {config.start}, and these have "
            f"{digest}; leave out start in the config, and it is filled in"
        )


def start_in(folder: Path, config: RunDescription, given: Weights | None) -> Weights | None:
    """What a run in a folder starts from; None where it is drawn.

    It is what is given, what the folder keeps, or what the run's parent beside it ended with; and
    then the folder keeps it.
    """
    if config.start is None:
        return None
    path = folder / START
    if given is None:
        if path.is_file():
            given = load_tensors(path.read_bytes())
        elif config.parent is not None:
            given = _final_weights(Run(folder.parent / config.parent))
        else:
            raise ValueError(
                f"the run starts from weights that are not in {path}; give them as start="
            )
    expect_fit(config, given)
    if not path.is_file():
        write_atomically(path, save_tensors(dict(given)))
    return given


def awaited(folder: Path, config: RunDescription) -> str | None:
    """The run that must finish before the one in `folder` can begin; None if it can at once."""
    if config.parent is None or (folder / START).is_file():
        return None
    return None if Run(folder.parent / config.parent).finished else config.parent


def _final_weights(parent: Run) -> Weights:
    if not parent.finished:
        why = "has not finished" if parent.folder.exists() else "is not there"
        why = f"failed: {reason_of(parent.error)}" if parent.error else why
        way_out = "train that one first, in the same folder"
    elif found := problems(parent) or ([] if parent.has_weights else ["it has no weights"]):
        why, way_out = f"is damaged: {'; '.join(found)}", "delete it and train it again"
    else:
        return parent.weights()
    raise ValueError(
        f"the run starts from run {parent.name}, which in {parent.folder} {why}; {way_out}"
    )
