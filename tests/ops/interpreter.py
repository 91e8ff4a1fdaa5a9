"""Triton's interpreter. It is chosen at import, so what it runs has a process of its own.

The files in `FILES` hold tests for such a process. One test starts it for their fast cases, which
share it; one test a file starts it for the slow ones.
"""

import os
import subprocess
import sys
from pathlib import Path

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = Path(__file__).parent
FILES = [
    HERE / "_triton" / "test_few.py",
    HERE / "_triton" / "test_scores.py",
    HERE / "convolution" / "test_triton.py",
    HERE / "delta" / "triton" / "test_chunked.py",
    HERE / "delta" / "triton" / "test_short.py",
    HERE / "dplr" / "triton" / "test_chunked.py",
    HERE / "linear_attention" / "triton" / "test_shared.py",
    HERE / "linear_attention" / "triton" / "test_short.py",
    HERE / "test_triton_interpreter.py",
]


def expect_interpreted(marker: str, *files: Path | str) -> None:
    """The tests in `files` that `marker` selects pass, and there are some."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", marker]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([*command, *map(str, files)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
