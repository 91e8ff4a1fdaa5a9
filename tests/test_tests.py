"""The tests themselves: each file mirrors a file of the source, and each test asserts something."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SRC = TESTS.parent / "src" / "statetrack"

# what is true of several source files at once
CROSS_CUTTING = {
    "test_benchmarks.py": "benchmarks/lm.py",
    "test_docs.py": "the scripts in docs/",
    "test_package.py": "imports, docstrings, pages",
    "test_site.py": "the documentation site",
    "test_tests.py": "this file",
    "hf/test_training.py": "Trainer, adapters, packed batches",
    "lm/test_pretraining.py": "whole runs, killed, on one process and on two",
    "automata/test_oracles.py": "every named automaton, through all that is known of it",
    "ops/test_against_reference.py": "every backend of every op",
    "ops/test_triton_hopper.py": "every kernel, compiled",
    "ops/test_triton_interpreter.py": "every kernel, interpreted",
    "playground/test_browser.py": "the page and its runtime in a browser",
    "report/test_browser.py": "the page in a browser",
    "report/test_committed.py": "the committed results",
    "tasks/test_labels.py": "every task against an evaluator of its own",
    "tasks/test_laws.py": "lengths and shares of every task",
    "training/test_golden.py": "stored loss curves of every layer",
}
# source files without a test file of their own, and the one that holds their tests
ELSEWHERE = {
    "_amx.py": "conftest.py",
    "_extras.py": "test_package.py",
    "_lazy.py": "test_package.py",
    "_suggest.py": "test_config.py",
    "_typing.py": "test_package.py",
    "eigenvalues.py": "layers/test_base.py",
    "analysis/one_layer.py": "analysis/test_certify.py",
    "analysis/rounding.py": "analysis/test_certify.py",
    "automata/_automata_lib.py": "automata/test_machine.py",
    "automata/_draw.py": "automata/test_machine.py",
    "automata/_graph.py": "automata/test_cascade.py",
    "automata/_subsets.py": "automata/test_machine.py",
    "automata/drop_point.py": "automata/test_cascade.py",
    "automata/holonomy.py": "automata/test_cascade.py",
    "automata/images.py": "automata/test_cascade.py",
    "automata/limits.py": "automata/test_monoid.py",
    "automata/minimal_degree.py": "automata/test_groups.py",
    "automata/permutation_group.py": "automata/test_groups.py",
    "cli/audit.py": "cli/test_machines.py",
    "cli/options.py": "cli/test_app.py",
    "compiler/arrays.py": "compiler/test_export.py",
    "compiler/cascade_to_tagger.py": "compiler/test_to_tagger.py",
    "compiler/from_cascade.py": "compiler/test_program.py",
    "compiler/from_cyclic.py": "compiler/test_program.py",
    "compiler/from_group.py": "compiler/test_program.py",
    "compiler/from_one_layer.py": "compiler/test_program.py",
    "compiler/from_split.py": "compiler/test_program.py",
    "compiler/from_table.py": "compiler/test_program.py",
    "compiler/layout.py": "compiler/test_network.py",
    "compiler/numpy_runner.py": "compiler/test_export.py",
    "compiler/profile.py": "compiler/test_explain.py",
    "compiler/rules.py": "compiler/test_explain.py",
    "compiler/tagger_form.py": "compiler/test_to_tagger.py",
    "compiler/weights.py": "compiler/test_network.py",
    "experiments/_base.py": "experiments/test_experiments.py",
    "hf/convert/_weights.py": "hf/convert/test_convert.py",
    "hf/convert/hybrids.py": "hf/convert/test_convert.py",
    "hf/convert/mamba.py": "hf/convert/test_convert.py",
    "lm/judge.py": "lm/test_pretrainer.py",
    "lm/machine.py": "lm/test_pretrainer.py",
    "lm/task_data.py": "lm/test_harness.py",
    "lm/token_classes.py": "experiments/test_language_heads.py",
    "models/_tokens.py": "models/test_causal_lm.py",
    "runs/ranks.py": "lm/test_pretraining.py",
    "runs/saving.py": "lm/test_pretraining.py",
    "experiments/signed_gates.py": "experiments/test_experiments.py",
    "experiments/summary.py": "report/test_committed.py",
    "ops/_register.py": "ops/test_against_reference.py",
    "ops/_triton/rows.py": "ops/test_triton_interpreter.py",
    "ops/_two_level.py": "ops/test_against_reference.py",
    "report/entries.py": "report/test_page.py",
    "report/exact.py": "report/test_book.py",
    "report/figures.py": "report/test_page.py",
    "report/language_figures.py": "report/test_language.py",
    "report/language_pages.py": "report/test_language.py",
    "report/markdown.py": "report/test_book.py",
    "report/paper.py": "report/test_tables.py",
    "runs/stored.py": "runs/test_folder.py",
    "tasks/applied/_puzzle.py": "tasks/applied/test_cube.py",
    "tasks/arithmetic.py": "tasks/test_labels.py",
    "tasks/groups.py": "tasks/test_labels.py",
    "tasks/letters.py": "tasks/test_labels.py",
    "training/executor.py": "training/test_engine.py",
    "training/precision.py": "training/test_engine.py",
}
# folders whose files are all tested together; a file may still have one of its own
TOGETHER = {"layers": "layers/test_base.py", "ops": "ops/test_against_reference.py"}

FILES = sorted(TESTS.rglob("test_*.py"))
SOURCES = sorted(path for path in SRC.rglob("*.py") if not path.stem.startswith("__"))


def mirrors(test: Path) -> bool:
    """`a/test_b.py` is about `a/b.py` or `a/_b.py`, and `a/test_a.py` about the package `a`."""
    folder, name = SRC / test.parent, test.stem.removeprefix("test_")
    if folder.is_dir() and name == test.parent.name:
        return True
    return (folder / f"{name}.py").exists() or (folder / f"_{name}.py").exists()


def own_test(source: Path) -> Path:
    return source.parent / f"test_{source.stem.removeprefix('_')}.py"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_file_has_its_source(path: Path) -> None:
    name = path.relative_to(TESTS)
    if name.parts[0] != "gpu":
        assert mirrors(name) != (name.as_posix() in CROSS_CUTTING), (
            "name a test file after the file it tests; tests/test_tests.py lists the exceptions"
        )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SRC)))
def test_every_source_file_has_its_tests(path: Path) -> None:
    name = path.relative_to(SRC)
    together = TOGETHER.get(name.parts[0]) if len(name.parts) > 1 else None
    known = ELSEWHERE.get(name.as_posix(), together)
    own = (TESTS / own_test(name)).exists()
    assert own or (known is not None and (TESTS / known).exists())
    assert not (own and name.as_posix() in ELSEWHERE), "it is no exception any more"


def test_exceptions_name_files() -> None:
    assert all((TESTS / name).exists() for name in CROSS_CUTTING)
    assert all((SRC / name).exists() for name in ELSEWHERE)


def asserts(test: ast.FunctionDef) -> bool:
    """Whether a test has an assert, or calls what has one: a helper is named after that."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            if name in ("raises", "opcheck") or name.startswith(
                ("assert_", "expect", "check_", "test_")
            ):
                return True
    return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_asserts_something(path: Path) -> None:
    functions = (
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    )
    silent = [f.name for f in functions if f.name.startswith("test_") and not asserts(f)]
    assert silent == []
