"""What the tests of several experiments share."""

from statetrack.training import RunConfig


def one(runs: list[RunConfig], task: str, mixer: str) -> RunConfig:
    return next(c for c in runs if (c.task, c.model.backbone.mixers[0].layer) == (task, mixer))
