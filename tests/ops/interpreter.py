"""Triton's interpreter. It is chosen at import, so what it runs has a process of its own.

A file that is interpreted holds two sets of tests: those for a process that interprets, and one
made by `expect_interpreted`, which starts that process.
"""

import os
import subprocess
import sys

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# the tests of the other process that are not marked slow, and those that are
fast_and_slow = pytest.mark.parametrize(
    "marker", ["not slow", pytest.param("slow", marks=pytest.mark.slow)]
)


def expect_interpreted(file: str, marker: str) -> None:
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-m", marker, file]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
