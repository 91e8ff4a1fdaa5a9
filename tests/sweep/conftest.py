"""Undisturbed runs, to compare with."""

import pytest
import torch

from statetrack.training import run
from tests.sweep.cases import LONG, SHORT, Whole, outcome


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What the runs end with when nobody disturbs them."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("whole")
    return {config.fingerprint: outcome(run(config, root).folder) for config in (LONG, SHORT)}
