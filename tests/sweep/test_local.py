"""Worker processes: none outlives its parent, Ctrl-C is one line, a dead one is replaced."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from statetrack.runs import Run, find_runs
from statetrack.runs.files import InUse, exclusive
from statetrack.sweep import local, run_many
from statetrack.training import run
from tests.sweep.cases import (
    LONG,
    Heard,
    Whole,
    checkpoints_of,
    expect_the_same,
    kill,
    needs_proc,
    wait_until,
    writer_of,
)
from tests.training import tiny

ROOT = Path(__file__).parents[2]
CONFIGS = [tiny.config(seed=seed) for seed in range(3)]


@needs_proc
def test_in_processes_a_dead_worker_is_replaced(tmp_path: Path) -> None:
    victim = tiny.config(seed=0, steps=20_000)
    others = CONFIGS[1:]
    path = tmp_path / victim.fingerprint / "records.jsonl"
    killer = threading.Thread(target=lambda: kill(wait_until(lambda: writer_of(path))))
    killer.start()
    heard = Heard()
    sweep = run_many([victim, *others], tmp_path, workers=1, watch=heard)
    killer.join()
    assert [one.finished for one in sweep.runs] == [False, True, True]
    assert "died with exit code -9" in (sweep.runs[0].error or "")
    assert sorted(heard.over) == sorted(c.fingerprint for c in (victim, *others))
    # the same numbers as in this process
    alone = run(others[0], tmp_path / "alone")
    assert sweep.runs[1].records == alone.records


SCRIPT = """
import sys
from statetrack.sweep import run_many
from statetrack.training.config import RunConfig
{patch}
if __name__ == "__main__":
    configs = [RunConfig.from_json(text) for text in sys.argv[2:]]
    run_many(configs, sys.argv[1], workers=2)
"""


def start(folder: Path, texts: list[str], *, patch: str = "", **options: Any) -> Any:
    """A script that trains in two processes, as a user would write it."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(patch=patch))
    return subprocess.Popen(
        [sys.executable, str(script), str(folder / "runs"), *texts],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def is_held(folder: Path) -> bool:
    try:
        with exclusive(folder / "lock"):
            return False
    except InUse:
        return True


@needs_proc
@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path: Path, whole: Whole) -> None:
    """Killed without a word to its workers, the parent leaves none, and the next goes on."""
    parent = start(tmp_path, [LONG.to_json()])
    folder = tmp_path / "runs" / LONG.fingerprint
    wait_until(lambda: len(checkpoints_of(folder)) >= 2)
    parent.kill()
    wait_until(lambda: not is_held(folder), within=2.5)
    assert parent.communicate()[1] == ""
    assert not Run(folder).finished and Run(folder).error is None
    sweep = run_many([LONG], tmp_path / "runs", workers=0)
    expect_the_same(sweep, whole, [LONG])
    assert sweep.runs[0].info["resumed_at"] >= 40


ENDLESS_STEP = """
import time
from statetrack.training import Engine
Engine._evaluate = lambda self, rows: time.sleep(1000)
"""


@needs_proc
@pytest.mark.slow
def test_a_worker_ends_with_its_parent_in_the_middle_of_a_step(tmp_path: Path) -> None:
    """Its main thread is in a call that no interrupt ends."""
    parent = start(tmp_path, [LONG.to_json()], patch=ENDLESS_STEP)
    folder = tmp_path / "runs" / LONG.fingerprint
    worker = wait_until(lambda: writer_of(folder / "records.jsonl"))
    time.sleep(0.5)
    parent.kill()
    parent.communicate()
    assert wait_until(lambda: not is_held(folder), within=2.5)
    assert wait_until(lambda: not Path(f"/proc/{worker}").exists(), within=2.5)


@needs_proc
@pytest.mark.slow
def test_interrupted_it_says_so_in_one_line(tmp_path: Path) -> None:
    """Ctrl-C goes to all processes of the terminal; only the parent speaks."""
    words = ["reproduce", "figure-1", "--scale", "paper", "--workers", "2", "--device", "cpu"]
    command = subprocess.Popen(
        [sys.executable, "-m", "statetrack", *words, "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: len([run for run in find_runs(tmp_path) if run.records]) >= 2)
    begun = time.monotonic()
    os.killpg(command.pid, signal.SIGINT)
    out, told = command.communicate(timeout=60)
    assert command.returncode == 130 and out == ""
    assert time.monotonic() - begun < local.STOP_S
    last = told.splitlines()[-1]
    assert last.startswith("statetrack: stopped; ")
    assert all(": step " in line or ": starting" in line for line in told.splitlines()[1:-1]), told
    assert [run.error for run in find_runs(tmp_path)] == [None] * len(find_runs(tmp_path))


def test_an_interrupt_while_a_worker_starts_comes_after() -> None:
    """Also one that another thread takes: else the worker finds half of what it is sent."""
    release, reached = threading.Event(), False
    other = threading.Thread(target=release.wait, daemon=True)
    other.start()
    assert other.ident is not None
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), local._interrupts_kept_back():
        signal.pthread_kill(other.ident, signal.SIGINT)
        time.sleep(0.1)  # handlers run between two instructions of this thread
        reached = True
    release.set()
    assert reached and signal.getsignal(signal.SIGINT) is before


@needs_proc
@pytest.mark.slow
def test_interrupted_while_workers_start(tmp_path: Path) -> None:
    """A worker that is still importing is as deaf as one that trains."""
    parent = start(tmp_path, [LONG.to_json(), CONFIGS[0].to_json()], start_new_session=True)
    wait_until(lambda: len(workers_of(parent.pid)) == 2)
    os.killpg(parent.pid, signal.SIGINT)
    told = parent.communicate(timeout=60)[1]
    assert told.count("Traceback") == 1 and told.splitlines()[-1] == "KeyboardInterrupt"
    assert "spawn_main" not in told


def workers_of(parent: int) -> list[str]:
    """The children of a process that multiprocessing has spawned to work."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    lines = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    return [child for child, line in zip(children, lines, strict=True) if b"spawn_main" in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("{}", 'if __name__ == "__main__":'),
        (
            "if __name__ == '__mp_main__': raise SystemExit(3)\n{}",
            "exit code 3 before it could",
        ),
    ],
)
def test_workers_that_cannot_start_are_an_error(tmp_path: Path, line: str, hint: str) -> None:
    """A script without a main guard, and one that no worker can import: nothing is trained."""
    call = "run_many(configs, 'runs', workers=2)"
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "from statetrack.sweep import run_many\n"
        "from statetrack.training.config import RunConfig\n"
        "configs = [RunConfig.from_json(text) for text in sys.argv[1:]]\n"
        f"{line.format(call)}\n"
        "print('returned')\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py", *(config.to_json() for config in CONFIGS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: ") and hint in last and "workers=0" in last
    assert done.stderr.count("Traceback") == 1
    assert not any(run.records for run in find_runs(tmp_path / "runs"))
