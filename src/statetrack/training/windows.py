"""Sequences of any length, a window of each at a step.

A step reads W tokens of every row. Rows are dealt to spans: words that take one window, two, four,
and so on, up to the longest of the run. A span of n windows draws new words for its rows every n
steps, padded to n windows. So at every step there are words that begin, beside some that have been
going on for long.

What a step reads follows from the run's seed and the step's number alone.
"""

import bisect
from typing import NamedTuple

import torch
from torch import Tensor

from statetrack import tasks
from statetrack._typing import Bool, Int
from statetrack.tasks import IGNORE, Task
from statetrack.training.config import RunConfig
from statetrack.training.feed import seed_from

__all__ = ["Span", "Windows", "spans_of"]


class Span(NamedTuple):
    """Words that so many windows have room for, and half as many have not; their lengths."""

    windows: int
    shortest: int
    longest: int


def spans_of(task: Task, lengths: tuple[int, int], window: int) -> list[Span]:
    """All lengths, by the windows they take; lengths are counted as the task counts them.

    >>> [tuple(span) for span in spans_of(tasks.get("s3"), (3, 200), 64)]
    [(1, 3, 63), (2, 64, 127), (4, 128, 200)]
    """
    low, high = lengths
    found, windows = [], 1
    while low <= high:
        fitting = range(low, high + 1)
        count = bisect.bisect_right(fitting, windows * window, key=task.num_tokens)
        if count:
            found.append(Span(windows, low, fitting[count - 1]))
            low = fitting[count - 1] + 1
        windows *= 2
    return found


class Windows:
    """What a run that has a `window` reads, step by step.

    Attributes:
        spans: of the words.
        rows: of each span.
    """

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        assert config.window is not None
        self.task, self.window, self.seed = config.learns, config.window, config.data_seed
        self.device = device
        self.spans = spans_of(self.task, config.train_lengths, self.window)
        count = len(self.spans)
        if config.batch < count:
            raise ValueError(
                f"batch={config.batch} is too small for lengths {config.train_lengths} in windows "
                f"of {self.window}: they take {count} spans, and each needs a row; give "
                f"batch={count} or more"
            )
        self.rows = [config.batch // count + (k < config.batch % count) for k in range(count)]
        self._words: list[tuple[int, Tensor, Tensor] | None] = [None] * count

    def at(
        self, step: int
    ) -> tuple[
        Int[Tensor, "batch window"], Int[Tensor, "batch window *labels"], Bool[Tensor, "batch"]
    ]:
        """Tokens, targets, and which rows begin a word."""
        tokens, targets, begins = [], [], []
        for k, span in enumerate(self.spans):
            block, place = divmod(step, span.windows)
            words = self._words[k]
            if words is None or words[0] != block:
                words = self._words[k] = (block, *self._drawn(k, block))
            now = slice(place * self.window, (place + 1) * self.window)
            tokens.append(words[1][:, now])
            targets.append(words[2][:, now])
            begins += [place == 0] * self.rows[k]
        return torch.cat(tokens), torch.cat(targets), torch.tensor(begins, device=self.device)

    def _drawn(self, k: int, block: int) -> tuple[Tensor, Tensor]:
        """The tokens and targets of a span's words, padded to whole windows."""
        span = self.spans[k]
        seed = seed_from(f"{self.seed} {k} {block}")
        stream = tasks.generator(self.task, "train", seed, self.device)
        drawn = self.task.sample(
            self.rows[k],
            span.longest,
            min_length=span.shortest,
            generator=stream,
            device=self.device,
        )
        size = (self.rows[k], span.windows * self.window)
        tokens = drawn.tokens.new_full(size, self.task.pad_id)
        targets = drawn.targets.new_full((*size, *drawn.targets.shape[2:]), IGNORE)
        width = drawn.tokens.shape[1]
        tokens[:, :width], targets[:, :width] = drawn.tokens, drawn.targets
        return tokens, targets
