"""A training step as one CUDA graph, so that the device never waits for the host."""

from collections.abc import Callable

import torch
from torch import Tensor

from statetrack._typing import Int

__all__ = ["RecordedStep"]

WARM_UP = 2
"""Steps that are taken as they are: all is compiled and tuned by then."""

Step = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class RecordedStep:
    """`step(tokens, targets)`, recorded by its third call and replayed from then on.

    Every call is one step: recording itself computes nothing. `step` may wait for nothing, reads
    and writes tensors that stay in their places, and leaves no tensor behind but its results: the
    gradients are dropped at its end. Their memory, and that of all it needs on the way, is kept
    from one call to the next.
    """

    def __init__(self, step: Step, rows: int, length: int, device: torch.device) -> None:
        self.step = step
        self.tokens, self.targets = (
            torch.zeros(rows, length, dtype=torch.long, device=device) for _ in range(2)
        )
        self.taken = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.results: tuple[Tensor, ...] = ()

    def __call__(
        self, tokens: Int[Tensor, "rows time"], targets: Int[Tensor, "rows time"]
    ) -> tuple[Tensor, ...]:
        """The results of one step, in tensors of their own."""
        for kept, given in ((self.tokens, tokens), (self.targets, targets)):
            kept.copy_(given if given.is_cuda else given.pin_memory(), non_blocking=True)
        if self.taken < WARM_UP:
            self.taken += 1
            return self._beside()
        if self.graph is None:
            self._record()
        assert self.graph is not None
        self.graph.replay()
        return tuple(result.clone() for result in self.results)

    def _beside(self) -> tuple[Tensor, ...]:
        """A step as it is, on a stream of its own, as before every capture."""
        here, beside = torch.cuda.current_stream(), torch.cuda.Stream()
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            results = self.step(self.tokens, self.targets)
        here.wait_stream(beside)
        for result in results:
            result.record_stream(here)
        return results

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.results = self.step(self.tokens, self.targets)
        except RuntimeError as error:
            raise ValueError(
                f"compile='step' cannot record this model: {str(error).splitlines()[0]}. Something "
                "in it waits for the GPU, or allocates by what it has computed: take 'blocks'"
            ) from error
        self.graph = graph
