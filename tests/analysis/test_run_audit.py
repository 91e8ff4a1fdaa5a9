"""Audits of trained runs: what is looked at, what is found, and the command."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from statetrack.analysis import audit_run, read_audit, to_audit
from statetrack.analysis.audit_file import Extent, Lowest, LowHead
from statetrack.analysis.run_audit import layer_spectrum, look_at, words_of
from statetrack.analysis.spectra import eigenvalues_on
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
    (values,) = eigenvalues_on(member.model(), words).values()
    assert found.tokens == sum(map(len, words)) == len(values)
    (layer,) = found.layers
    assert (layer.name, layer.kind) == ("backbone.blocks.0.mixer", "DeltaNet")
    assert (layer.heads, layer.keys) == (2, 4)
    assert found.lowest == layer.lowest == pytest.approx(float(values.real.min()), abs=1e-5)
    assert layer.lowest_by_head == pytest.approx(values.real.amin(dim=(0, 2)).tolist(), abs=1e-5)
    assert set(layer.lowest_by_token) == {"0", "1"}
    ones = values[torch.cat(words) == 2].real.amin(dim=(0, 2))
    lowest = pytest.approx(float(ones.min()), abs=1e-5)
    assert layer.lowest_by_token["1"] == (lowest, int(ones.argmin()))
    assert sum(dot.share for dot in found.spectrum) == pytest.approx(1, abs=1e-5)
    assert found.theorem1 is not None and found.theorem2 is not None and found.note is None
    measured = found.horizon
    assert [at.length for at in measured.accuracy] == [8, 16]
    assert (measured.task, measured.sequences, measured.device) == ("parity", 8, "cpu")
    assert set(measured.exact_to) == {0.99, 1.0}
    (member.folder / "audit.json").unlink()


def test_looking_writes_nothing(trained: Path) -> None:
    member = Run(trained / tiny.config().fingerprint)
    found = look_at(member, lengths=())
    assert found.layers and found.horizon.accuracy == ()
    assert found.horizon.exact_to == {0.99: None, 1.0: None}
    assert read_audit(member) is None


def test_heads_that_reach_down_are_named_token_by_token() -> None:
    """Three heads of two eigenvalues; head 1 is at -1 on b alone, head 2 at -0.95 on a."""
    a = torch.tensor([[1.0, 0.5], [1.0, 1.0], [1.0, -0.95]])
    b = torch.tensor([[1.0, 0.2], [-1.0, 1.0], [1.0, 0.3]])
    again = torch.tensor([[1.0, 0.2], [-0.97, 1.0], [1.0, 0.3]])
    values = torch.stack([a, b, again]).to(torch.complex128)
    found = layer_spectrum("0", "Layer", values, torch.tensor([0, 2, 2]), ("a", "never", "b"))
    assert found.lowest_by_head == (0.2, -1.0, -0.95)
    assert found.heads_below == {-0.9: (1, 2), -0.99: (1,)}
    assert found.lowest_by_token == {"a": Lowest(-0.95, 2), "b": Lowest(-1.0, 1)}
    assert found.low_heads == (
        LowHead(head=1, by_token={"a": Extent(1.0, 1.0), "b": Extent(-1.0, -0.97)}),
        LowHead(head=2, by_token={"a": Extent(-0.95, -0.95), "b": Extent(0.3, 0.3)}),
    )
    assert (found.highest, found.largest_modulus, found.not_real) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(("mixer", "horizon"), [("SLSTM", True), ("Attention", False)])
def test_what_cannot_be_looked_at_has_a_note(mixer: str, horizon: bool, tmp_path: Path) -> None:
    member = run(tiny.config(model=tiny.model(mixer, num_heads=2)), tmp_path)
    found = audit_run(member, lengths=(8,), sequences=4)
    assert found.layers == found.spectrum == () and found.theorem1 is None
    assert found.lowest is None
    assert found.note is not None and f"{mixer} has no transitions" in found.note
    assert bool(found.horizon.accuracy) == horizon
    assert (found.horizon.note is None) == bool(found.horizon.exact_to) == horizon
    assert str(found).splitlines()[0] == found.note
    assert read_audit(member) == found


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
        ([one, "--data", "text"], "--data is what a language model reads"),
        ([str(tmp_path)], "neither a run folder nor a language model nor a compiled network"),
    ):
        assert main(["audit", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_cells_need_weights_to_be_audited(tmp_path: Path) -> None:
    member = run(replace(tiny.config(), steps=4), tmp_path)
    (member.folder / "model.safetensors").unlink()
    assert to_audit(tmp_path) == []
