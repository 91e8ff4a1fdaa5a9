"""When a step is taken as it is, recorded and replayed; tests/gpu has the same with real graphs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack.lm import recorded
from statetrack.lm.recorded import RecordedStep


class Stream:
    def wait_stream(self, other: "Stream") -> None:
        pass


class Graph:
    """Does again what was done while it was recorded, in the same places."""

    def __init__(self) -> None:
        self.done: list[Callable[[], None]] = []

    def replay(self) -> None:
        for again in self.done:
            again()


@pytest.fixture
def host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that are none, and graphs that call Python."""

    @contextmanager
    def graph(made: Graph) -> Iterator[None]:
        recording.append(made)
        yield
        recording.pop()

    for name, stand_in in {
        "CUDAGraph": Graph,
        "graph": graph,
        "Stream": Stream,
        "stream": lambda stream: nullcontext(),
        "current_stream": Stream,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self.clone())
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: None)


recording: list[Graph] = []


def summing(total: Tensor, taken: list[str]) -> Any:
    """A step that adds the tokens to `total`, and tells how it was taken."""

    def step(tokens: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        result = torch.zeros(1, dtype=torch.long)

        def work() -> None:
            total.add_(tokens.sum())
            result.copy_(total + targets.sum())

        if recording:
            taken.append("recorded")
            recording[-1].done.append(work)
        else:
            taken.append("as it is")
            work()
        return (result,)

    return step


@pytest.mark.usefixtures("host_alone")
def test_every_call_is_one_step() -> None:
    total, taken = torch.zeros((), dtype=torch.long), []
    step = RecordedStep(summing(total, taken), 2, 3, torch.device("cpu"))
    results = []
    for number in range(1, 6):
        tokens = torch.full((2, 3), number)
        results.append(step(tokens, tokens + 1)[0])
        assert total == 6 * sum(range(1, number + 1))
    assert taken == ["as it is"] * recorded.WARM_UP + ["recorded"]
    # each of its own call, and of its own tokens and targets
    sums = [6 * sum(range(1, n + 1)) + 6 * (n + 1) for n in range(1, 6)]
    assert [int(result) for result in results] == sums


@pytest.mark.usefixtures("host_alone")
def test_what_cannot_be_recorded_is_told() -> None:
    def waits(tokens: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        if recording:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return (tokens.sum(),)

    step = RecordedStep(waits, 1, 1, torch.device("cpu"))
    one = torch.ones(1, 1, dtype=torch.long)
    for _ in range(recorded.WARM_UP):
        step(one, one)
    with pytest.raises(ValueError, match="stream is capturing. Something in it waits.*'blocks'"):
        step(one, one)
    recording.clear()
