"""Which eigenvalues the page shows, and what it says where there are none."""

import json
from pathlib import Path

from statetrack.report import build, render
from statetrack.report.page import data
from statetrack.report.spectra import spectrum
from statetrack.report.tables import group_runs
from statetrack.runs import Run
from tests.analysis.audits import fields
from tests.report.folders import parity, scores, write_run
from tests.training import tiny


def runs_without_weights(root: Path) -> list[Run]:
    """Of two models one has an audit."""
    audited = write_run(root, parity(), scores(0.5))
    (audited.folder / "audit.json").write_text(json.dumps(fields()))
    return [audited, write_run(root, parity(model=tiny.model("Mamba")), scores(0.5))]


def test_an_audit_is_enough(tmp_path: Path) -> None:
    audited, bare = (spectrum(group) for group in group_runs(runs_without_weights(tmp_path)))
    assert audited is not None and len(audited.dots) == 2 and audited.lowest == -1.0
    assert audited.kept and audited.reason is None
    assert bare is not None and (bare.label, bare.dots) == ("Mamba [-1, 1]", ())
    assert not bare.kept and bare.reason is None


def test_weights_that_are_not_kept_are_said_once(tmp_path: Path) -> None:
    runs = runs_without_weights(tmp_path)
    modular = parity(model=tiny.model("GLA", num_heads=2))
    runs.append(write_run(tmp_path, modular, scores(0.5)))
    report = build(runs)
    assert report.not_kept == {"parity": ["GLA [-1, 1]", "Mamba [-1, 1]"]}
    page = render(report)
    assert page.count("are not kept here") == 1
    assert "<li>parity: GLA [-1, 1], Mamba [-1, 1]</li>" in page
    assert "cannot be read" not in page and "Errno" not in page
    assert list(data(report)["dots"]) == [0]  # the model that has an audit
    assert "are not kept here" not in render(build(runs[:1]))


def test_weights_that_are_damaged_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, parity(), scores(0.5))
    (run.folder / "model.safetensors").write_bytes(b"not weights")
    (group,) = group_runs([run])
    found = spectrum(group)
    assert found is not None and found.kept and found.reason is not None
    assert found.reason.startswith(f"{run.folder.name}/model.safetensors cannot be read: ")
    assert found.reason in render(build([run]))
