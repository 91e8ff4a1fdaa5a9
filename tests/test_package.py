"""The package as a whole: light imports, one direction, one place for the range, docs that run."""

import ast
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import statetrack

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "statetrack"

# what each part may import from the others, as the design draws it
BELOW_MODELS = {"config", "eigenvalues", "ops", "layers", "automata"}
MAY_IMPORT = {
    "_typing": set(),
    "_amx": set(),
    "_suggest": set(),
    "config": set(),
    "eigenvalues": set(),
    "ops": set(),
    "layers": {"config", "ops", "eigenvalues"},
    "models": {"config", "layers", "ops", "eigenvalues"},
    "automata": set(),
    "tasks": {"automata"},
    "compiler": {"automata", "layers", "models", "ops", "eigenvalues"},
    "runs": {"config", "tasks"},
    "training": {*BELOW_MODELS, "models", "tasks", "runs"},
    "analysis": {*BELOW_MODELS, "models", "tasks", "runs", "compiler", "training"},
    "sweep": {"config", "runs", "training"},
    "experiments": {*BELOW_MODELS, "models", "tasks", "runs", "training", "sweep", "compiler"},
    "report": {"config", "models", "tasks", "runs", "training", "analysis", "experiments"},
}
TOP = {"__init__", "__main__", "cli"}  # may import anything


def sources() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    """The parts of statetrack that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    mine = [name.split(".") for name in names if name.split(".")[0] == "statetrack"]
    return {parts[1] for parts in mine if len(parts) > 1}


def test_every_part_has_a_place() -> None:
    assert {part_of(path) for path in sources()} <= MAY_IMPORT.keys() | TOP


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part in TOP:
        return
    allowed = MAY_IMPORT[part] | {part, "_amx", "_typing", "_suggest"}
    assert imported_parts(path) <= allowed


def test_automata_know_no_torch() -> None:
    for path in (SRC / "automata").glob("*.py"):
        assert not re.search(r"^\s*(import|from) torch", path.read_text(), re.MULTILINE), path


LIGHT_IMPORT = """
import importlib.util
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

BLOCKED = {"jaxtyping", "beartype", "numba", "triton", "automata", "matplotlib", "rich",
           "cyclopts", "safetensors", "jinja2", "transformers"}
sys.meta_path.insert(0, Block())
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in BLOCKED else find_spec(name)
import torch
random_state, threads = torch.random.get_rng_state(), torch.get_num_threads()
import statetrack, statetrack.ops, statetrack.layers, statetrack.models, statetrack.tasks
import statetrack.automata, statetrack.compiler, statetrack.training, statetrack.sweep
assert torch.equal(torch.random.get_rng_state(), random_state)
assert torch.get_num_threads() == threads
y, _ = statetrack.layers.DeltaNet(32, num_heads=2)(torch.randn(2, 5, 32))
assert y.isfinite().all()
u = torch.randn(2, 5, 8)
statetrack.layers.Mamba(8, d_state=4)(u)
"""


def test_import_needs_torch_and_numpy_alone_and_does_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT_IMPORT], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""


def test_import_is_lazy() -> None:
    code = (
        "import sys, statetrack\n"
        "heavy = {'numba', 'triton', 'matplotlib', 'automata', 'rich', 'cyclopts'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_no_layer_hard_codes_the_range() -> None:
    """`grep` finds the range in one file: layers only ask it."""
    for path in (SRC / "layers").glob("*.py"):
        text = path.read_text()
        assert not re.search(r"\b2(\.0)?\s*\*\s*(torch\.)?sigmoid", text), path
        if "EigenRange.of(" in text:
            assert re.search(r"eigen_range\.(decay|beta|squash|removal|low)\b", text), path


def modules() -> list[str]:
    found = pkgutil.walk_packages(statetrack.__path__, "statetrack.")
    skip = ("_triton", "__main__")
    return [info.name for info in found if not any(word in info.name for word in skip)]


@pytest.mark.parametrize("name", modules())
def test_docstring_examples(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every python block of a page runs, one after the other in one namespace."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    assert text.count("```") % 2 == 0
    namespace: dict[str, object] = {"__name__": page.stem}
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        line = text[: match.start()].count("\n") + 1
        code = "\n" * line + match.group(1)
        exec(compile(code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_readme_tree_names_real_files() -> None:
    """The file tree in the README is the file tree."""
    text = (ROOT / "README.md").read_text()
    tree = re.search(r"```text\n(README.md.*?)```", text, re.DOTALL)
    assert tree is not None
    for line in tree.group(1).splitlines():
        if line.strip():
            assert (ROOT / line.split()[0]).exists(), line


def test_version_is_written_once() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{statetrack.__version__}"' in project
