"""A language model in a folder: config.json, and its weights as safetensors.

The folder is one that Hugging Face's tools know: `statetrack.hf` reads and writes the same files.
A small Python file beside them says what to install where statetrack is missing.
Nothing is ever unpickled.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from statetrack.models.config import CausalLMConfig

__all__ = [
    "AUTO_MAP",
    "CONFIG",
    "LOADER",
    "LOADER_TEXT",
    "MODEL_TYPE",
    "described",
    "expect_fit",
    "load",
    "read_config",
    "read_weights",
    "save",
    "write_folder",
    "write_loader",
]

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth")
MODEL_TYPE = "statetrack"
PREFIX = "model."
"""Before every name that `statetrack.hf` writes."""
LARGEST = 4 * 2**30
"""Bytes of one file of weights."""
LOADER = "modeling_statetrack.py"
"""What `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` runs."""
LOADER_TEXT = '''"""This folder holds a language model of the Python package statetrack.

    pip install 'statetrack[hf]'

    import statetrack.hf
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained("this folder")

No code of this folder runs then. This file is for trust_remote_code=True, where the import above is
left out.
"""

try:
    from statetrack.hf import StatetrackConfig, StatetrackForCausalLM
except ImportError as error:
    raise ImportError(
        "this is a model of statetrack, which cannot be imported here: pip install 'statetrack[hf]'"
    ) from error

__all__ = ["StatetrackConfig", "StatetrackForCausalLM"]
'''
AUTO_MAP = {
    "AutoConfig": "modeling_statetrack.StatetrackConfig",
    "AutoModelForCausalLM": "modeling_statetrack.StatetrackForCausalLM",
}
"""Names the loader in config.json, as transformers asks."""


def save(folder: Path, config: CausalLMConfig, weights: Mapping[str, Tensor]) -> None:
    """Writes a model of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    write_loader(folder)
    write_folder(folder, described(config), weights)


def described(config: CausalLMConfig) -> dict[str, Any]:
    """What config.json says of a model of ours."""
    return {
        "architectures": ["StatetrackForCausalLM"],
        "auto_map": AUTO_MAP,
        "model_type": MODEL_TYPE,
        "model": config.to_dict(),
    }


def write_folder(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Writes any model; a reader sees the new config only when all weights are there."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = list(_parts(weights))
    names = [WEIGHTS]
    if len(parts) > 1:
        names = [f"model-{i:05}-of-{len(parts):05}.safetensors" for i in range(1, len(parts) + 1)]
    for old in (*folder.glob("model-*-of-*.safetensors"), folder / WEIGHTS, folder / INDEX):
        if old.name not in names:
            old.unlink(missing_ok=True)
    for name, part in zip(names, parts, strict=True):
        plain = {key: value.detach().cpu().contiguous() for key, value in part.items()}
        temporary = folder / f".tmp-{name}"
        safetensors.torch.save_file(plain, temporary, metadata={"format": "pt"})
        os.replace(temporary, folder / name)
    if len(parts) > 1:
        where = {key: name for name, part in zip(names, parts, strict=True) for key in part}
        total = sum(value.nbytes for value in weights.values())
        _write(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": where})
    _write(folder / CONFIG, dict(config))


def write_loader(folder: Path) -> None:
    """Lets transformers find the model, or say what to install."""
    (folder / LOADER).write_text(LOADER_TEXT, encoding="utf-8")


def load(folder: Path) -> tuple[CausalLMConfig, dict[str, Tensor]]:
    """The config and the weights, on the CPU."""
    return read_config(folder), {
        name.removeprefix(PREFIX): tensor for name, tensor in read_weights(folder).items()
    }


def read_config(folder: Path) -> CausalLMConfig:
    path = folder / CONFIG
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder with a language model: there is no such folder")
    if not path.is_file():
        raise ValueError(f"{folder} is not a language model: it has no {CONFIG}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict) or not ({"model_type", "ssm_cfg"} & found.keys()):
        raise ValueError(f"{path} does not describe a language model: it has no 'model_type'")
    kind = found.get("model_type", "mamba-ssm")
    if kind != MODEL_TYPE:
        raise ValueError(
            f"{path} describes a model of another library ({kind}); `statetrack lm convert` makes "
            "those that it knows into one of ours"
        )
    if not isinstance(found.get("model"), dict):
        raise ValueError(f"{path} has no entry 'model' with the description of a CausalLM")
    try:
        return CausalLMConfig.from_dict(found["model"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def expect_fit(folder: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Names and shapes of the weights are those that the config asks for."""
    for name, tensor in wanted.items():
        if name not in found:
            raise ValueError(f"{folder} lacks the weights {name} that its {CONFIG} asks for")
        if found[name].shape != tensor.shape:
            raise ValueError(
                f"{name} in {folder} has shape {list(found[name].shape)}, but its {CONFIG} asks "
                f"for {list(tensor.shape)}"
            )
    more = sorted(found.keys() - wanted.keys())
    if more:
        raise ValueError(f"{folder} has weights that its {CONFIG} does not ask for: {more[0]}")


def _parts(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The weights in the order of their names, none of the parts larger than a file may be."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights.items():
        if part and size + tensor.nbytes > LARGEST:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += tensor.nbytes
    yield part


def read_weights(folder: Path) -> dict[str, Tensor]:
    index = folder / INDEX
    if (folder / WEIGHTS).is_file():
        return _read(folder / WEIGHTS)
    if not index.is_file():
        pickles = [name for name in PICKLES if (folder / name).exists()]
        if pickles:
            raise ValueError(
                f"{folder / pickles[0]} is a pickle, which can run code when it is read; only "
                "safetensors are read here: save it so with the library that wrote it"
            )
        raise ValueError(f"{folder} has no weights: neither {WEIGHTS} nor {INDEX}")
    try:
        where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(where.values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{index} is not an index of weights: no 'weight_map'") from None
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"{folder} is not complete: {len(missing)} of {len(files)} files of weights are "
            f"missing, the first is {missing[0]}"
        )
    weights: dict[str, Tensor] = {}
    for name in files:
        weights |= _read(folder / name)
    return weights


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None


def _write(path: Path, value: Any) -> None:
    temporary = path.with_name(f".tmp-{path.name}")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
