"""Shards that the tests of pretraining share."""

import pytest

from statetrack.lm import Manifest
from tests.lm import corpus


@pytest.fixture(scope="session")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return corpus.shards(tmp_path_factory.mktemp("corpus"))
