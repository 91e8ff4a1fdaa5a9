"""What a task is: a name, an alphabet, a length law, a chance level and a sampler."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from statetrack._typing import Bool, Int
from statetrack.automata import Machine, table_of

IGNORE = -100
"""The target where nothing is asked; `torch.nn.functional.cross_entropy` skips it by default."""


class LengthRange(NamedTuple):
    """Lengths drawn uniformly from `min .. max`, both included."""

    min: int
    max: int


class Depths(NamedTuple):
    """What lies between an answer and the place where it could last be read off.

    Attributes:
        operations: how many operations have moved or changed the answer since it was last shown.
        age: how many operations of any kind have been read since.
    """

    operations: Int[Tensor, "batch time"]
    age: Int[Tensor, "batch time"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences, padded on the right.

    Attributes:
        tokens: what the model reads.
        targets: `targets[b, t]` is the class the model should say after reading
            `tokens[b, :t+1]`, or the class of each of several labels; `IGNORE` wherever `mask` is
            False.
        mask: True where the answer counts.
        depths: of every answer that counts, in test sets of tasks that have `Task.depths`.
        most: no sequence has more answers; None if each token may have one.
    """

    tokens: Int[Tensor, "batch time"]
    targets: Int[Tensor, "batch time *labels"]
    mask: Bool[Tensor, "batch time"]
    depths: Depths | None = None
    most: int | None = None

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        depths = self.depths and Depths(*(part.to(device) for part in self.depths))
        tokens, targets, mask = (x.to(device) for x in (self.tokens, self.targets, self.mask))
        return Batch(tokens, targets, mask, depths, self.most)

    @property
    def num_tokens(self) -> Int[Tensor, "batch"]:
        """Tokens of each sequence without its padding (the last one is always supervised)."""
        position = torch.arange(1, self.mask.shape[1] + 1, device=self.mask.device)
        return (self.mask * position).amax(dim=1)

    @property
    def last_answer(self) -> tuple[Int[Tensor, "batch 1"], Int[Tensor, "batch 1"]]:
        """The time of every sequence's last token, and the target there."""
        at = self.num_tokens[:, None] - 1
        return at, self.targets.gather(1, at)

    @property
    def answers(
        self,
    ) -> tuple[Int[Tensor, "batch asked"] | None, Int[Tensor, "batch asked *labels"]]:
        """The times to read a model at, None for all of them, and the targets there.

        A sequence with fewer than `most` answers is also read where nothing is asked.
        """
        if self.most is None:
            return None, self.targets
        if self.most == 1:
            return self.last_answer
        first = self.mask.byte().argsort(dim=1, descending=True, stable=True)
        at = first[:, : self.most]
        places = at.reshape(*at.shape, *(1 for _ in self.targets.shape[2:]))
        return at, self.targets.take_along_dim(places, dim=1)


Source = torch.Generator | tuple[torch.Generator, ...]
"""One stream, or several that each fill an equal share of a batch, one after the other."""

Sampler = Callable[[int, LengthRange, Source, torch.device], Batch]
"""(batch, lengths, source, device) -> Batch."""

Metric = Literal["scaled_accuracy", "sequence_accuracy"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Something to learn. Get one with `tasks.get(name)` or `tasks.from_machine(machine)`.

    One with a sampler of your own is known by its name after `tasks.register(task)`.

    Attributes:
        name: the name it is found by.
        summary: one line.
        token_names: the input vocabulary, by id; its size is `vocab_size`.
        class_names: what the model can answer, by target id; its size is `num_classes`. For the
            tasks of the paper this is the input vocabulary, padding and all, as in its softmax.
        pad_id: the input token after the end of a sequence. Models are causal and nothing after
            the end is supervised, so padding cannot change a loss.
        dense: True where every prefix that has an answer is supervised, False where only the
            last position is.
        chance: accuracy of guessing, the zero of `scaled_accuracy`.
        length_means: what `length` counts in `sample` and in the two ranges below.
        train_lengths, eval_lengths: the length laws of the protocol.
        shortest: the smallest length there is.
        fixed_length: True if a batch has one length unless `min_length` says otherwise.
        num_tokens: the number of input tokens of a sequence of a given length, or the most of them
            where statements differ in length.
        sampler: draws a batch.
        labels: where every token has several labels, the number of classes of each; `class_names`
            has them one label after the other, and an answer is right if all its labels are.
        parts: ranges of labels whose answers are also judged alone, by name.
        judged_by: the metric of a run; by default faultless sequences (`sequence_accuracy`) if
            `dense`, else `scaled_accuracy`.
        depths: of the answers of a batch, by reading its tokens; for test sets.
        most_answers: the most answers in a sequence of a given length, where they are few among its
            tokens: no more than the times of answers are then read. None: there may be one after
            every token, or after the last one alone if the task is not `dense`.
        together: how many batches training draws at once on a GPU, where drawing one would take
            about as long.
        machine: the machine whose outputs are the answers, where there is one. Its letters are
            tokens by the same names; the other tokens (padding, `=`, [BOS]) it does not read.
    """

    name: str
    summary: str
    token_names: tuple[str, ...]
    class_names: tuple[str, ...]
    pad_id: int
    dense: bool
    chance: float
    length_means: str
    train_lengths: LengthRange
    eval_lengths: LengthRange
    shortest: int
    fixed_length: bool = False
    num_tokens: Callable[[int], int]
    sampler: Sampler
    labels: tuple[int, ...] | None = None
    parts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    judged_by: Metric | None = None
    depths: Callable[[Batch], Depths] | None = None
    most_answers: Callable[[int], int] | None = None
    together: int = 1
    machine: Machine | None = None
    _origin: str | dict[str, Any] | None = field(init=False, default=None)

    def __repr__(self) -> str:
        return f"Task({self.name!r}, {self.vocab_size} tokens, {self.num_classes} classes)"

    @property
    def is_foreign(self) -> bool:
        """Whether it is known by registration alone."""
        return self._origin is None

    @property
    def spec(self) -> str | dict[str, Any]:
        """The JSON value by which `tasks.get` finds an equal task in another process.

        A name, or for a machine without one its table and the options of `from_machine`.

        >>> from statetrack import tasks
        >>> tasks.get("counter_5").spec, tasks.from_regex("(aa)*", "ab").spec
        ('machine:counter_5', 'regex:(aa)* over ab')
        """
        if isinstance(self._origin, dict):
            assert self.machine is not None
            return {"machine": table_of(self.machine), **self._origin}
        return self._origin or self.name

    @property
    def metric(self) -> Metric:
        """What a run is judged by."""
        return self.judged_by or ("sequence_accuracy" if self.dense else "scaled_accuracy")

    @property
    def vocab_size(self) -> int:
        """Number of input tokens, padding and special tokens included."""
        return len(self.token_names)

    @property
    def num_classes(self) -> int:
        """Number of classes the model chooses from."""
        return len(self.class_names)

    def sample(
        self,
        batch: int,
        max_length: int,
        *,
        min_length: int | None = None,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """`batch` fresh sequences, their lengths uniform on `min_length .. max_length`.

        `min_length` is by default the start of `train_lengths` (`max_length` itself for the tasks
        of fixed length). The answer itself is not among the tokens: where it would come, the
        sequence has ended.

        On the CPU a batch is as wide as its longest sequence. On other devices it is as wide as a
        sequence of `max_length`, because looking for the longest one would make the host wait;
        nothing is copied between host and device. The same generator state gives the same batch on
        the same kind of device.

        >>> from statetrack import tasks
        >>> generator = tasks.generator("parity", "train", seed=0)
        >>> batch = tasks.get("parity").sample(4, 40, generator=generator)
        >>> batch.mask.sum(dim=1).tolist()
        [1, 1, 1, 1]
        """
        device = self._check(batch, (generator,), device)
        lengths = self.lengths(max_length, min_length)
        return self._counted(self.sampler(batch, lengths, generator, device), max_length)

    def sample_streams(
        self,
        batch: int,
        max_length: int,
        *,
        min_length: int | None = None,
        generators: Sequence[torch.Generator],
        device: torch.device | str = "cpu",
    ) -> Batch:
        """`batch` sequences from each generator, one stream after the other, in one batch.

        Each stream's sequences are those that `sample` would draw from its generator alone, padded
        to the widest. On a GPU all streams are labelled together, at the price of one.
        """
        device = self._check(batch, generators, device)
        lengths = self.lengths(max_length, min_length)
        if device.type != "cpu":
            whole = self.sampler(batch * len(generators), lengths, tuple(generators), device)
            return self._counted(whole, max_length)
        parts = [self.sampler(batch, lengths, generator, device) for generator in generators]
        width = max(part.tokens.shape[1] for part in parts)
        together = Batch(
            tokens=_stacked([part.tokens for part in parts], width, self.pad_id),
            targets=_stacked([part.targets for part in parts], width, IGNORE),
            mask=_stacked([part.mask for part in parts], width, False),
        )
        return self._counted(together, max_length)

    def _counted(self, batch: Batch, max_length: int) -> Batch:
        """With the most answers that a sequence of up to `max_length` has."""
        if self.dense and self.most_answers is None:
            return batch
        most = self.most_answers(max_length) if self.dense and self.most_answers else 1
        return replace(batch, most=most)

    def _check(
        self, batch: int, generators: Sequence[torch.Generator], device: torch.device | str
    ) -> torch.device:
        """Refuses what cannot be sampled; the device."""
        device = torch.device(device)
        if batch < 1:
            raise ValueError(f"task {self.name!r}: batch {batch} is out of range; at least 1")
        for generator in generators:
            if generator.device.type != device.type:
                raise ValueError(
                    f"the generator is on {generator.device.type} but the batch is wanted on "
                    f"{device.type}; make it with torch.Generator({device.type!r})"
                )
        return device

    def lengths(self, max_length: int, min_length: int | None = None) -> LengthRange:
        """The range `sample` would draw from, or a `ValueError` that says what is allowed."""
        if min_length is None:
            default = max_length if self.fixed_length else self.train_lengths.min
            min_length = max(self.shortest, min(default, max_length))
        if not self.shortest <= min_length <= max_length:
            raise ValueError(
                f"task {self.name!r}: lengths {min_length}..{max_length} are out of range; "
                f"it needs {self.shortest} <= min_length <= max_length "
                f"(length counts {self.length_means})"
            )
        return LengthRange(min_length, max_length)

    def scaled_accuracy(self, accuracy: float) -> float:
        """`(accuracy - chance) / (1 - chance)`: 0 for a guess, 1 for a solution, may be negative.

        >>> from statetrack import tasks
        >>> tasks.get("parity").scaled_accuracy(0.75)
        0.5
        """
        return (accuracy - self.chance) / (1 - self.chance)

    def decode(self, tokens: Int[Tensor, "time"]) -> str:
        """One sequence in print, without its padding.

        >>> from statetrack import tasks
        >>> import torch
        >>> tasks.get("mod_arithmetic").decode(torch.tensor([7, 1, 8, 4, 0, 0]))
        '2+3='
        """
        names = [self.token_names[token] for token in tokens.tolist() if token != self.pad_id]
        return ("" if all(len(name) == 1 for name in names) else " ").join(names)


def found_by(task: Task, origin: str | dict[str, Any]) -> Task:
    """The task, which now knows its spec: a name, or the options given to `from_machine`.

    No argument of `Task`, so that `dataclasses.replace` makes a task that is no longer found so.
    """
    object.__setattr__(task, "_origin", origin)
    return task


def _stacked(parts: list[Tensor], width: int, fill: int | bool) -> Tensor:
    """One after the other, each padded on the right to `width`."""
    padded = []
    for part in parts:
        sides = (*(0, 0) * (part.dim() - 2), 0, width - part.shape[1])
        padded.append(torch.nn.functional.pad(part, sides, value=fill))
    return torch.cat(padded)
