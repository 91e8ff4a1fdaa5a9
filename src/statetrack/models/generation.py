"""Text from a language model: the prompt in parallel, then a token at a time in constant memory.

On a GPU some steps together, with the choice of their tokens, are captured in a CUDA graph once and
then replayed, since launching their kernels one by one takes longer than running them. The host
looks at what was written once for all of these steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad

from statetrack._typing import Bool, Float, Int
from statetrack.config import Bounds, Config
from statetrack.models._tokens import ModelState, TokenModel, evaluating
from statetrack.models.constraint import Constraint

__all__ = ["Prompts", "Sampling", "choose", "generate", "in_a_batch", "stream"]

Prompts = Tensor | Sequence[Sequence[int] | Tensor]
WARM_UP = 2
"""Steps before a capture, in which kernels are compiled and memory is taken."""
BURST = 8
"""Steps in a CUDA graph, where that many times so many tokens are asked for; else one."""


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
    # As torch.multinomial draws one, but for its look at the values, which waits for a GPU.
    shares = scores.softmax(-1)
    return (shares / torch.empty_like(shares).exponential_(generator=generator)).argmax(-1)


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
    device = model.embedding.weight.device
    tokens, mask = in_a_batch(prompts, device)
    if not isinstance(max_new_tokens, Integral) or max_new_tokens < 0:
        raise ValueError(f"max_new_tokens={max_new_tokens!r} must be a whole number at least 0")
    if isinstance(stop, int):
        raise ValueError(f"stop={stop} must be a list of tokens: write [{stop}]")
    if max_new_tokens == 0:
        return
    if constraint is not None:
        constraint.expect_fit(len(model.embedding.weight), max_new_tokens)
        constraint, stop = constraint.to(device), [*stop, constraint.end]
    ends = torch.tensor(list(stop), dtype=torch.long, device=device)
    rules = _Rules(sampling or GREEDY, ends, constraint, generator)
    before = rules.begin(tokens, mask, len(model.embedding.weight), max_new_tokens)
    scores, state = _prefill(model, tokens, mask)
    column, place = rules.pick(scores, before)
    yield column
    if max_new_tokens == 1 or (stop and bool(place.stopped.all())):
        return
    write = _Writer(model, rules, state, place, tokens.shape[1], max_new_tokens)
    done, over = 1, False
    while done < max_new_tokens and not over:
        columns, ended = write()
        flags = ended.tolist() if stop else [False] * len(columns)  # the only wait in it
        for column, over in zip(columns, flags, strict=True):
            yield column
            done += 1
            if over or done == max_new_tokens:
                break


def in_a_batch(
    prompts: Prompts, device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "batch time"], Bool[Tensor, "batch time"]]:
    """The prompts with padding on the left, and a mask that is True at their tokens.

    >>> in_a_batch([[5, 6], [7]])[0]
    tensor([[5, 6],
            [0, 7]])
    """
    rows = []
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            raise ValueError(f"prompt {index} is the text {prompt!r}: encode it to tokens first")
        row = torch.as_tensor(prompt, device=device)
        if row.dim() != 1:
            raise ValueError(f"prompt {index} has shape {tuple(row.shape)}, but must be one list")
        if len(row) == 0:
            raise ValueError(f"prompt {index} has no token: begin it with one, such as [BOS]")
        if row.is_floating_point():
            raise ValueError(f"prompt {index} has dtype {row.dtype}, but tokens are integers")
        rows.append(row.long())
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
    with evaluating(model):
        scores, state = model(tokens, read_at=last, mask=None if bool(mask.all()) else mask)
    return scores[:, 0], state


class _Place(NamedTuple):
    """What the next token depends on beside the model's state.

    Attributes:
        token: the last one of every sequence.
        stopped: whether it ended, with this token or before.
        left: how many tokens may still be written.
        seen: True for tokens that were there before; None if nobody asks.
        at: the state of the constraint, if there is one.
    """

    token: Int[Tensor, "batch"]
    stopped: Bool[Tensor, "batch"]
    left: Int[Tensor, ""]
    seen: Bool[Tensor, "batch vocab"] | None
    at: Int[Tensor, "batch"] | None

    def clone(self) -> "_Place":
        token, stopped, left, *maybe = self
        seen, at = (None if part is None else part.clone() for part in maybe)
        return _Place(token.clone(), stopped.clone(), left.clone(), seen, at)


@dataclass(frozen=True)
class _Rules:
    """How the next token follows from scores. Nothing in it waits for a GPU."""

    sampling: Sampling
    ends: Int[Tensor, "ends"]
    constraint: Constraint | None
    generator: torch.Generator | None

    def begin(self, tokens: Tensor, mask: Tensor, vocab_size: int, most: int) -> _Place:
        """Before the first new token."""
        seen = None
        if self.sampling.repetition_penalty != 1:
            counts = torch.zeros(len(tokens), vocab_size, device=tokens.device)
            seen = counts.scatter_add(1, tokens, mask.to(counts.dtype)) > 0
        return _Place(
            token=tokens[:, -1],
            stopped=torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device),
            left=torch.tensor(most, device=tokens.device),
            seen=seen,
            at=None if self.constraint is None else self.constraint.start(len(tokens)),
        )

    def pick(
        self, scores: Float[Tensor, "batch vocab"], before: _Place
    ) -> tuple[Int[Tensor, "batch"], _Place]:
        """The next token, -1 where a sequence had stopped; and what follows from it."""
        _, stopped, left, seen, at = before
        if self.constraint is not None and at is not None:
            allowed = self.constraint.allowed(at, left)
            allowed[:, self.constraint.end] |= stopped  # it may have no other token left
            more = scores.shape[1] - allowed.shape[1]  # rows of the model that are no tokens
            scores = scores.masked_fill(~pad(allowed, (0, more)), -torch.inf)
        token = choose(scores, self.sampling, seen, self.generator)
        now = stopped | (token[:, None] == self.ends).any(1)
        if seen is not None:
            seen = seen.scatter(1, token[:, None], True)
        if self.constraint is not None and at is not None:
            at = torch.where(now, at, self.constraint.step(at, token))
        return torch.where(stopped, -1, token), _Place(token, now, left - 1, seen, at)


class _Writer:
    """Writes on behind a prompt of `read` tokens and the first new one. It keeps the state.

    On a GPU it replays a CUDA graph, unless a layer of your own has a state that grows.
    """

    def __init__(
        self,
        model: TokenModel,
        rules: _Rules,
        state: ModelState,
        place: _Place,
        read: int,
        most: int,
    ) -> None:
        self.model, self.rules, self.state, self.place = model, rules, state, place
        self.narrow = _narrowed(model)
        self.burst = BURST if most >= BURST**2 else 1
        self.room = read + most + self.burst  # the last burst may go on behind the last token
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager = not model.embedding.weight.is_cuda

    @torch.no_grad()
    def __call__(self) -> tuple[Int[Tensor, "steps batch"], Bool[Tensor, "steps"]]:
        """The tokens of a few steps, and whether every sequence had ended after each."""
        if self.graph is None and not self.eager:
            self._capture()
        if self.graph is None:
            columns, ended, self.place, self.state = self._steps(self.place, self.state, 1)
            return columns, ended
        self.graph.replay()
        return self.columns.clone(), self.ended.clone()

    def _steps(
        self, place: _Place, state: ModelState, count: int
    ) -> tuple[Tensor, Tensor, _Place, ModelState]:
        columns, ended = [], []
        with evaluating(self.model):
            for _ in range(count):
                scores, state = self._step(place.token, state)
                column, place = self.rules.pick(scores, place)
                columns.append(column)
                ended.append(place.stopped.all())
        return torch.stack(columns), torch.stack(ended), place, state

    def _step(self, tokens: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        if not self.narrow:
            return self.model.step(tokens, state)
        # A graph may outlive what autocast keeps for the length of its context.
        with torch.autocast(tokens.device.type, cache_enabled=False):
            scores, state = functional_call(self.model, self.narrow, (tokens[:, None], state))
        return scores[:, 0], state

    def _capture(self) -> None:
        """Records a burst on memory of its own; does nothing where the state would grow."""
        state = self.model.backbone.with_room(self.state, self.room)
        place = self.place.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                *_, after = self._steps(place, state, 1)
        torch.cuda.current_stream().wait_stream(side)
        if [_shapes(one) for one in after] != [_shapes(one) for one in state]:
            self.eager = True
            return
        graph = torch.cuda.CUDAGraph()
        if self.rules.generator is not None:
            graph.register_generator_state(self.rules.generator)
        with torch.cuda.graph(graph):
            self.columns, self.ended, new_place, after = self._steps(place, state, self.burst)
            old = [part for one in state for part in one.values()]
            new = [later[key] for one, later in zip(state, after, strict=True) for key in one]
            _overwrite([*place, *old], [*new_place, *new])
        self.graph, self.state, self.place = graph, state, place


def _narrowed(model: TokenModel) -> dict[str, Tensor]:
    """Weights in the dtype that autocast would give them for every token anew; none without it."""
    table = model.embedding.weight
    kind = table.device.type
    if not torch.is_autocast_enabled(kind):
        return {}
    dtype = torch.get_autocast_dtype(kind)
    return {
        f"{name}.weight": module.weight.detach().to(dtype)
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module.weight.device == table.device
    }


def _overwrite(old: Iterable[Tensor | None], new: Iterable[Tensor | None]) -> None:
    """Puts new numbers where the old ones are, in as few launches as there are dtypes."""
    pairs = [
        (a, b)
        for a, b in zip(old, new, strict=True)
        if a is not None and b is not None and a is not b
    ]
    for dtype in {a.dtype for a, _ in pairs}:
        same = [(a, b) for a, b in pairs if a.dtype == dtype]
        torch._foreach_copy_([a for a, _ in same], [b for _, b in same])


def _shapes(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {key: part.shape for key, part in state.items()}
