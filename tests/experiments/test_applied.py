"""The applied grid: both ranges alike, sizes that fit, cells by name."""

import pytest

from statetrack import tasks
from statetrack.experiments.applied import APPLIED, RECIPES, cell, models
from statetrack.runs.identity import same_but_for
from statetrack.runs.labels import eigen_range

SIGNED, POSITIVE = (-1.0, 1.0), (0.0, 1.0)


@pytest.mark.parametrize("task", RECIPES)
def test_a_cell_has_its_seeds_and_long_tests(task: str) -> None:
    runs = cell("quick", task, "DeltaNet", SIGNED)
    seeds = 3 if task == "chess" else 5
    assert [run.seed for run in runs] == [run.data_seed for run in runs] == list(range(seeds))
    longest = tasks.get(task).train_lengths.max
    assert runs[0].train_lengths[1] == longest
    assert runs[0].evaluation.lengths is not None
    assert runs[0].evaluation.lengths[1] in (16 * longest, 8 * longest, 4 * longest)
    assert {run.optimizer.lr for run in cell("paper", task, "DeltaNet", SIGNED)} == {
        3e-4,
        1e-3,
        3e-3,
    }


def test_the_paper_scale_is_longer_and_its_rate_stays_up() -> None:
    (quick, *_), (paper, *_) = (cell(s, "boxes", "DeltaNet", SIGNED) for s in ("quick", "paper"))
    assert paper.steps == 2 * quick.steps and paper.evaluation.every == paper.steps // 4
    assert paper.schedule.factor(paper.steps * 8 // 10, paper.steps) == 1.0
    assert quick.schedule.factor(quick.steps * 8 // 10, quick.steps) < 0.2


def test_ranges_differ_in_nothing_else() -> None:
    for task, model in (("cube", "DeltaProduct6"), ("boxes", "Mamba")):
        pairs = zip(*(cell("paper", task, model, r) for r in (SIGNED, POSITIVE)), strict=True)
        for one, other in pairs:
            assert eigen_range(one) == SIGNED and eigen_range(other) == POSITIVE
            mixers = [c.model.backbone.mixers[0].options["eigen_range"] for c in (one, other)]
            assert mixers[0] != mixers[1]
            assert same_but_for(one, ("model.backbone.mixers",)) == same_but_for(
                other, ("model.backbone.mixers",)
            )


def test_every_task_and_model_once() -> None:
    found = [
        (config.learns.name, config.model.to_json(), config.seed, config.window)
        for experiment in APPLIED
        for config in experiment.runs("quick", "iclr")
    ]
    assert len(set(found)) == len(found)
    cells = {t: sum(len(model.ranges) for model in models(t).values()) for t in RECIPES}
    assert len(found) == sum(len(RECIPES[t].seeds) * count for t, count in cells.items())
    smoke = {c.learns.name for e in APPLIED for c in e.runs("smoke", "iclr")}
    assert smoke == set(RECIPES)


@pytest.mark.parametrize(
    ("task", "name", "window", "steps", "rate"),
    [
        ("repl_1_silent", "DeltaNet", 320, 5000, 3e-4),
        ("boxes", "DeltaNet", 256, 5000, 3e-4),
        ("cube", "DeltaProduct6", 32, 2400, 1e-3),
    ],
)
def test_a_few_go_on_in_windows(task: str, name: str, window: int, steps: int, rate: float) -> None:
    (experiment,) = (e for e in APPLIED if task in {c.learns.name for c in e.runs("smoke", "iclr")})
    for scale, more in (("quick", 1), ("paper", 2)):
        planned = {c.fingerprint: c for c in experiment.runs(scale, "iclr")}
        for between in (POSITIVE, SIGNED):
            runs = cell(scale, task, f"{name}ThenWindows", between)
            assert [run.seed for run in runs] == [0, 1, 2, 3, 4]
            for run in runs:
                assert planned[run.fingerprint] == run and run.parent is not None
                first = planned[run.parent]
                assert (first.window, first.parent, first.seed) == (None, None, run.seed)
                assert first.optimizer.lr == RECIPES[task].rate and first.model == run.model
                assert (run.window, run.steps, run.optimizer.lr) == (window, more * steps, rate)
                low, high = first.train_lengths
                assert run.train_lengths == (low, 16 * high)
                judged, before = run.evaluation, first.evaluation
                assert (judged.lengths, judged.test_lengths) == (
                    before.lengths,
                    before.test_lengths,
                )
                assert run.data_seed == run.seed + 100


def test_the_smoke_scale_goes_on_too() -> None:
    found = [c for e in APPLIED for c in e.runs("smoke", "iclr") if c.parent is not None]
    assert {c.learns.name for c in found} == {"boxes", "cube"}
    assert {c.steps for c in found} == {4}


def test_attention_is_evaluated_on_few_sequences_at_a_time() -> None:
    for task in ("repl_4_silent", "mqar"):
        (config, *_) = cell("quick", task, "Attention", None)
        assert config.evaluation.lengths is not None
        width = config.learns.num_tokens(config.evaluation.lengths[1])
        assert 1 <= config.evaluation.batch <= 2**26 // width**2


def test_reflections_are_stretched_and_controls_begin_as_0_1_does() -> None:
    endings = ("Stretched", "Learnt", "Started")
    named = {t: {name for name in models(t) if name.endswith(endings)} for t in RECIPES}
    assert named["cube"] == {"DeltaProduct6Stretched"}
    assert named["chess"] == named["repl_1_silent"] == {"DeltaNetStretched"}
    assert named["mqar"] == named["selective_copying"]
    assert named["mqar"] == {"DeltaNetLearnt", "DeltaNetStarted"}
    (config, *_) = cell("quick", "cube", "DeltaProduct6Stretched", POSITIVE)
    options = config.model.backbone.mixers[0].options
    assert (options["num_householders"], options["beta_stretch"], options["num_heads"]) == (6, 1, 8)
    (config, *_) = cell("quick", "mqar", "DeltaNetStarted", SIGNED)
    assert config.model.backbone.mixers[0].options["beta_start"] == 0.5
    with pytest.raises(ValueError, match="DeltaNetLearnt is trained on mqar"):
        cell("quick", "mqar", "DeltaNetLearnt", POSITIVE)


def test_refused() -> None:
    with pytest.raises(ValueError, match="there is no 'boxes' with 'DeltaProduct3'"):
        cell("quick", "boxes", "DeltaProduct3", SIGNED)
    with pytest.raises(ValueError, match=r"SLSTM is trained on boxes with \(None,\), not with"):
        cell("quick", "boxes", "SLSTM", SIGNED)
    with pytest.raises(ValueError, match="Mamba is trained on boxes with .* not with None"):
        cell("quick", "boxes", "Mamba", None)
