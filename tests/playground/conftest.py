"""The page with the whole gallery is written once, by the command."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def static_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a process of its own, where no shape is checked: ten times as fast."""
    folder = tmp_path_factory.mktemp("playground")
    command = [sys.executable, "-m", "statetrack", "playground", "--static", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "index.html"
