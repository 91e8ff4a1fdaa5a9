"""Words of independent, uniform letters with an answer after every prefix.

parity, even_pairs, cycle_navigation. Length counts the letters and the answer, so a sequence of
length s has s - 1 tokens; lengths are uniform on 3..40 for training and 40..256 for evaluation. The
answer is asked once, at the last letter; the `_dense` variants ask after every letter.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from statetrack._typing import Int
from statetrack.automata import Machine, named
from statetrack.tasks._sampling import lengths_of, longest, supervise, uniform
from statetrack.tasks._task import Batch, LengthRange, Source, Task

TRAIN = LengthRange(3, 40)
EVALUATE = LengthRange(40, 256)

Values = Callable[[Int[Tensor, "batch time"]], Int[Tensor, "batch time"]]


def parity(*, dense: bool = False) -> Task:
    """Is the number of ones odd? (Unlocking State-Tracking, section 5.1.)

    Tokens: 0 padding, 1 the bit 0, 2 the bit 1; bits are fair. The answer is token 1 (even) or 2
    (odd). Vocabulary 3, chance 1/2.
    """
    return _task(
        "parity",
        dense,
        "the parity of the bits",
        letters=("0", "1"),
        answers=None,
        values=_parity_values,
        machine=named("parity"),
    )


def even_pairs(*, dense: bool = False) -> Task:
    """Is the number of places where the letter changes (01 or 10) odd? (Deletang et al. 2023.)

    That is the same as asking whether the first and last letters differ, so it needs memory of one
    letter and no counting. Tokens and answers as in `parity`: 1 for even, 2 for odd.
    """
    return _task(
        "even_pairs",
        dense,
        "the parity of the number of changes of letter",
        letters=("0", "1"),
        answers=None,
        values=_even_pairs_values,
        # States: the start, then first and last letter 00, 11, 01, 10.
        machine=Machine.from_table(
            [[1, 2], [1, 3], [4, 2], [1, 3], [4, 2]], outputs=[0, 0, 0, 1, 1], alphabet="01"
        ),
    )


def cycle_navigation(*, dense: bool = False) -> Task:
    """Where does a walk on a circle of five places end? (Deletang et al. 2023.)

    Tokens: 0 padding, 1 a step back, 2 stay, 3 a step forward, 4..8 the places 0..4, which are
    answers only. The walk starts at place 0. Vocabulary 9, chance 1/5.
    """
    return _task(
        "cycle_navigation",
        dense,
        "the end of a walk on a circle of five places",
        letters=("<", ".", ">"),
        answers=("0", "1", "2", "3", "4"),
        values=_cycle_values,
        machine=Machine.from_table(
            [[(q - 1) % 5, q, (q + 1) % 5] for q in range(5)], alphabet="<.>"
        ),
    )


def _parity_values(letters: Tensor) -> Tensor:
    return letters.cumsum(dim=1) & 1


def _even_pairs_values(letters: Tensor) -> Tensor:
    return letters ^ letters[:, :1]


def _cycle_values(letters: Tensor) -> Tensor:
    return (letters - 1).cumsum(dim=1) % 5


def _task(
    name: str,
    dense: bool,
    summary: str,
    *,
    letters: tuple[str, ...],
    answers: tuple[str, ...] | None,
    values: Values,
    machine: Machine,
) -> Task:
    """`answers=None`: the letters are the answers as well."""
    names = ("PAD", *letters, *(answers or ()))
    first_answer = 1 if answers is None else 1 + len(letters)
    return Task(
        name=f"{name}_dense" if dense else name,
        summary=summary + (", after every letter" if dense else ""),
        token_names=names,
        class_names=names,
        pad_id=0,
        dense=dense,
        chance=1 / len(answers or letters),
        length_means="the letters and the answer",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=2,
        num_tokens=_num_tokens,
        sampler=partial(
            _sample,
            num_letters=len(letters),
            first_answer=first_answer,
            values=values,
            dense=dense,
        ),
        machine=machine,
    )


def _num_tokens(length: int) -> int:
    return length - 1


def _sample(
    batch: int,
    lengths: LengthRange,
    source: Source,
    device: torch.device,
    *,
    num_letters: int,
    first_answer: int,
    values: Values,
    dense: bool,
) -> Batch:
    num_tokens = lengths_of(batch, lengths, source, device) - 1
    width = longest(num_tokens, lengths.max - 1)
    letters = uniform(0, num_letters - 1, (batch, width), source, device, batch_axis=0)
    return supervise(
        letters + 1, values(letters) + first_answer, num_tokens, pad_id=0, defined=dense
    )
