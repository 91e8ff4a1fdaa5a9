"""The page with the whole gallery is written once, by the command, and one browser shows it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.playground.browser import chromium


@pytest.fixture(scope="session")
def static_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a process of its own, where no shape is checked: ten times as fast."""
    folder = tmp_path_factory.mktemp("playground")
    command = [sys.executable, "-m", "statetrack", "playground", "--static", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "index.html"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started
