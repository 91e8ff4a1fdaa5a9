"""One machine compiled in a process of its own, with bounds on its time and memory.

`python -m statetrack.playground.worker` reads `{"machine": …, "alphabet": …}` from its input and
writes `{"entry": …}` or `{"error": one line}`. A `Compiler` starts it and waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

__all__ = ["MEMORY", "SECONDS", "Compiler", "answer", "main"]

SECONDS = 20
"""How long compiling one machine may take."""

MEMORY = 2 * 2**30
"""Bytes that compiling one machine may take."""

WAY_OUT = "`statetrack compile` and `statetrack explain` have no such limit"


class Compiler:
    """Starts the process for each text; `end` stops the one that runs."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._running: subprocess.Popen[str] | None = None

    def __call__(self, text: str, alphabet: str | None = None) -> dict[str, Any]:
        """`{"entry": …}` or `{"error": one line}` for what a person typed; never raises for it."""
        asked = json.dumps({"machine": text, "alphabet": alphabet, "seconds": self.seconds})
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            [sys.executable, "-m", "statetrack.playground.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=os.environ | one_thread | {"PYTHONIOENCODING": "utf-8"},
        ) as process:
            self._running = process
            try:
                written, _ = process.communicate(asked, timeout=self.seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                return {"error": _too_long(self.seconds)}
            finally:
                self._running = None
        try:
            answered = json.loads(written)
        except json.JSONDecodeError:  # a limit ended the process
            return {"error": _too_long(self.seconds) if process.returncode < 0 else _too_much()}
        assert isinstance(answered, dict)
        return answered

    def end(self) -> None:
        """Stops what is being compiled, if anything is."""
        process = self._running
        if process is not None:
            process.kill()


def _too_long(seconds: float) -> str:
    return f"too large: compiling it took more than {seconds:g} seconds; {WAY_OUT}"


def _too_much() -> str:
    return f"too large: compiling it took more than {MEMORY >> 30} GB of memory; {WAY_OUT}"


def answer(text: str, alphabet: str | None) -> dict[str, Any]:
    """The entry of the machine, or the library's line about what is wrong with the text."""
    from statetrack.automata import source
    from statetrack.playground.page import entry

    try:
        if source(text, alphabet).kind == "table":
            raise ValueError(
                "the page reads no files; give the file to the command: statetrack playground FILE"
            )
        return {"entry": entry(text, alphabet)}
    except (ValueError, ImportError) as error:
        return {"error": " ".join(str(error).split())}
    except MemoryError:
        return {"error": _too_much()}
    except RecursionError:
        return {"error": f"too large: it is nested too deeply; {WAY_OUT}"}


def _limit(seconds: float) -> None:
    """Bounds on memory and processor time, where the system has them."""
    try:
        import resource
    except ImportError:  # Windows: the time of the parent's clock is the only bound
        return
    for kind, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, int(seconds) + 1)):
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(kind, (most, hard))


def main() -> int:
    """Reads one question, writes one answer."""
    asked = json.loads(sys.stdin.read())
    _limit(asked["seconds"])
    print(json.dumps(answer(asked["machine"], asked["alphabet"])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
