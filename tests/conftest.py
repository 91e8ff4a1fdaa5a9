"""Shape annotations become checks, and bf16 products stay clear of a trap on some virtual CPUs."""

import signal
from collections.abc import Iterator
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
import torch
from jaxtyping import install_import_hook

from statetrack._amx import avoid_amx_trap
from tests.chromium import chromium

avoid_amx_trap()
import_module("statetrack.config")  # before the hook, which would check its every value once more

if not torch.cuda.is_available():  # on a GPU models are compiled, and the checks cannot be
    install_import_hook("statetrack", "beartype.beartype")

torch.set_num_threads(1)  # the suite runs in two processes on two cores
# A shell that starts the suite in the background has it ignore Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Of one module alone: a second one beside it in the same process is refused."""
    with chromium() as started:
        yield started


@pytest.fixture(autouse=True)
def one_draw_for_all() -> None:
    """What a test draws without a generator is the same every time."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def registries_as_they_were() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    from statetrack.layers import registry
    from statetrack.tasks import _registry

    with patch.dict(registry.LAYERS), patch.dict(_registry._REGISTERED):
        yield
