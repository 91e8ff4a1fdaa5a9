"""The package as a whole: light imports, one direction, one place for the range, docs that run."""

import ast
import doctest
import graphlib
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import statetrack
from statetrack._extras import needs

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "statetrack"

# what each part may import from the others, as the design draws it
BELOW_MODELS = {"config", "eigenvalues", "ops", "layers", "automata"}
MAY_IMPORT: dict[str, set[str]] = {
    "_lazy": set(),
    "_typing": set(),
    "_amx": set(),
    "_suggest": set(),
    "_extras": set(),
    "config": set(),
    "eigenvalues": set(),
    "ops": set(),
    "layers": {"config", "ops", "eigenvalues"},
    "models": {"config", "layers", "ops", "eigenvalues"},
    "hf": {"config", "eigenvalues", "ops", "layers", "models"},
    "automata": set(),
    "tasks": {"automata"},
    "compiler": {"automata", "layers", "models", "ops", "eigenvalues"},
    "playground": {"automata", "compiler"},
    "runs": {"config"},
    "training": {*BELOW_MODELS, "models", "tasks", "runs"},
    "analysis": {*BELOW_MODELS, "models", "tasks", "runs", "compiler", "training"},
    "lm": {"config", "models", "ops", "automata", "runs", "training"},
    "sweep": {"config", "runs", "training"},
    "experiments": {
        *BELOW_MODELS,
        "models",
        "tasks",
        "runs",
        "training",
        "lm",
        "sweep",
        "compiler",
        "analysis",
    },
    "report": {"config", "models", "tasks", "runs", "training", "lm", "analysis", "experiments"},
}
TOP = {"__init__", "__main__", "cli"}  # may import anything
SHARED = {"_amx", "_extras", "_lazy", "_typing", "_suggest"}  # may be imported by anything
# `compiler.audit` is a name that others rely on; it is imported when asked for
BACKWARDS = {("compiler", "analysis")}


def sources() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


def module_of(path: Path) -> str:
    """
    `src/statetrack/ops/dense.py` is `statetrack.ops.dense`, and an `__init__.py` its package.
    """
    parts = ("statetrack", *path.relative_to(SRC).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sources()}


def imports_of(path: Path) -> tuple[set[str], set[str]]:
    """The modules of statetrack that a file imports, and those that it names to `lazily`.

    Imports in functions count; those for the type checker alone do not.
    """
    imported: set[str] = set()
    named: set[str] = set()

    def walk(node: ast.AST) -> None:
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            imported.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            children = list(node.orelse)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "lazily":
            strings = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
            named.update(text for text in strings if str(text).startswith("statetrack."))
        for child in children:
            walk(child)

    walk(ast.parse(path.read_text()))
    ours = {name for name in imported if name.split(".")[0] == "statetrack"}
    return {name if name in MODULES else name.rpartition(".")[0] for name in ours}, named


def test_every_part_has_a_place() -> None:
    assert {part_of(path) for path in sources()} <= MAY_IMPORT.keys() | TOP


@pytest.mark.parametrize(
    "path",
    [path for path in sources() if part_of(path) not in TOP],
    ids=lambda path: str(path.relative_to(SRC)),
)
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    imported, named = imports_of(path)
    assert "statetrack" not in imported, "name the module"
    backwards = {other for here, other in BACKWARDS if here == part}
    parts = {module.split(".")[1] for module in imported}
    lazy = {module.split(".")[1] for module in named}
    assert parts <= MAY_IMPORT[part] | {part} | SHARED
    assert lazy <= MAY_IMPORT[part] | {part} | backwards


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """The nodes of some cycle, or none."""
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_packages_have_no_cycle() -> None:
    """With the test above: no import points back, not even one in a function."""
    assert cycle(MAY_IMPORT) == []


def test_modules_have_no_cycle() -> None:
    edges = {module: imports_of(path)[0] for module, path in MODULES.items()}
    assert cycle(edges) == []


EACH = """
import importlib, os, sys, traceback
import torch._dynamo  # what most modules load, once for all of them
for heavy in ("jaxtyping", "numba", "triton"):
    try:
        importlib.import_module(heavy)
    except ImportError:
        pass
failed = False
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            sys.stderr.write(f"import {name}: {traceback.format_exc()}")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    failed |= os.waitpid(child, 0)[1] != 0
sys.exit(failed)
"""


PACKAGES = [module for module, path in MODULES.items() if path.name == "__init__.py"]
OTHERS = [name for name in MODULES if name not in PACKAGES and not name.endswith("__main__")]


@pytest.mark.parametrize(
    "names",
    [
        [name for name in PACKAGES if name.count(".") < 2],
        pytest.param([name for name in PACKAGES if name.count(".") > 1], marks=pytest.mark.slow),
        pytest.param(OTHERS, marks=pytest.mark.slow),
    ],
    ids=["packages", "packages in packages", "modules"],
)
def test_each_can_be_imported_first(names: list[str]) -> None:
    """Each in a process that has loaded nothing else of statetrack."""
    assert names
    done = subprocess.run(
        [sys.executable, "-c", EACH, *names], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr


BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
"""

NO_TORCH = """
BLOCKED = {"torch", "triton", "numba", "jaxtyping", "beartype"}
import statetrack
from statetrack import automata, compiler
machine = automata.read("counter_5")
assert machine.run("aaara").tolist() == [1, 2, 3, 0, 1]
assert automata.read("(ab)*").accepts("abab")
assert "compile takes" in str(compiler.explain(machine))
assert "compile takes" in str(compiler.explain(automata.read("regex:(aa)* over ab")))
for name, methods in {
    "counter_5": ("one-layer", "cascade", "dense"), "s3": ("group",), "q8": ("diagonal",),
    "z5": ("rotation", "reflections"), "t_3": ("auto",),
}.items():
    machine = automata.read(name)
    word = [0, 1, 1, 0, 1]
    for method in methods:
        program = compiler.compile_program(machine, method)
        assert isinstance(program, compiler.Program)
        assert program.run(word).tolist() == machine.run(word).tolist(), (name, method)
from statetrack import playground
assert "(ab)*" in playground.render([playground.entry("(ab)*")])
for ask in (
    lambda: compiler.compile, lambda: compiler.CompiledRNN, lambda: compiler.check,
    lambda: compiler.audit, lambda: statetrack.layers, lambda: statetrack.EigenRange,
):
    try:
        ask()
    except ImportError as error:
        assert "needs PyTorch, which is not installed: pip install torch" in str(error), error
    else:
        raise AssertionError("it came without torch")
try:
    from statetrack.compiler import compile
except ImportError as error:
    assert "statetrack.compiler.compile needs PyTorch" in str(error)
assert "torch" not in sys.modules
"""


def test_automata_and_passes_run_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + NO_TORCH], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


LIGHT_IMPORT = """
BLOCKED = {"jaxtyping", "beartype", "numba", "triton", "automata", "matplotlib", "rich",
           "cyclopts", "jinja2", "transformers"}
import importlib.util
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


def test_import_needs_torch_numpy_and_safetensors_alone_and_does_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + LIGHT_IMPORT], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""


def test_import_is_lazy() -> None:
    code = (
        "import sys, statetrack\n"
        "heavy = {'torch', 'numpy', 'numba', 'triton', 'matplotlib', 'automata', 'rich',\n"
        "         'transformers'}\n"
        "loaded = heavy & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "assert statetrack.EigenRange is statetrack.eigenvalues.EigenRange\n"
        "assert statetrack.layers.DeltaNet and statetrack.automata.read('parity')\n"
        "assert statetrack.models.CausalLM and statetrack.training.run\n"
        "assert 'torch._dynamo' not in sys.modules  # the compiler, a second of CPU\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["statetrack", "statetrack.compiler"])
def test_lazy_names_are_the_typed_ones(package: str) -> None:
    """What the type checker is told is there, is listed, and is what its module holds."""
    module = importlib.import_module(package)
    block = next(
        node
        for node in ast.parse(MODULES[package].read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    typed = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name, holder in typed.items():
        assert name in dir(module)
        assert getattr(module, name) is getattr(importlib.import_module(str(holder)), name)
    if package == "statetrack":
        parts = {part_of(path) for path in sources()}
        public = {part for part in parts if not part.startswith("_")}
        assert set(typed) == public - {"cli"} | {"EigenRange"}
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'layer'"):
        _ = module.layer


def test_no_layer_hard_codes_the_range() -> None:
    """`grep` finds the range in one file: layers only ask it."""
    for path in (SRC / "layers").glob("*.py"):
        text = path.read_text()
        assert not re.search(r"\b2(\.0)?\s*\*\s*(torch\.)?sigmoid", text), path
        if "EigenRange.of(" in text:
            assert re.search(r"eigen_range\.(decay|disc|beta|squash|removal|low)\b", text), path


def modules() -> list[str]:
    found = pkgutil.walk_packages(statetrack.__path__, "statetrack.")
    skip = ("triton", "__main__")
    return [info.name for info in found if not any(word in info.name for word in skip)]


@pytest.mark.parametrize("name", modules())
def test_docstring_examples(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(SRC.rglob("README.md")),
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@each_page
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


@each_page
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


def test_every_benchmark_is_listed() -> None:
    listed = re.findall(r"^\| \[(\w+\.py)\]", (ROOT / "benchmarks/README.md").read_text(), re.M)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))


def test_version_is_written_once() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{statetrack.__version__}"' in project


def test_every_install_command_names_an_extra_there_is() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = extras["optional-dependencies"].keys()
    places = [*sources(), *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts = {path: path.read_text() for path in places}
    named = {
        (str(path.relative_to(ROOT)), extra)
        for path, text in texts.items()
        for group in re.findall(r"pip install (?:-e )?'(?:statetrack|\.)\[([a-z,]+)\]'", text)
        for extra in group.split(",")
    }
    assert len(named) > 5 and {extra for _, extra in named} <= known, named


def test_a_missing_package_is_named_with_its_extra() -> None:
    with (
        pytest.raises(
            ImportError, match=r"^a thing needs gone: pip install 'statetrack\[cli\]'$"
        ) as caught,
        needs("a thing", "gone", "cli"),
    ):
        importlib.import_module("gone_since_long")
    assert caught.value.name == "gone"
    with pytest.raises(ImportError, match="broken inside"), needs("a thing", "gone", "cli"):
        raise ImportError("broken inside")  # it is there, and tells more by itself


def test_pinned_packages_run_on_every_python_that_the_project_promises() -> None:
    pinned = {
        Requirement(line).name.lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    promised = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = promised.removeprefix(">=") + ".0"
    here = {
        each.metadata["Name"].lower(): each.metadata["Requires-Python"] for each in distributions()
    }
    refused = {
        name: here[name]
        for name in pinned & here.keys()
        if not SpecifierSet(here[name] or "").contains(oldest)
    }
    assert not refused, f"not for Python {oldest}: {refused}"
