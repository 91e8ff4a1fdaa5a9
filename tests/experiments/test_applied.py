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
        (config.learns.name, config.model.to_json(), config.seed)
        for experiment in APPLIED
        for config in experiment.runs("quick", "iclr")
    ]
    assert len(set(found)) == len(found)
    cells = {t: sum(len(model.ranges) for model in models(t).values()) for t in RECIPES}
    assert len(found) == sum(len(RECIPES[t].seeds) * count for t, count in cells.items())
    smoke = {c.learns.name for e in APPLIED for c in e.runs("smoke", "iclr")}
    assert smoke == set(RECIPES)


def test_attention_is_evaluated_on_few_sequences_at_a_time() -> None:
    for task in ("repl_4_silent", "mqar"):
        (config, *_) = cell("quick", task, "Attention", None)
        assert config.evaluation.lengths is not None
        width = config.learns.num_tokens(config.evaluation.lengths[1])
        assert 1 <= config.evaluation.batch <= 2**26 // width**2


def test_reflections_are_stretched_and_controls_learn_their_range() -> None:
    named = {
        t: {name for name in models(t) if name.endswith(("Stretched", "Learnt"))} for t in RECIPES
    }
    assert named["cube"] == {"DeltaProduct6Stretched"}
    assert named["chess"] == named["repl_1_silent"] == {"DeltaNetStretched"}
    assert named["mqar"] == named["selective_copying"] == {"DeltaNetLearnt"}
    (config, *_) = cell("quick", "cube", "DeltaProduct6Stretched", POSITIVE)
    options = config.model.backbone.mixers[0].options
    assert (options["num_householders"], options["beta_stretch"], options["num_heads"]) == (6, 1, 8)
    with pytest.raises(ValueError, match="DeltaNetLearnt is trained on mqar"):
        cell("quick", "mqar", "DeltaNetLearnt", POSITIVE)


def test_refused() -> None:
    with pytest.raises(ValueError, match="there is no 'boxes' with 'DeltaProduct3'"):
        cell("quick", "boxes", "DeltaProduct3", SIGNED)
    with pytest.raises(ValueError, match=r"SLSTM is trained on boxes with \(None,\), not with"):
        cell("quick", "boxes", "SLSTM", SIGNED)
    with pytest.raises(ValueError, match="Mamba is trained on boxes with .* not with None"):
        cell("quick", "boxes", "Mamba", None)
