"""AdamW with the paper's parameter groups."""

import torch
from torch import nn

from statetrack.training.config import OptimizerConfig

__all__ = ["decays", "make_optimizer"]

STATE_PARAMETERS = ("A_log", "D", "dt_bias", "nu_log", "theta_log", "gamma_log", "range_gate")
"""Parameters that set the time scale of a state; a decay would pull it to a scale of its own."""


def decays(name: str, parameter: nn.Parameter, rule: str) -> bool:
    """Whether weight decay applies to the parameter `name` under `rule` (see OptimizerConfig)."""
    if rule == "matrices":
        owner = name.split(".")[-2] if "." in name else ""
        return parameter.ndim > 1 and owner != "embedding" and not owner.endswith("norm")
    if rule == "all_but_state":
        return name.split(".")[-1] not in STATE_PARAMETERS
    return True


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over all of the model, in two groups: with and without decay."""
    named = list(model.named_parameters())
    with_decay = [p for name, p in named if decays(name, p, config.decay)]
    without = [p for name, p in named if not decays(name, p, config.decay)]
    groups = [
        {"params": with_decay, "weight_decay": config.weight_decay},
        {"params": without, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )
