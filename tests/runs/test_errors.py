"""error.txt belongs to whoever holds the lock, and never stands beside DONE."""

from pathlib import Path

from statetrack.runs.errors import forget_error, keep_error, reason_of
from statetrack.runs.files import exclusive


def test_the_first_error_stays(tmp_path: Path) -> None:
    assert keep_error(tmp_path, "first") and keep_error(tmp_path, "second")
    assert (tmp_path / "error.txt").read_text() == "first"


def test_no_error_beside_a_result(tmp_path: Path) -> None:
    (tmp_path / "DONE").write_text("{}")
    assert keep_error(tmp_path, "late")
    assert not (tmp_path / "error.txt").exists()


def test_no_error_without_the_lock(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock"):
        assert not keep_error(tmp_path, "of the loser")
        assert not (tmp_path / "error.txt").exists()
        (tmp_path / "error.txt").write_text("of the holder")
        assert not forget_error(tmp_path)
        assert (tmp_path / "error.txt").exists()
    assert forget_error(tmp_path)
    assert not (tmp_path / "error.txt").exists()


def test_a_folder_that_was_never_made_gets_no_error(tmp_path: Path) -> None:
    assert keep_error(tmp_path / "gone", "text")
    assert not (tmp_path / "gone").exists()


def test_the_reason_is_what_was_raised_and_not_the_advice_behind_it() -> None:
    """As torch tells of a fault of the GPU, and of a group of errors."""
    text = (
        'Traceback (most recent call last):\n  File "run.py", line 1, in step\n    replay()\n'
        "    ^^^^^^\ntorch.AcceleratorError: CUDA error: an illegal memory access\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `X`.\n\n"
    )
    assert reason_of(text) == "torch.AcceleratorError: CUDA error: an illegal memory access"
    assert reason_of('Traceback\n  File "x"\n    raise\nValueError\n') == "ValueError"
    assert reason_of("first\nlast\n") == "last" and reason_of("it was interrupted") != ""
