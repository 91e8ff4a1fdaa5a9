"""Arithmetic modulo five, read from left to right, with and without brackets.

The answer is asked once, at `=`; the `_dense` variants ask at every prefix that has a value.
Lengths are those of the paper's code: 3..40 for training, 40..256 for evaluation, with the
meaning given in each docstring.
"""

from functools import partial

import torch
from torch import Tensor

from statetrack._typing import Int
from statetrack.automata import named
from statetrack.tasks._sampling import Walker, lengths_of, longest, supervise, uniform
from statetrack.tasks._task import Batch, LengthRange, Source, Task

TRAIN = LengthRange(3, 40)
EVALUATE = LengthRange(40, 256)
MODULUS = 5


# -- without brackets ---------------------------------------------------------------------------

FLAT_TOKENS = ("PAD", "+", "-", "*", "=", "0", "1", "2", "3", "4")
EQUALS = 4
FIRST_DIGIT = 5


def mod_arithmetic(*, dense: bool = False) -> Task:
    """`2-3*4=` modulo 5, `*` before `+` and `-`, no unary minus (Unlocking State-Tracking, 5.1).

    Tokens: 0 padding, 1 `+`, 2 `-`, 3 `*`, 4 `=`, 5..9 the digits 0..4. Digits and operators are
    independent and uniform. Vocabulary 10, chance 1/5.

    Length counts expression, `=` and answer and is always odd, 2n - 1 with n - 1 operands; n is
    uniform. An even bound stands for the odd number below it: lengths 3..40 are 3, 5, ..., 39 (1 to
    19 operands) and 40..256 are 39, 41, ..., 255 (19 to 127 operands).

    Dense: after every digit, the value of what has been read.
    """
    return Task(
        name="mod_arithmetic_dense" if dense else "mod_arithmetic",
        summary="arithmetic modulo 5 with + - *, no brackets"
        + (", after every operand" if dense else ""),
        token_names=FLAT_TOKENS,
        class_names=FLAT_TOKENS,
        pad_id=0,
        dense=dense,
        chance=1 / MODULUS,
        length_means="expression, = and answer, rounded down to odd",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=3,
        num_tokens=_flat_tokens,
        sampler=partial(_sample_flat, evaluate=_precedence_machine(), dense=dense),
        machine=named("mod_arithmetic"),
    )


def _flat_tokens(length: int) -> int:
    return 2 * _operands(length)


def _operands(length: int) -> int:
    return (length + 1) // 2 - 1


def _precedence_machine() -> Walker:
    """The 25 states (S, P) of an expression S + P whose last product P may still grow.

    A letter is an operator and the digit after it: 5·operator + digit, operators + - *. Reading it
    gives (S + P, d), (S + P, -d) or (S, P·d). The first digit follows a silent `+`.
    """
    states = torch.arange(MODULUS**2)[:, None]
    letters = torch.arange(3 * MODULUS)
    total, product = states // MODULUS, states % MODULUS
    operator, digit = letters // MODULUS, letters % MODULUS
    times = operator == 2
    new_total = torch.where(times, total, total + product) % MODULUS
    signed = torch.where(operator == 1, -digit, digit)
    new_product = torch.where(times, product * digit, signed) % MODULUS
    return Walker(new_total * MODULUS + new_product, ((total + product) % MODULUS).flatten())


def _sample_flat(
    batch: int,
    lengths: LengthRange,
    source: Source,
    device: torch.device,
    *,
    evaluate: Walker,
    dense: bool,
) -> Batch:
    operands = LengthRange(_operands(lengths.min), _operands(lengths.max))
    num_operands = lengths_of(batch, operands, source, device)
    width = longest(num_operands, operands.max)
    digits = uniform(0, MODULUS - 1, (width, batch), source, device)
    operators = uniform(0, 2, (width, batch), source, device)  # operator i stands before digit i
    operators[0] = 0

    tokens = torch.empty(batch, 2 * width, dtype=torch.long, device=device)
    tokens[:, 0::2] = digits.T + FIRST_DIGIT
    tokens[:, 1:-1:2] = operators[1:].T + 1
    num_tokens = 2 * num_operands
    tokens.scatter_(1, num_tokens[:, None] - 1, EQUALS)

    # An operator's place holds the value before it, which is the answer where `=` took that place.
    values = evaluate(operators * MODULUS + digits).T.repeat_interleave(2, dim=1)
    after_digit = torch.arange(2 * width, device=device) % 2 == 0
    return supervise(
        tokens, values + FIRST_DIGIT, num_tokens, pad_id=0, defined=after_digit if dense else False
    )


# -- with brackets ------------------------------------------------------------------------------

BRACKET_TOKENS = ("0", "1", "2", "3", "4", "+", "-", "*", "(", ")", "=", "PAD")
PLUS, MINUS, OPEN, CLOSE, BRACKET_EQUALS, BRACKET_PAD = 5, 6, 8, 9, 10, 11
SHORTEST_BRACKETS = 5
DICE_BITS = 27  # below the 28 from which torch versions draw integers differently


def mod_arithmetic_brackets(*, dense: bool = False) -> Task:
    """`((1-(-3))+2)=` modulo 5, fully bracketed, no multiplication (Unlocking State-Tracking, 5.1).

    Tokens: 0..4 digits, 5 `+`, 6 `-`, 7 `*` (never used), 8 `(`, 9 `)`, 10 `=`, 11 padding.
    Vocabulary 12, chance 1/5.

    An expression of n tokens is d (n = 1), -d (2), (d) (3), (-d) (4), and from 5 on `(L op R)` with
    the length of L uniform on 1..n-4 and op one of + and -; digits are uniform. Length counts
    expression, `=`, answer and one token more, and a length below 5 is raised to 5: a length s
    gives an expression of s - 3 tokens and a sequence of s - 2.

    Dense: after every digit and every `)`, the value of what has been read with the brackets that
    are still open closed there.
    """
    return Task(
        name="mod_arithmetic_brackets_dense" if dense else "mod_arithmetic_brackets",
        summary="arithmetic modulo 5 with + - and brackets"
        + (", after every digit and bracket" if dense else ""),
        token_names=BRACKET_TOKENS,
        class_names=BRACKET_TOKENS,
        pad_id=BRACKET_PAD,
        dense=dense,
        chance=1 / MODULUS,
        length_means="expression, =, answer and one more, at least 5",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=3,
        num_tokens=_bracket_tokens,
        sampler=partial(_sample_brackets, dense=dense),
    )


def _bracket_tokens(length: int) -> int:
    return max(length, SHORTEST_BRACKETS) - 2


def _sample_brackets(
    batch: int,
    lengths: LengthRange,
    source: Source,
    device: torch.device,
    *,
    dense: bool,
) -> Batch:
    """The trees first, then all tokens, signs and values at once from the lengths of the nodes."""
    drawn = lengths_of(batch, lengths, source, device).clamp(min=SHORTEST_BRACKETS)
    num_tokens = drawn - 2
    width = longest(num_tokens, _bracket_tokens(lengths.max))
    node, left = _grow_trees(num_tokens - 1, width, source)
    digits = uniform(0, MODULUS - 1, (width, batch), source, device)
    minus = uniform(0, 1, (width, batch), source, device)

    # Two rows below the last take the writes of places where there is nothing to write.
    nowhere = width + 1
    here = torch.arange(width, device=device)[:, None]
    pair = node >= 5
    close_at = torch.where(node >= 3, here + node - 1, nowhere)
    operator_at = torch.where(pair, here + 1 + left, nowhere)
    is_digit = node == 1
    tokens = torch.full((width + 2, batch), OPEN, device=device)
    tokens[:width].masked_fill_(node == 2, MINUS)
    tokens[:width] = torch.where(is_digit, digits, tokens[:width])
    tokens.scatter_(0, close_at, CLOSE)
    tokens.scatter_(0, operator_at, PLUS + minus)
    tokens.scatter_(0, num_tokens[None] - 1, BRACKET_EQUALS)

    # Without multiplication the value is the sum of the digits, each with a sign: a minus turns the
    # signs of its operand, from the operand's first token up to the token after its last.
    turns = torch.zeros(width + 2, batch, dtype=torch.long, device=device)
    unary = (node == 2).long()
    turns[1 : width + 1] += unary
    turns[2 : width + 2] += unary
    turns.scatter_add_(0, torch.where(pair, operator_at + 1, nowhere), minus)
    turns.scatter_add_(0, torch.where(pair, close_at, nowhere), minus)
    sign = 1 - 2 * (turns[:width].cumsum(dim=0) & 1)
    values = torch.where(is_digit, digits * sign, 0).cumsum(dim=0) % MODULUS

    tokens = tokens[:width].T.contiguous()
    defined = (tokens < MODULUS) | (tokens == CLOSE) if dense else False
    return supervise(tokens, values.T.contiguous(), num_tokens, pad_id=BRACKET_PAD, defined=defined)


def _grow_trees(
    sizes: Int[Tensor, "batch"], width: int, source: Source
) -> tuple[Int[Tensor, "time batch"], Int[Tensor, "time batch"]]:
    """A random tree of the grammar for every expression, one place in time after the other.

    Returns, for every place, the length of the node that starts there (0 where none does: at
    operators and closing brackets) and the length of its left or only child. A node of length n at
    place t has that child at t + 1; from length 5 on it has a second one after the operator. So
    every node is known by the time its place is reached, and one sweep grows all trees together.
    """
    batch = sizes.shape[0]
    nowhere = width
    node = torch.zeros(width + 1, batch, dtype=torch.long, device=sizes.device)
    node[0] = sizes
    left = torch.empty(width, batch, dtype=torch.long, device=sizes.device)
    # dice·m / 2^27, rounded down, plus one: every split of 1..m has probability 1/m up to 2^-27.
    dice = uniform(0, 2**DICE_BITS - 1, (width, batch), source, sizes.device)
    for t in range(width):
        size = node[t]
        pair = size >= 5
        split = (dice[t] * (size - 4) >> DICE_BITS) + 1
        torch.where(pair, split, size >> 1, out=left[t])  # sizes 1, 2, 3, 4 have child 0, 1, 1, 2
        node[t + 1] += left[t]  # nothing else starts inside a node of two or more tokens
        right_at = torch.where(pair, left[t] + (t + 2), nowhere)
        node.scatter_(0, right_at[None], (size - 3 - left[t])[None])
    return node[:width], left
