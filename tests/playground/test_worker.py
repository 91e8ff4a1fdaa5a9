"""Compiling in a process of its own: the library's lines, and bounds that hold."""

import pytest

from statetrack.automata import read
from statetrack.playground import worker
from statetrack.playground.worker import Compiler, answer

SLOW = "s6"
"""720 letters: its programs take longer than the page waits for."""


def test_the_process_answers_with_the_entry_or_the_librarys_own_line() -> None:
    compiler = Compiler()
    assert compiler("(ab)*")["entry"]["text"] == "(ab)*"
    with pytest.raises(ValueError) as caught:
        read("(a")
    assert compiler("(a") == {"error": " ".join(str(caught.value).split())}


@pytest.mark.parametrize(
    "text, alphabet, says",
    [
        ("partiy", None, "did you mean 'parity'?"),
        ("(a|c)*", "ab", "uses 'c', which is not in the alphabet 'ab'"),
        ("", None, "there is no machine in an empty text"),
        ("a{99999}", None, "too large"),
        ("s9", None, "too large"),
        ("/etc/hostname.json", None, "the page reads no files"),
        ("machine:x.dot", None, "the page reads no files"),
        ("<img src=x onerror=alert(1)>", None, ""),
    ],
)
def test_what_cannot_be_is_said_in_one_line(text: str, alphabet: str | None, says: str) -> None:
    answered = answer(text, alphabet)
    assert answered.keys() == {"error"}
    assert says in answered["error"] and "\n" not in answered["error"]


def test_a_process_that_takes_too_long_is_ended() -> None:
    answered = Compiler(seconds=0.5)(SLOW)
    assert answered["error"].startswith("too large: compiling it took more than 0.5 seconds")


def test_what_takes_too_much_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(text: str, alphabet: str | None) -> None:
        raise MemoryError

    monkeypatch.setattr("statetrack.playground.page.entry", hungry)
    assert answer("(ab)*", None)["error"].startswith("too large: compiling it took more than 2 GB")


LIMITED = """
import resource
from statetrack.playground import worker
worker._limit(7.0)
assert resource.getrlimit(resource.RLIMIT_AS)[0] == worker.MEMORY
assert resource.getrlimit(resource.RLIMIT_CPU)[0] == 8
try:
    bytearray(worker.MEMORY)
except MemoryError:
    print("refused")
"""


def test_the_process_has_bounds() -> None:
    import subprocess
    import sys

    pytest.importorskip("resource", reason="this system has no such limits")
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr


def test_nothing_is_ended_where_nothing_runs() -> None:
    compiler = Compiler()
    compiler.end()
    assert compiler._running is None
    assert worker.SECONDS == compiler.seconds
