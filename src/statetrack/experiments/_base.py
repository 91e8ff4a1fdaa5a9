"""What an experiment is."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from statetrack import tasks
from statetrack.experiments.plan import Plan
from statetrack.experiments.recipes import rebuilt
from statetrack.training import EvaluationConfig, RunConfig

__all__ = ["Experiment", "Scale", "Version", "shrink"]

Scale = Literal["smoke", "quick", "paper"]
"""smoke: every recipe runs, in under a minute on two cores. quick: says something true within an
hour on one GPU. paper: the paper's protocol."""

Version = Literal["shipped", "ran", "workshop", "iclr"]
"""Where the paper's code, its first text and its final text disagree: whose word counts.

- `shipped`: the published code as it is.
- `ran`: the same with the steps and batches that its data counts say were used for the table, and
  the learning rates that the table was chosen from.
- `workshop`: the first text.
- `iclr`: the final text.
"""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A figure or a table, as runs.

    Attributes:
        name: what it shows.
        aliases: what the paper calls it.
        summary: one line.
        runs: (scale, version) -> the runs; `version` matters to the paper scale alone.
        metric: what its table reports, of the validation set at the last step.
    """

    name: str
    aliases: tuple[str, ...] = ()
    summary: str
    runs: Callable[[Scale, Version], list[RunConfig]]
    metric: str = "scaled_accuracy"

    def plan(self, scale: Scale, version: Version) -> Plan:
        """Its runs at a scale, and where they go."""
        return Plan(
            experiment=self.name,
            summary=self.summary,
            paper_label=self.aliases[0].replace("-", " ") if self.aliases else None,
            scale=scale,
            version=version if scale == "paper" else None,
            configs=tuple(self.runs(scale, version)),
        )


SMALL_OPTIONS: dict[str, dict[str, Any]] = {
    "Mamba2": {"head_dim": 16, "d_state": 8},
    "FullMatrix": {"state_dim": 4},
}


def shrink(config: RunConfig) -> RunConfig:
    """The smoke scale of a run: a few steps of a small model, everything else as it is."""
    first = config.model.backbone.mixers[0]
    options = {**first.options, **SMALL_OPTIONS.get(first.layer, {})}
    small = rebuilt(config.model, d_model=16, mlp_dim=16, mixers=[(first.layer, options)])
    fixed = tasks.get(config.task).fixed_length
    return dataclasses.replace(
        config,
        model=small,
        steps=4,
        batch=4 if config.window is None else 16,  # a row for each of its spans
        lengths=(8, 8) if fixed else config.lengths,
        evaluation=EvaluationConfig(
            every=4,
            size=16,
            task=config.evaluation.task,
            lengths=(32, 32) if fixed else None,
        ),
        log_every=2,
        checkpoint_every=2,
    )
