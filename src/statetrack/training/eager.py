"""The eager executor: one run, one operation after the other, on any device."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from statetrack._typing import Float, Int
from statetrack.models import Tagger
from statetrack.tasks import Batch
from statetrack.training import evaluation
from statetrack.training.config import RunConfig
from statetrack.training.executor import Stretch, TaskExecutor
from statetrack.training.feed import Feed, seed_from
from statetrack.training.optimizer import make_optimizer
from statetrack.training.packing import narrow
from statetrack.training.precision import autocast

__all__ = ["Eager"]


class Eager(TaskExecutor):
    """For one run. The model is an ordinary module, the optimiser torch's AdamW."""

    def __init__(self, configs: Sequence[RunConfig], device: torch.device) -> None:
        (config,) = configs
        self.config = config
        self.device = device
        self.task = config.learns
        self.validation = evaluation.held_out(config, "validation", device)
        # The weights are drawn on the CPU: the same ones on every device.
        drawn = config.build(torch.Generator("cpu").manual_seed(config.seed))
        self.model: Tagger = drawn.to(device)
        self.optimizer = make_optimizer(self.model, config.optimizer)
        self.feed = Feed(configs, device)

    def step(self, first: int, count: int) -> Stretch:
        losses: list[Tensor] = []
        for at in range(first, first + count):
            loss, right, norm = self._train_step(at)
            losses.append(loss)
        # The losses stay on the device until here, so that a GPU is never waited for in between.
        return Stretch([torch.stack(losses).tolist()], [norm.item()], [right.item()])

    def _train_step(self, at: int) -> tuple[Tensor, Tensor, Tensor]:
        """One optimiser step; the loss, the accuracy and the norm of the gradient before it."""
        config = self.config
        factor = config.schedule.factor(at, config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = config.optimizer.lr * factor
        answers = self._answers(at)
        loss, right = evaluation.loss_and_accuracy(*answers, self.task.labels)
        self.optimizer.zero_grad()
        loss.backward()
        limit = config.optimizer.clip_norm
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit or math.inf)
        self.optimizer.step()
        return loss.detach(), right, norm

    def _dice(self, at: int) -> torch.Generator | None:
        """For dropout: it follows from the seed and the step, so that a run may be cut anywhere."""
        if self.config.model.backbone.dropout == 0:
            return None
        seed = seed_from(f"dropout {self.config.seed} {at}")
        return torch.Generator(self.device).manual_seed(seed)

    def _answers(
        self, at: int
    ) -> tuple[Float[Tensor, "asked classes"], Int[Tensor, "asked *labels"]]:
        """What the model says at a step wherever something is asked, and what it should say."""
        batch, dice = self.feed.next(), self._dice(at)
        on_cpu = self.device.type == "cpu"
        groups = narrow(batch, self.config.model.backbone.d_model) if on_cpu else [batch]
        scores, targets = [], []
        for group in groups:
            read_at, asked = group.answers
            with autocast(self.device, self.config.precision):
                said, _ = self.model(group.tokens, read_at=read_at, generator=dice)
            scores.append(said.flatten(0, 1))
            targets.append(asked.flatten(0, 1))
        return torch.cat(scores), torch.cat(targets)

    def tally(self, batches: list[Batch]) -> evaluation.Tally:
        def predict(tokens: Tensor, read_at: Tensor | None) -> Tensor:
            with autocast(self.device, self.config.precision):
                scores: Tensor = self.model(tokens, read_at=read_at)[0]
            return scores[None]

        self.model.eval()
        try:
            return evaluation.tally(predict, batches, runs=1, task=self.config.judge)
        finally:
            self.model.train()

    def keep_only(self, runs: Sequence[int]) -> None:
        """Nothing to do: the only run ends with the engine."""

    def weights_of(self, run: int) -> dict[str, Tensor]:
        return self.model.state_dict()

    def state(self, run: int) -> dict[str, Tensor]:
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optimizer.{key}.{name}"] = value
        tensors["stream"] = self.feed.state(run)
        return tensors

    def restore(self, run: int, tensors: dict[str, Tensor], step: int) -> None:
        weights = {name: tensors[f"model.{name}"] for name in self.model.state_dict()}
        self.model.load_state_dict(weights)
        for name, parameter in self.model.named_parameters():
            for key in ("step", "exp_avg", "exp_avg_sq"):
                value = tensors[f"optimizer.{key}.{name}"]
                if key != "step" and value.shape != parameter.shape:
                    raise ValueError(f"{key} of {name} has shape {tuple(value.shape)}")
                self.optimizer.state[parameter][key] = value.to(self.device, copy=True)
        self.feed.restore(run, tensors["stream"], step)
