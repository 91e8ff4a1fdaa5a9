"""A model as a function from words to answers, which is all that `extract` asks of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from statetrack import tasks
from statetrack._typing import Int
from statetrack.automata import Machine
from statetrack.automata.machine import IntArray, Letter
from statetrack.compiler.network import CompiledRNN
from statetrack.models import Tagger
from statetrack.models._tokens import evaluating
from statetrack.runs.folder import run_at
from statetrack.runs.stored import StoredRun
from statetrack.tasks import Task
from statetrack.training import RunConfig
from statetrack.training.precision import autocast

__all__ = ["NOT_A_NUMBER", "Alphabet", "BlackBox", "Model", "black_box"]

Answers = Callable[[Int[Tensor, "batch time"]], Any]
Model = nn.Module | StoredRun | Path | str | Answers
"""What `black_box` takes: a model, a run or its folder, or a function of tokens."""

Alphabet = int | Sequence[Letter] | Mapping[Letter, int]

TOKENS_AT_ONCE = 2**16
SAMPLE = 256
"""Sequences of a task that are looked at to find its letters."""
NOT_A_NUMBER = -1
"""The answer of a model whose scores are not finite."""


@dataclass(frozen=True, eq=False)
class BlackBox:
    """A causal, deterministic model over an alphabet.

    Attributes:
        answers: tokens [batch, time] -> what it says after each of them.
        alphabet: the letters, sorted as in a `Machine`.
        tokens: the token of each letter.
        before: tokens in front of every word, as [BOS].
        says: what a machine says in place of each answer; empty for the answers themselves.
        device: where tokens are sent.
        target: the machine that was to be learnt, where it is known.
    """

    answers: Answers
    alphabet: tuple[Letter, ...]
    tokens: tuple[int, ...]
    before: tuple[int, ...] = ()
    says: tuple[int | bool, ...] = ()
    device: torch.device = torch.device("cpu")
    target: Machine | None = None

    @property
    def num_letters(self) -> int:
        return len(self.alphabet)

    def ask(self, words: IntArray, tick: Callable[[], None] | None = None) -> IntArray:
        """The answer after every letter, as many as letters: [batch, time] for [batch, time].

        `tick` is called before every part of the batch that is run at once.
        """
        rows = max(1, TOKENS_AT_ONCE // (words.shape[1] + len(self.before)))
        found = []
        for start in range(0, len(words), rows):
            if tick is not None:
                tick()
            found.append(self._ask(words[start : start + rows]))
        return np.concatenate(found)

    def _ask(self, words: IntArray) -> IntArray:
        front = np.tile(np.array(self.before, dtype=np.int64), (len(words), 1))
        tokens = np.concatenate([front, np.array(self.tokens)[words]], axis=1)
        answers = _classes(self.answers(torch.from_numpy(tokens).to(self.device)))
        if answers.shape != tokens.shape:
            raise ValueError(
                f"the model answered tokens of shape {list(tokens.shape)} with answers of shape "
                f"{list(answers.shape)}; it must say one class after each token"
            )
        return answers[:, len(self.before) :]

    def outputs(self, answers: Sequence[int]) -> NDArray[Any]:
        """Answers as outputs of a machine; those it has no word for are negative."""
        if not self.says:
            return np.array(answers, dtype=np.int64)
        return np.array([self.says[a] if a >= 0 else NOT_A_NUMBER for a in answers])


def black_box(
    model: Model,
    task: Task | str | None = None,
    *,
    alphabet: Alphabet | None = None,
    before: Sequence[int] = (),
    device: torch.device | str = "cpu",
) -> BlackBox:
    """The model as a function from words over an alphabet to answers.

    Args:
        model: a run or its folder, a `Tagger`, a `CompiledRNN`, or any function of tokens
            [batch, time] that returns classes [batch, time], or scores [batch, time, classes], or
            a tuple that begins with one of these, as the models here do.
        task: says which tokens are letters and what the classes mean. A run brings its own.
        alphabet: instead of a task: how many letters, which, or the token of each. Without tokens
            the letters are the tokens 0, 1, … in the order given.
        before: with an alphabet: tokens in front of every word.
        device: where a run's model is put. Other models stay where they are, and get their tokens
            there.

    >>> box = black_box(lambda tokens: tokens.cumsum(1) % 2, alphabet=2)
    >>> box.ask(np.array([[0, 1, 1, 1]])).tolist()
    [[0, 1, 0, 1]]
    """
    precision = "fp32"
    if isinstance(model, str | Path):
        model = run_at(model)
    if isinstance(model, StoredRun):
        if not isinstance(model.config, RunConfig):
            raise ValueError(
                f"{model.place} is a run of the kind {model.config.KIND!r}, which has no task; "
                "give its model and an alphabet"
            )
        if alphabet is None and task is None:
            task = model.config.learns
        precision = model.config.precision
        model = model.model().to(device)
    if alphabet is None and task is None:
        if isinstance(model, CompiledRNN):
            alphabet = model.machine.alphabet
        elif isinstance(model, Tagger):
            alphabet = model.config.vocab_size
        else:
            raise ValueError("give a task or an alphabet: this model does not say what it reads")
    if alphabet is not None and task is not None:
        raise ValueError("give a task or an alphabet, not both")
    answers: Answers = model  # type: ignore[assignment]
    place = torch.device("cpu")
    if isinstance(model, nn.Module):
        place = next(iter([*model.parameters(), *model.buffers()]), torch.empty(0)).device
        answers = _answers_of(model, place, precision)
    if task is None:
        assert alphabet is not None
        names, tokens = _sorted(_letters(alphabet))
        return BlackBox(answers, names, tokens, tuple(before), device=place)
    task = tasks.get(task)
    letters, front = _letters_of(task)
    names, tokens = _sorted(letters)
    return BlackBox(answers, names, tokens, front, _says(task), place, task.machine)


def _sorted(letters: Mapping[Letter, int]) -> tuple[tuple[Letter, ...], tuple[int, ...]]:
    """The letters as a machine sorts them, and their tokens."""
    names = tuple(sorted(letters))
    return names, tuple(letters[name] for name in names)


def _answers_of(model: nn.Module, device: torch.device, precision: str) -> Answers:
    """The model in evaluation mode; its mode is put back after every call."""

    @torch.no_grad()
    def answers(tokens: Tensor) -> Any:
        with evaluating(model), autocast(device, precision):
            return model(tokens)

    return answers


def _classes(found: Any) -> IntArray:
    """What a model returned as one class for each token."""
    first = torch.as_tensor(found[0] if isinstance(found, tuple) else found)
    if first.is_floating_point():
        classes = first.argmax(dim=-1)
        first = classes.masked_fill(~first.isfinite().all(dim=-1), NOT_A_NUMBER)
    return np.asarray(first.cpu().numpy()).astype(np.int64)


def _letters(alphabet: Alphabet) -> dict[Letter, int]:
    """Letter -> token."""
    if isinstance(alphabet, Mapping):
        letters = dict(alphabet)
    else:
        names = range(alphabet) if isinstance(alphabet, int) else alphabet
        letters = {name: token for token, name in enumerate(names)}
    if not letters:
        raise ValueError(f"alphabet {alphabet!r} has no letter; give at least one")
    return letters


def _letters_of(task: Task) -> tuple[dict[Letter, int], tuple[int, ...]]:
    """Letter -> token, and the tokens in front of every word.

    What stands first in every sequence and nowhere else is in front. The letters are those of the
    task's machine, or else all other tokens that its sequences have.
    """
    batch = tasks.evaluation_set(task, SAMPLE, 0, lengths=task.train_lengths)
    inside = torch.arange(batch.tokens.shape[1]) < batch.num_tokens[:, None]
    if task.dense and not bool(batch.mask[inside].all()):
        raise ValueError(_some_words_only(task, "it asks after some of its tokens only"))
    first = batch.tokens[:, 0]
    rest = inside.clone()
    rest[:, 0] = False
    read = set(batch.tokens[rest].tolist())
    front = () if len(first.unique()) > 1 or int(first[0]) in read else (int(first[0]),)
    read |= set() if front else set(first.tolist())
    if task.machine is None:
        return {task.token_names[token]: token for token in sorted(read)}, front
    number = {name: token for token, name in enumerate(task.token_names)}
    letters = {letter: number[str(letter)] for letter in task.machine.alphabet}
    others = read - set(letters.values())
    if others:
        names = ", ".join(task.token_names[token] for token in sorted(others))
        raise ValueError(_some_words_only(task, f"its sequences also have {names}"))
    return letters, front


def _some_words_only(task: Task, why: str) -> str:
    return (
        f"task {task.name!r} does not have an answer after every word of its letters: {why}. "
        "Give a function of tokens and an alphabet of your own instead"
    )


def _says(task: Task) -> tuple[int | bool, ...]:
    """What the task's machine says for each class; a class that is none of its outputs, -2 - c."""
    if task.machine is None:
        return (False, True) if task.class_names == ("reject", "accept") else ()
    if task.machine.outputs.dtype == np.bool_:
        return (False, True)
    known = {str(output): int(output) for output in task.machine.outputs.tolist()}
    return tuple(known.get(name, -2 - c) for c, name in enumerate(task.class_names))
