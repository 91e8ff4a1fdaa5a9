"""Word problems: read group elements, say the product so far.

A sequence is [BOS], x_1, x_2, ... and its targets are [BOS], x_1, x_1·x_2, ...; all positions
count, the free one at [BOS] too. Elements are numbered as in `statetrack.automata.groups`
(permutations in lexicographic order, identity 0, the new element on the right). The vocabulary is
the elements, then the filler if there is one, then seven special tokens of which [PAD] and [BOS]
are used: n + 7 or n + 8 tokens, for input and output alike.
"""

import re
from functools import partial

import torch
from torch import Tensor

from statetrack.automata import is_word_problem, named
from statetrack.tasks._sampling import DeviceTable, Walker, lengths_of, longest, supervise, uniform
from statetrack.tasks._task import Batch, LengthRange, Source, Task

SPECIAL = ("[PAD]", "[BOS]", "[UNK]", "[EOS]", "[SEP]", "[CLS]", "[MASK]")
PAD, BOS = 0, 1  # positions in SPECIAL
NAME = re.compile(
    r"(?P<machine>(?P<group>\w+?)(_(?P<subset>swaps|3perms))?)(_(?P<tokens>\d+)tokens)?"
)
"""A word problem of `automata.named`, taken apart, and the suffix that is about the task."""
TRAIN, TRAIN_WITH_FILLERS, EVALUATE = 32, 64, 500


def is_group_task(name: str) -> bool:
    """Whether `name` has the form of a word problem, such as `s5_swaps` or `a4_x_z5`.

    >>> is_group_task("a4_x_z5"), is_group_task("parity")
    (True, False)
    """
    parts = NAME.fullmatch(name)
    return parts is not None and is_word_problem(parts["machine"])


def word_problem(name: str) -> Task:
    """The word problem of a name: a group, then what restricts its input.

    Groups: `s5` symmetric, `a5` alternating, `z60` cyclic, `d10` dihedral (the 20 symmetries of the
    10-gon), `q8` quaternions, `a4_x_z5` direct product. `_swaps` reads only permutations that move
    at most two points, `_3perms` at most three; the output alphabet stays the whole group.
    `_4tokens` puts three fillers after every element, which act as the identity, and asks for the
    product at the last of them: the targets are those of the elements, held over their fillers and
    shifted right by three (identity before the first).

    Length counts the tokens after [BOS], fillers included; the paper trains on 32 (64 with fillers)
    and evaluates at 500.
    """
    parts = NAME.fullmatch(name)
    if parts is None or not is_group_task(name):
        raise ValueError(f"{name!r} does not name a word problem, as s5, z60 and a4_x_z5 do")
    tokens_each = int(parts["tokens"] or 1)
    if parts["tokens"] and not 2 <= tokens_each <= 64:
        raise ValueError(
            f"task {name!r}: {tokens_each} tokens for each element is out of range 2..64"
        )
    machine = named(parts["machine"])
    order = machine.num_states
    if order < 2:
        raise ValueError(f"task {name!r}: the group has one element, there is nothing to track")
    elements = tuple(str(element) for element in range(order))
    names = (*elements, *(("filler",) if tokens_each > 1 else ()), *SPECIAL)
    pad_id = len(names) - len(SPECIAL) + PAD
    train = TRAIN if tokens_each == 1 else TRAIN_WITH_FILLERS
    outputs = torch.tensor(machine.outputs)
    return Task(
        name=name,
        summary=_summary(parts["group"], order, parts["subset"], tokens_each),
        token_names=names,
        class_names=names,
        pad_id=pad_id,
        dense=True,
        chance=1 / order,
        length_means="the tokens after [BOS]" + (", fillers included" if tokens_each > 1 else ""),
        train_lengths=LengthRange(train, train),
        eval_lengths=LengthRange(EVALUATE, EVALUATE),
        shortest=1,
        fixed_length=True,
        num_tokens=_num_tokens,
        sampler=partial(
            _sample,
            elements=DeviceTable([int(str(letter)) for letter in machine.alphabet]),
            product=Walker(torch.tensor(machine.delta), outputs),
            num_letters=machine.num_letters,
            tokens_each=tokens_each,
            filler=order,
            pad_id=pad_id,
        ),
        # A filler holds the answer back, which no machine over the elements alone does.
        machine=machine if tokens_each == 1 else None,
    )


def _summary(group: str, order: int, subset: str | None, tokens_each: int) -> str:
    name = " x ".join(factor.upper() for factor in group.split("_x_"))
    inputs = {"swaps": ", swaps only", "3perms": ", at most three points moved", None: ""}[subset]
    fillers = f", {tokens_each} tokens for each element" if tokens_each > 1 else ""
    return f"products in {name} ({order} elements){inputs}{fillers}"


def _num_tokens(length: int) -> int:
    return length + 1


def _sample(
    batch: int,
    lengths: LengthRange,
    source: Source,
    device: torch.device,
    *,
    elements: DeviceTable,
    product: Walker,
    num_letters: int,
    tokens_each: int,
    filler: int,
    pad_id: int,
) -> Batch:
    drawn = lengths_of(batch, lengths, source, device)
    width = longest(drawn, lengths.max)
    num_elements = -(-width // tokens_each)
    letters = uniform(0, num_letters - 1, (num_elements, batch), source, device)
    read = elements.on(device)[letters]
    says = product(letters)
    if tokens_each > 1:
        fillers = torch.full((num_elements, tokens_each - 1, batch), filler, device=device)
        read = torch.cat([read[:, None], fillers], dim=1).flatten(0, 1)
        identity = torch.zeros(tokens_each - 1, batch, dtype=torch.long, device=device)
        says = torch.cat([identity, says.repeat_interleave(tokens_each, dim=0)])
    return supervise(
        _after_bos(read[:width], pad_id),
        _after_bos(says[:width], pad_id),
        drawn + 1,
        pad_id=pad_id,
        defined=True,
    )


def _after_bos(tokens: Tensor, pad_id: int) -> Tensor:
    """`[time, batch]` to `[batch, 1 + time]` with [BOS] in front."""
    time, batch = tokens.shape
    framed = torch.full((batch, 1 + time), pad_id - PAD + BOS, device=tokens.device)
    framed[:, 1:] = tokens.T
    return framed
