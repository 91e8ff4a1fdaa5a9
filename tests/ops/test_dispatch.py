"""Which backend runs: what cannot is refused with the reason and the way out."""

import importlib.util
import re

import pytest

from statetrack import ops
from statetrack.ops import delta
from tests.helpers import unhooked
from tests.ops.cases import Case
from tests.ops.test_checks import call, each_case


@each_case
def test_backends_that_cannot_run(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "dplr", unhooked(delta.dplr))  # what a gate for each key runs as
    with pytest.raises(ValueError, match="backend='cuda' is not one of auto, reference, torch"):
        call(case, backend="cuda")
    with pytest.raises(ValueError, match="backend='triton' cannot run .* take"):
        call(case, backend="triton")


def test_missing_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "numba" else find_spec(name)
    )
    install = r"needs numba: pip install 'statetrack\[cpu\]'"
    with pytest.raises(ImportError, match=f"backend='numba' {install}"):
        ops.explain_backend("selective_scan", backend="numba")
    choice = ops.explain_backend("selective_scan")
    assert choice.backend == "torch" and re.search(install, choice.reason)


def test_unknown_op_is_named() -> None:
    with pytest.raises(ValueError, match="op='delta_rul' is not one of delta_product, delta_rule"):
        ops.explain_backend("delta_rul")
