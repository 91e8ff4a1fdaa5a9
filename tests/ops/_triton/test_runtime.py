"""What the kernels need of the installed Triton."""

import pytest

pytest.importorskip("triton")


def test_an_untested_triton_is_refused_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from statetrack.ops._triton import runtime

    monkeypatch.setattr(runtime.triton, "__version__", "3.2.0")
    with pytest.raises(RuntimeError, match=r"Triton 3\.2\.0 .* pip install"):
        runtime.check_version()
    monkeypatch.undo()
    runtime.check_version()


def test_an_untested_triton_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plain tensor code does the same, an old Triton is left alone."""
    from statetrack.ops._triton import available, runtime

    assert available.__wrapped__()
    monkeypatch.setattr(runtime.triton, "__version__", "3.2.0")
    assert not available.__wrapped__()
    monkeypatch.setattr("statetrack.ops._triton.find_spec", lambda name: None)
    assert not available.__wrapped__()
