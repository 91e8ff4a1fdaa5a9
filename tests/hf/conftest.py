"""transformers shows no bars here."""

import pytest
from transformers.utils import logging

logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the network, not even for a model that is not there."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
