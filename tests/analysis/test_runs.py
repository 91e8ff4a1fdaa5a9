"""audit.json: the eigenvalues of a trained run and how far it carries."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from statetrack.analysis.runs import (
    MAX_DOTS,
    _layer,
    audit_run,
    describe,
    dots,
    eigenvalues,
    read_audit,
    to_audit,
    words_of,
)
from statetrack.cli import main
from statetrack.runs import Run
from statetrack.runs.labels import eigen_range
from statetrack.training import RunConfig, run
from tests.training import tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained")
    for config in (
        tiny.config(),
        tiny.config(seed=1, data_seed=1),
        tiny.config(model=tiny.model(eigen_range=(0.0, 1.0))),
    ):
        run(config, root)
    return root


def test_an_audit_says_what_the_transitions_are(trained: Path) -> None:
    member = Run(trained / tiny.config().fingerprint)
    assert read_audit(member) is None
    found = audit_run(member, lengths=(8, 16), sequences=8)
    assert read_audit(member) == found
    words = words_of(member)
    (values,) = eigenvalues(member.model(), words)
    assert found["tokens"] == sum(map(len, words)) == len(values)
    (layer,) = found["layers"]
    assert (layer["kind"], layer["heads"], layer["keys"]) == ("DeltaNet", 2, 4)
    assert layer["lowest"] == pytest.approx(float(values.real.min()), abs=1e-5)
    assert layer["lowest_by_head"] == pytest.approx(values.real.amin(dim=(0, 2)).tolist(), abs=1e-5)
    assert set(layer["lowest_by_token"]) == {"0", "1"}
    low, head = layer["lowest_by_token"]["1"]
    ones = values[torch.cat(words) == 2].real.amin(dim=(0, 2))
    assert (low, head) == (pytest.approx(float(ones.min()), abs=1e-5), int(ones.argmin()))
    assert sum(share for *_, share in found["spectrum"]) == pytest.approx(1, abs=1e-5)
    assert found["theorem1"].keys() == {"weak", "strong", "where"}
    measured = found["horizon"]
    assert [length for length, _ in measured["accuracy"]] == [8, 16]
    assert (measured["task"], measured["sequences"], measured["device"]) == ("parity", 8, "cpu")
    assert set(measured["exact_to"]) == {"0.99", "1"}
    assert any("theorem 1" in line for line in describe(found))
    (member.folder / "audit.json").unlink()


def test_heads_that_reach_down_are_named_token_by_token() -> None:
    """Three heads of two eigenvalues; head 1 is at -1 on b alone, head 2 at -0.95 on a."""
    a = torch.tensor([[1.0, 0.5], [1.0, 1.0], [1.0, -0.95]])
    b = torch.tensor([[1.0, 0.2], [-1.0, 1.0], [1.0, 0.3]])
    again = torch.tensor([[1.0, 0.2], [-0.97, 1.0], [1.0, 0.3]])
    values = torch.stack([a, b, again]).to(torch.complex128)
    found = _layer(values, torch.tensor([0, 2, 2]), ("a", "never", "b"))
    assert found["lowest_by_head"] == [0.2, -1.0, -0.95]
    assert found["heads_below"] == {"-0.9": [1, 2], "-0.99": [1]}
    assert found["lowest_by_token"] == {"a": [-0.95, 2], "b": [-1.0, 1]}
    assert found["low_heads"] == [
        {"head": 1, "by_token": {"a": [1.0, 1.0], "b": [-1.0, -0.97]}},
        {"head": 2, "by_token": {"a": [-0.95, -0.95], "b": [0.3, 0.3]}},
    ]
    assert (found["highest"], found["largest_modulus"], found["not_real"]) == (1.0, 1.0, 0.0)


def test_dots_are_few_and_the_commonest_stay() -> None:
    spread = torch.linspace(-1, 1, 5000, dtype=torch.float64) * (1 + 0.3j)
    many = [torch.cat([spread, torch.ones(5000)]).to(torch.complex128)] * 2
    found = dots(many)
    assert len(found) <= MAX_DOTS and found == sorted(found)
    assert sum(share for *_, share in found) == pytest.approx(1, abs=1e-4)
    assert max(found, key=lambda dot: dot[3])[1:3] == (1.0, 0.0)


@pytest.mark.parametrize(("mixer", "horizon"), [("SLSTM", True), ("Attention", False)])
def test_what_cannot_be_looked_at_has_a_note(mixer: str, horizon: bool, tmp_path: Path) -> None:
    member = run(tiny.config(model=tiny.model(mixer, num_heads=2)), tmp_path)
    found = audit_run(member, lengths=(8,), sequences=4)
    assert found["layers"] == [] and f"{mixer} has no transitions" in found["note"]
    assert bool(found["horizon"]["accuracy"]) == horizon
    assert (found["horizon"]["note"] is None) == horizon
    assert describe(found)[0] == found["note"]
    json.dumps(read_audit(member), allow_nan=False)


def test_of_a_folder_the_best_of_every_cell_is_audited(trained: Path) -> None:
    found = to_audit(trained)
    ranges = [eigen_range(member.config) for member in found]
    assert sorted(ranges) == [(-1.0, 1.0), (0.0, 1.0)]
    best = next(m for m in found if eigen_range(m.config) == (-1.0, 1.0))

    def value(config: RunConfig) -> float:
        return Run(trained / config.fingerprint).last("scaled_accuracy") or 0.0

    both = [tiny.config(seed=seed, data_seed=seed) for seed in (0, 1)]
    assert value(best.config) == max(map(value, both))
    assert to_audit(best.folder) == [best]


def test_the_command_writes_audits(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(trained), "--longest", "256", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert out.count("Audit: ") == 2 == len(list(trained.glob("*/audit.json")))
    assert out.count("length    256: ") == 2 and "heads below -0.9: " in out
    one = str(trained / tiny.config().fingerprint)
    plot = tmp_path / "spectrum.png"
    assert main(["audit", one, "--longest", "256", "--plot", str(plot)]) == 0
    assert plot.stat().st_size > 1000
    capsys.readouterr()
    for words, message in (
        ([], "give run folders"),
        ([str(trained), "--plot", "x.png"], "holds 2"),
        ([one, one, "--plot", "x.png"], "draws one model, not 2"),
        ([one, "--longest", "100"], "longest=100 must be at least 256"),
        ([str(tmp_path)], "neither a run folder nor a compiled network"),
    ):
        assert main(["audit", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_cells_need_weights_to_be_audited(tmp_path: Path) -> None:
    member = run(replace(tiny.config(), steps=4), tmp_path)
    (member.folder / "model.safetensors").unlink()
    assert to_audit(tmp_path) == []
