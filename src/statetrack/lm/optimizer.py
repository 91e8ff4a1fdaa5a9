"""AdamW, or Muon for matrices, over parameters that may be sharded."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from statetrack.lm.config import PretrainOptimizerConfig
from statetrack.training.optimizer import decays

__all__ = ["Optimizer", "local"]


def local(tensor: Any) -> Tensor:
    """This process's part of a tensor that may be distributed."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


class Optimizer:
    """The optimisers of a model, as one: their state is there from the beginning, by name.

    With `recorded` a CUDA graph may hold its steps: then the learning rate is a tensor, which the
    graph reads.
    """

    def __init__(
        self, model: nn.Module, config: PretrainOptimizerConfig, *, recorded: bool = False
    ) -> None:
        self.config = config
        self.named = dict(model.named_parameters())
        by_muon = {
            name
            for name, parameter in self.named.items()
            if config.kind == "muon" and _is_matrix(model, name, parameter)
        }
        self.parts: list[torch.optim.Optimizer] = []
        if others := [name for name in self.named if name not in by_muon]:
            device = self.named[others[0]].device
            adamw = torch.optim.AdamW(
                self._groups(others),
                lr=torch.tensor(config.lr, device=device) if recorded else config.lr,
                betas=config.betas,
                eps=config.eps,
                fused=True,
                capturable=recorded,
            )
            self.parts.append(adamw)
            for name in others:
                p = self.named[name]
                adamw.state[p] = {
                    "step": torch.zeros((), dtype=torch.float32, device=p.device),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
        if by_muon:
            muon = torch.optim.Muon(
                self._groups(sorted(by_muon)),
                lr=config.lr,
                momentum=config.momentum,
                adjust_lr_fn="match_rms_adamw",
            )
            self.parts.append(muon)
            for name in by_muon:
                p = self.named[name]
                muon.state[p] = {"momentum_buffer": torch.zeros_like(p)}

    def _groups(self, names: list[str]) -> list[dict[str, Any]]:
        """With and without decay; torch updates sharded and whole parameters apart."""
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        for name in names:
            p = self.named[name]
            key = (decays(name, p, self.config.decay), hasattr(p, "to_local"))
            groups.setdefault(key, []).append(p)
        return [
            {"params": params, "weight_decay": self.config.weight_decay if decayed else 0.0}
            for (decayed, _), params in groups.items()
        ]

    def set_rate(self, lr: float) -> None:
        """The learning rate of the next steps."""
        for part in self.parts:
            for group in part.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(lr)
                else:
                    group["lr"] = lr

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """What the next step depends on; how many were taken is the same for all, and apart."""
        for part in self.parts:
            for name, parameter in self.named.items():
                for key, value in part.state.get(parameter, {}).items():
                    if key != "step":
                        yield f"optimizer.{key}.{name}", value

    def set_updates(self, count: int) -> None:
        for part in self.parts:
            for state in part.state.values():
                if "step" in state:
                    state["step"].fill_(count)


def _is_matrix(model: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """Whether it is the weight of a projection inside a block."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return isinstance(owner, nn.Linear) and parameter.ndim == 2 and ".blocks." in f".{name}"
