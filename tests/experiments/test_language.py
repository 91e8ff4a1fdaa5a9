"""The language study: pairs that differ in the range alone, and its script from end to end."""

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from statetrack.experiments import language
from statetrack.experiments.language_probes import ProbeSettings
from statetrack.runs.identity import same_but_for
from tests.lm import corpus


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.shards(tmp_path_factory.mktemp("study")).folder


def test_a_pair_differs_in_the_range_alone(shards: Path) -> None:
    runs = language.configs(shards, seeds=(0, 1), tokens=1e6)
    assert len({run.fingerprint for run in runs}) == 4
    usual, extended = runs[:2]
    assert [run.seed for run in runs] == [0, 0, 1, 1]  # a pair is whole before the next begins
    assert usual.data_seed == extended.data_seed and usual.steps == 8
    without = [same_but_for(run, ["model"]) for run in (usual, extended)]
    assert without[0] == without[1]
    options = [dict(run.model.backbone.mixers[0].options) for run in (usual, extended)]
    assert [one.pop("eigen_range") for one in options] == [(0.0, 1.0), (-1.0, 1.0)]
    assert options[0] == options[1]
    longer = language.configs(shards, seeds=(0,), tokens=1e6, warmup=0.2)[0]
    assert (usual.schedule.warmup, longer.schedule.warmup) == (0.1, 0.2)
    assert same_but_for(longer, ["schedule"]) == same_but_for(usual, ["schedule"])


def test_every_model_can_be_made(shards: Path) -> None:
    runs = language.configs(shards, models="more", seeds=(0,), tokens=1e6)
    assert len(runs) == 9


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    original = language.pretrain_config

    def tiny(*args: Any, **changes: Any) -> Any:
        found = original(*args, **changes)
        first = found.model.backbone.mixers[0]
        mixer = dataclasses.replace(first, options={**first.options, "num_heads": 2})
        backbone = dataclasses.replace(found.model.backbone, d_model=8, mlp_dim=8, mixers=(mixer,))
        model = dataclasses.replace(found.model, backbone=backbone)
        return dataclasses.replace(found, model=model, batch=2, length=16, precision="fp32")

    monkeypatch.setattr(language, "pretrain_config", tiny)
    monkeypatch.setattr(language, "PROBE", ProbeSettings(batch=2, sequences=1, times=1))


def study(shards: Path, out: Path, *more: str) -> int:
    words = f"study --shards {shards} --out {out} --tokens 640 --windows 2 --device cpu"
    words += " --probes repl_1_silent --probe-steps 2"
    return language.main([*words.split(), *more])


@pytest.mark.usefixtures("small")
def test_the_study(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "language"
    assert study(shards, out, "--seeds", "0") == 0
    rows = json.loads((out / "language.json").read_text())
    assert [row["model"] for row in rows] == ["DeltaNet [-1, 1]", "DeltaNet [0, 1]"]
    for row in rows:
        assert row["tokens"] == 640 and row["loss"]["domains"].keys() == {"code", "prose"}
        code = row["loss"]["domains"]["code"]
        assert code["short"]["ends"][-1] == 16 and code["long"]["ends"][-1] == 256
        assert list(code["long"]["windows"]) == ["16", "32", "64", "128", "256"]
        windows = code["short"]["windows"]["16"]
        assert len(windows) == code["short"]["sequences"][0] > 2
        mean = sum(windows) / len(windows)
        assert mean == pytest.approx(code["short"]["running"][-1], abs=1e-5)
        assert row["probes"]["probes"].keys() == {"repl_1_silent", "state_switch", "state_swaps"}
    heads = json.loads((out / rows[0]["fingerprint"] / "heads.json").read_text())
    assert len(heads["heads"]) == 2
    # a second call with more seeds trains and asks the new ones alone
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/*.json")}
    asked: list[str] = []
    original = language.evaluate

    def watched(*args: Any, **options: Any) -> Any:
        asked.append("loss")
        return original(*args, **options)

    monkeypatch.setattr(language, "evaluate", watched)
    assert study(shards, out, "--seeds", "0", "1") == 0
    assert (
        len(asked) == 3  # two models, one of them a second time with its eigenvalues clamped
        and before.items()
        <= {path: path.stat().st_mtime_ns for path in out.glob("*/*.json")}.items()
    )
    rows = json.loads((out / "language.json").read_text())
    assert [row["seed"] for row in rows] == [0, 1, 0, 1]
    # and what is kept of it needs no weights
    packed = tmp_path / "study.tar.xz"
    assert language.main(["pack", "--out", str(out), "--to", str(packed)]) == 0
    (tmp_path / "back").mkdir()
    subprocess.run(["tar", "-xf", packed, "-C", tmp_path / "back"], check=True)
    assert not list((tmp_path / "back").rglob("*.safetensors"))
    keep = ["keep", "--out", str(tmp_path / "back/language"), "--results", str(tmp_path / "kept")]
    assert language.main(keep) == 0 and language.main(keep) == 0
    kept = tmp_path / "kept" / "language"
    assert len((kept / "runs.jsonl").read_text().splitlines()) == 4
    for name in language.ANSWERS:
        # eigenvalues of [0, 1] cannot be kept from being negative
        assert len(list((kept / name).glob("*.json"))) == (2 if name == "clamped" else 4)


@pytest.mark.usefixtures("small")
def test_a_study_of_one_model(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "language"
    assert study(shards, out, "--seeds", "0", "--only", "[-1, 1]", "--ask", "loss") == 0
    rows = json.loads((out / "language.json").read_text())
    assert [row["model"] for row in rows] == ["DeltaNet [-1, 1]"]
    assert study(shards, out, "--only", "GLA") == 2
    known = "there are DeltaNet [0, 1], DeltaNet [-1, 1]\n"
    assert capsys.readouterr().err.endswith(f"no model with 'GLA' in its name; {known}")


@pytest.mark.parametrize(
    ("words", "compiled"),
    [((), "no"), (("--compile",), "blocks"), (("--compile", "step"), "step")],
    ids=["plain", "blocks", "step"],
)
def test_how_a_study_is_compiled(
    words: tuple[str, ...],
    compiled: str,
    shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(language, "run_many", lambda configs, *_, **__: seen.extend(configs))
    with pytest.raises(AttributeError, match="runs"):  # of the first run, which is none here
        study(shards, tmp_path / "language", "--seeds", "0", *words)
    assert [config.compile for config in seen] == [compiled]


@pytest.mark.usefixtures("small")
def test_a_question_that_fails_costs_no_other(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "language"
    # boxes need a hundred words of one token, and this tokenizer has bytes
    more = ("--seeds", "0", "--probes", "boxes", "repl_1", "--ask", "probes", "loss")
    assert study(shards, out, *more) == 1
    assert "100 objects need names" in capsys.readouterr().err
    rows = json.loads((out / "language.json").read_text())
    for row in rows:
        assert "loss" in row and "heads" not in row
        assert row["probes"]["probes"].keys() == {"repl_1", "state_switch", "state_swaps"}
    words = f"loss --shards {shards} --out {out} --windows 1 --device cpu".split()
    assert language.main(words) == 0
    again = json.loads((out / "language.json").read_text())
    assert [row["loss"]["settings"]["long"] for row in again] == [1, 1]


@pytest.mark.usefixtures("small")
def test_a_model_without_eigenvalues_is_asked_the_rest(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(language.MODELS, "more", (("Attention", {}),))
    assert study(shards, tmp_path, "--models", "more", "--seeds", "0", "--probe-steps", "0") == 0
    (row,) = json.loads((tmp_path / "language.json").read_text())
    assert row["eigen_range"] is None and {"loss", "probes"} <= row.keys()
    assert "tuned" not in row["probes"]["probes"]["repl_1_silent"]
    heads = json.loads((tmp_path / row["fingerprint"] / "heads.json").read_text())
    assert heads["heads"] == []
