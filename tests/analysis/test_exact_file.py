"""What becomes of a run on its way to an exact network, as a file that is kept."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import torch

from statetrack import compiler
from statetrack.analysis import extract
from statetrack.analysis.exact_file import (
    ExactRecord,
    Right,
    exact_files,
    exact_record,
    read_exact,
    store_exact,
    write_exact,
)
from statetrack.automata import Machine, read
from tests.report.folders import parity, scores, write_run


def record_of(folder: Path, machine: Machine, target: str = "parity", seed: int = 0) -> ExactRecord:
    """Of a run that is said to have learnt `machine`, and of what is compiled from that."""
    found = extract(
        lambda tokens: torch.from_numpy(machine.run(tokens.numpy())),
        alphabet=machine.alphabet,
        lengths=(4, 8),
    )
    found = replace(found, target=read(target))
    network = compiler.compile(found.machine) if found.machine is not None else None
    compiled = None if network is None else (network, compiler.prove(network))
    run = write_run(folder, parity(seed), scores(0.5))
    return exact_record(run, found, compiled, [Right(64, 0.5, 1.0), Right(256, None, 1.0)])


def test_a_record_says_what_was_found_and_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = record_of(tmp_path, read("parity"))
    assert (made.task, made.model, made.fingerprint) == (
        "parity",
        "DeltaNet [-1, 1]",
        parity().fingerprint,
    )
    assert (made.states, made.letters, made.equal, made.trusted_to) == (2, 2, True, 8)
    assert made.compiled is not None and made.compiled.proved and made.exact
    assert (made.compiled.layers, made.compiled.method) == (1, "diagonal")
    assert made.config["config"]["task"] == "parity" and made.made["versions"]["torch"]
    path = write_exact(made, tmp_path)
    assert path.name == "exact.json" and read_exact(path) == made
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"exact.json is broken.*writes it anew"):
        read_exact(path)


def test_another_machine_is_not_exact_for_the_task(tmp_path: Path) -> None:
    other = Machine.from_table([[0, 1], [1, 1]], 0)
    made = record_of(tmp_path, other)
    assert made.equal is False and made.compiled is not None and made.compiled.proved
    assert not made.exact
    assert not replace(made, equal=None).exact  # nobody knows the task's machine


def test_a_run_without_a_machine_has_a_record_too(tmp_path: Path) -> None:
    found = extract(lambda tokens: tokens.cumsum(1), alphabet=2, lengths=(4, 8), max_states=3)
    run = write_run(tmp_path, parity(), scores(0.5))
    made = exact_record(run, found, None, [Right(64, 0.0, None)])
    assert (made.states, made.equal, made.compiled, made.exact) == (None, None, None, False)
    assert read_exact(write_exact(made, tmp_path)) == made


def test_an_archive_never_replaces_a_file(tmp_path: Path) -> None:
    made = record_of(tmp_path / "run", read("parity"))
    path, archive = write_exact(made, tmp_path), tmp_path / "results"
    assert store_exact(path, archive) and not store_exact(path, archive)
    assert exact_files(archive) == [archive / "exact" / f"{made.fingerprint}.json"]
    write_exact(replace(made, trusted_to=16), tmp_path)
    with pytest.raises(ValueError, match="is never replaced"):
        store_exact(path, archive)
    assert store_exact(path, archive, retest=date(2026, 11, 17))
    (newest,) = exact_files(archive)
    assert newest.stem.endswith("-2026-11-17") and read_exact(newest).trusted_to == 16
