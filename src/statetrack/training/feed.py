"""The batches that runs train on, each run's from a stream of its own.

Some tasks make their sequences one token after the other. On a GPU such a loop takes about as long
for one batch as for many, so many are drawn at once (`Task.together`), kept on the device, and
handed out one by one. What a step reads follows from the run's seed and the step's number alone,
wherever a run is cut.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from statetrack import tasks
from statetrack._typing import Int
from statetrack.tasks import Batch
from statetrack.training.config import RunConfig

__all__ = ["Feed", "seed_from"]


class Feed:
    """Batches for runs that train in step.

    Attributes:
        streams: where each run's data comes from.
        together: so many batches are drawn at once.
        step: the step whose batch comes next.
    """

    def __init__(self, configs: Sequence[RunConfig], device: torch.device) -> None:
        shared = configs[0]
        self.task, self.batch, self.lengths = shared.learns, shared.batch, shared.train_lengths
        self.device = device
        self.streams = [tasks.generator(self.task, "train", c.data_seed, device) for c in configs]
        self.together = batches_at_once(shared, device)
        self.step = 0
        self._block: Batch | None = None
        self._before: list[Tensor] = []

    def next(self) -> Batch:
        """What all runs read at `step`, one run after the other."""
        if self.together == 1:
            self.step += 1
            return self.draw()
        if self.begins_block():
            self._block = self.draw()
        assert self._block is not None
        which = torch.tensor([self.step % self.together], device=self.device)
        self.step += 1
        return self.part(self._block, which)

    def begins_block(self) -> bool:
        """Whether `step` needs batches that are not drawn yet; then the caller draws them."""
        if self.step % self.together and self._before:
            return False
        self._before = [stream.get_state() for stream in self.streams]
        return True

    def draw(self) -> Batch:
        """The next `together` batches of every run."""
        low, high = self.lengths
        return self.task.sample_streams(
            self.together * self.batch,
            high,
            min_length=low,
            generators=self.streams,
            device=self.device,
        )

    def part(self, block: Batch, which: Int[Tensor, "1"]) -> Batch:
        """One batch of those in a block."""
        tokens, targets, mask = (
            tensor.unflatten(0, (len(self.streams), self.together, self.batch))
            .index_select(1, which)
            .flatten(0, 2)
            for tensor in (block.tokens, block.targets, block.mask)
        )
        return Batch(tokens, targets, mask, most=block.most)

    def state(self, run: int) -> Tensor:
        """Of a run's stream, as it was before the block that `step` is in."""
        if self.step % self.together:
            return self._before[run]
        return self.streams[run].get_state()

    def restore(self, run: int, state: Tensor, step: int) -> None:
        """The inverse of `state`; all runs must be brought to the same step."""
        self.streams[run].set_state(state)
        self.step, self._before = step, []


def seed_from(text: str) -> int:
    """A seed that nothing but the text decides."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def batches_at_once(config: RunConfig, device: torch.device) -> int:
    """On a CPU one: there many cost as much as one after the other."""
    return 1 if device.type == "cpu" else config.learns.together
