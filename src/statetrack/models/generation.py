"""Text from a language model: the prompt in parallel, then a token at a time in constant memory.

On a GPU the step is captured in a CUDA graph once and then replayed, since launching its kernels
one by one takes longer than running them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from statetrack._typing import Bool, Float, Int
from statetrack.config import Bounds, Config
from statetrack.models._tokens import ModelState, TokenModel
from statetrack.models.constraint import Constraint

__all__ = ["Prompts", "Sampling", "choose", "generate", "in_a_batch", "stream"]

Prompts = Tensor | Sequence[Sequence[int] | Tensor]
WARM_UP = 3
"""Steps before a capture, in which kernels are compiled and memory is taken."""


@dataclass(frozen=True, kw_only=True)
class Sampling(Config):
    """How the next token is drawn from its scores.

    Attributes:
        temperature: divides the scores. 0 takes the most likely token, whatever the rest says.
        top_k: only the k most likely tokens.
        top_p: only the most likely tokens that together have this probability.
        repetition_penalty: scores of tokens that were there before are divided by it where they are
            positive and multiplied where they are negative. 1 changes nothing.
    """

    temperature: Annotated[float, Bounds(least=0.0)] = 1.0
    top_k: Annotated[int, Bounds(least=1)] | None = None
    top_p: Annotated[float, Bounds(above=0.0, most=1.0)] | None = None
    repetition_penalty: Annotated[float, Bounds(above=0.0)] = 1.0


GREEDY = Sampling(temperature=0.0)


def choose(
    scores: Float[Tensor, "batch vocab"],
    sampling: Sampling,
    seen: Bool[Tensor, "batch vocab"] | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "batch"]:
    """The next token of every sequence. `seen` is True for tokens that were there before.

    >>> choose(torch.tensor([[0.0, 2.0, 1.0]]), GREEDY)
    tensor([1])
    """
    scores = scores.float()
    if seen is not None and sampling.repetition_penalty != 1:
        penalty = sampling.repetition_penalty
        fewer = torch.where(scores > 0, scores / penalty, scores * penalty)
        scores = torch.where(seen, fewer, scores)
    if sampling.temperature == 0:
        return scores.argmax(-1)
    scores = scores / sampling.temperature
    if sampling.top_k is not None:
        least = scores.topk(min(sampling.top_k, scores.shape[-1])).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if sampling.top_p is not None:
        ordered, order = scores.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        ordered = ordered.masked_fill(before >= sampling.top_p, -torch.inf)
        scores = torch.empty_like(scores).scatter(1, order, ordered)
    return torch.multinomial(scores.softmax(-1), 1, generator=generator).squeeze(1)


def generate(
    model: TokenModel,
    prompts: Prompts,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    stop: Sequence[int] = (),
    generator: torch.Generator | None = None,
    constraint: Constraint | None = None,
) -> list[Int[Tensor, "new"]]:
    """The tokens that follow each prompt, up to and with the first of `stop`."""
    columns = list(stream(model, prompts, max_new_tokens, sampling, stop, generator, constraint))
    if not columns:
        return [torch.empty(0, dtype=torch.long) for _ in prompts]
    return [row[row >= 0] for row in torch.stack(columns, dim=1)]


def stream(
    model: TokenModel,
    prompts: Prompts,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    stop: Sequence[int] = (),
    generator: torch.Generator | None = None,
    constraint: Constraint | None = None,
) -> Iterator[Int[Tensor, "batch"]]:
    """`generate`, one token of every sequence at a time; -1 where a sequence has stopped.

    `generator` draws the tokens and is on the model's device; None is PyTorch's own. With a
    `constraint` every sequence also stops at its end.
    """
    sampling = sampling or GREEDY
    device = model.embedding.weight.device
    tokens, mask = in_a_batch(prompts, device)
    if max_new_tokens < 1:
        return
    if constraint is not None:
        constraint.expect_fit(len(model.embedding.weight), max_new_tokens)
        constraint, stop = constraint.to(device), [*stop, constraint.end]
        place = constraint.start(len(tokens))
    ends = torch.tensor(list(stop), dtype=torch.long, device=device)
    seen = None
    if sampling.repetition_penalty != 1:
        counts = torch.zeros(len(tokens), len(model.embedding.weight), device=device)
        seen = counts.scatter_add(1, tokens, mask.to(counts.dtype)) > 0
    scores, state = _prefill(model, tokens, mask)
    take = _Stepper(model, state, room=tokens.shape[1] + max_new_tokens)
    stopped = torch.zeros(len(tokens), dtype=torch.bool, device=device)
    for done in range(1, max_new_tokens + 1):
        if constraint is not None:
            allowed = constraint.allowed(place, max_new_tokens - done + 1)
            allowed[:, constraint.end] |= stopped  # what has stopped may have no other token left
            more = scores.shape[1] - allowed.shape[1]  # rows of the model that are no tokens
            scores = scores.masked_fill(~pad(allowed, (0, more)), -torch.inf)
        new = choose(scores, sampling, seen, generator)
        yield torch.where(stopped, -1, new)
        stopped = stopped | torch.isin(new, ends)
        if done == max_new_tokens or (len(ends) and bool(stopped.all())):
            return
        if seen is not None:
            seen = seen.scatter(1, new[:, None], True)
        if constraint is not None:
            place = torch.where(stopped, place, constraint.step(place, new))
        scores = take(new)


def in_a_batch(
    prompts: Prompts, device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
    """The prompts with padding on the left, and a mask that is True at their tokens.

    >>> in_a_batch([[5, 6], [7]])[0]
    tensor([[5, 6],
            [0, 7]])
    """
    rows = [torch.as_tensor(prompt, device=device).long() for prompt in prompts]
    for index, row in enumerate(rows):
        if row.dim() != 1:
            raise ValueError(f"prompt {index} has shape {tuple(row.shape)}, but must be one list")
        if len(row) == 0:
            raise ValueError(f"prompt {index} has no token: begin it with one, such as [BOS]")
    if not rows:
        raise ValueError("there is no prompt")
    longest = max(map(len, rows))
    tokens = torch.zeros(len(rows), longest, dtype=torch.long, device=device)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool, device=device)
    for index, row in enumerate(rows):
        tokens[index, longest - len(row) :] = row
        mask[index, longest - len(row) :] = True
    return tokens, mask


@torch.no_grad()
def _prefill(
    model: TokenModel, tokens: Int[Tensor, "batch time"], mask: Bool[Tensor, "batch time"]
) -> tuple[Float[Tensor, "batch vocab"], ModelState]:
    """The scores after every prompt, and the state there."""
    last = torch.full_like(tokens[:, :1], tokens.shape[1] - 1)
    with _evaluating(model):
        scores, state = model(tokens, read_at=last, mask=None if bool(mask.all()) else mask)
    return scores[:, 0], state


class _Stepper:
    """Takes one token of every sequence and gives the scores after it. It keeps the state.

    On a GPU it replays a CUDA graph, unless a layer of your own has a state that grows. There is
    room for `room` tokens in all.
    """

    def __init__(self, model: TokenModel, state: ModelState, room: int) -> None:
        self.model, self.state, self.room = model, state, room
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager = not model.embedding.weight.is_cuda

    @torch.no_grad()
    def __call__(self, tokens: Int[Tensor, "batch"]) -> Float[Tensor, "batch vocab"]:
        if self.graph is None and not self.eager:
            self._capture(tokens)
        if self.graph is None:
            with _evaluating(self.model):
                scores, self.state = self.model.step(tokens, self.state)
            return scores
        self.tokens.copy_(tokens)
        self.graph.replay()
        return self.scores

    def _capture(self, tokens: Tensor) -> None:
        """Records a step on memory of its own; does nothing where the state would grow."""
        model = self.model
        state = model.backbone.with_room(self.state, self.room)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with _evaluating(model), torch.cuda.stream(side):
            for _ in range(WARM_UP):
                _, after = model.step(tokens, state)
        torch.cuda.current_stream().wait_stream(side)
        if [_shapes(one) for one in after] != [_shapes(one) for one in state]:
            self.eager = True
            return
        self.tokens, graph = tokens.clone(), torch.cuda.CUDAGraph()
        with _evaluating(model), torch.cuda.graph(graph):
            self.scores, after = model.step(self.tokens, state)
            for old, new in zip(state, after, strict=True):
                for key, part in old.items():
                    part.copy_(new[key])
        self.graph, self.state = graph, state


def _shapes(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {key: part.shape for key, part in state.items()}


@contextmanager
def _evaluating(model: TokenModel) -> Iterator[None]:
    """Without dropout; the model is afterwards as it was."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
