"""The table that each op writes once, and the folders it stands in."""

import ast
import importlib
from pathlib import Path

import pytest
import torch

import statetrack.ops
from statetrack.ops._spec import OpSpec, find
from tests.ops.cases import CASES

SPECS = sorted({find(case.op) for case in CASES}, key=lambda spec: spec.name)
FOLDERS = sorted(path.parent for path in Path(statetrack.ops.__file__).parent.glob("*/spec.py"))
each_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


def test_every_folder_is_an_op_with_cases() -> None:
    assert {folder.name for folder in FOLDERS} == {spec.package.split(".")[-1] for spec in SPECS}


@each_spec
def test_a_module_for_every_backend(spec: OpSpec) -> None:
    folder = Path(importlib.import_module(spec.package).__file__ or "").parent
    for backend in spec.backends:
        assert (folder / f"{backend}.py").exists() or (folder / backend).is_dir()
        if backend != "triton":
            assert callable(
                getattr(importlib.import_module(f"{spec.package}.{backend}"), spec.name)
            )
    assert (folder / "README.md").exists()


@each_spec
def test_names_are_public_functions(spec: OpSpec) -> None:
    for name in (spec.name, *spec.other_names):
        assert callable(getattr(statetrack.ops, name))
        assert find(name) is spec


@each_spec
def test_every_registered_op_has_the_arguments_of_the_spec(spec: OpSpec) -> None:
    for backend in spec.backends:
        if backend in ("reference", "triton"):
            continue
        importlib.import_module(f"{spec.package}.{backend}")
        op = getattr(torch.ops.statetrack, f"{spec.name}_{backend}").default
        names = [argument.name for argument in op._schema.arguments]
        assert tuple(names[: len(spec.inputs._fields)]) == spec.inputs._fields


def test_a_schema_is_made_of_the_types() -> None:
    assert find("short_convolution").schema == (
        "Tensor x, Tensor weight, Tensor? bias, bool use_silu, Tensor? initial_state"
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_name_of_a_package_is_lost_to_a_module_of_its_own(folder: Path) -> None:
    """Importing an op's torch.py sets `torch` in its package, over an `import torch` there."""
    own = {path.stem for path in folder.iterdir()}
    for node in ast.parse((folder / "__init__.py").read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert not own & {alias.asname or alias.name for alias in node.names}
