"""Machines with names: groups by the usual letters, and the automata that theory is tested on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product as _product
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from statetrack._suggest import did_you_mean
from statetrack.automata import groups
from statetrack.automata.limits import MAX_DYCK, MAX_TABLE, too_large
from statetrack.automata.machine import Machine


def named(name: str) -> Machine:
    """The machine of a name, whatever its case.

    Groups: `s5`, `a5`, `z60`, `d10` (order 20), `q8`, products `a4_x_z5`; fewer letters: `s5_swaps`
    (identity and swaps), `s5_3perms` (moving at most three points). Acting on points: `s5_points`,
    `a5_points`, `s5_reset`. Others: `parity`, `mod_arithmetic` (modulo 5) and `mod_arithmetic_3`,
    `counter_5` (modulo 5 with reset), `cerny_4`, `t_4` (all maps of 4 points), `dyck_2_depth_3`,
    `even_a_ends_b`.

    >>> named("a4_x_z5").num_states
    60
    """
    key = name.strip().lower()
    for pattern, make in _PATTERNS:
        match = re.fullmatch(pattern, key)
        if match:
            return make(*(int(number) for number in match.groups()))
    if "_x_" in key:
        parts = [named(part) for part in key.split("_x_")]
        groups.check_product(parts)
        machine = parts[0]
        for part in parts[1:]:
            machine = groups.direct_product(machine, part)
        return machine
    raise ValueError(
        f"no machine is called {name!r}; {did_you_mean(key, NAMES)}Known: {', '.join(NAMES)}"
    )


def is_name(name: str) -> bool:
    """Whether `name` has the form of one that `named` knows; its numbers may still be refused.

    >>> is_name("z60"), is_name("partiy")
    (True, False)
    """
    return _fits(name, _PATTERNS, _PATTERNS)


def is_word_problem(name: str) -> bool:
    """Whether `name` has the form of a group whose letters are its elements, or some of them.

    >>> is_word_problem("a4_x_z5"), is_word_problem("s5_swaps"), is_word_problem("s5_points")
    (True, True, False)
    """
    return _fits(name, (*_GROUPS, *_SUBSETS), _GROUPS)


def _fits(name: str, alone: _Patterns, factor: _Patterns) -> bool:
    """Whether a name fits a pattern of `alone`, or is a product of names that fit `factor`."""

    def one_of(patterns: _Patterns, text: str) -> bool:
        return any(re.fullmatch(pattern, text) for pattern, _ in patterns)

    key = name.strip().lower()
    parts = key.split("_x_")
    return one_of(alone, key) or (len(parts) > 1 and all(one_of(factor, part) for part in parts))


def parity() -> Machine:
    """The parity of the ones read; letters 0 and 1, output = state.

    >>> parity().run([1, 0, 1, 1]).tolist()
    [1, 1, 0, 1]
    """
    return groups.cyclic(2)


def mod_arithmetic(modulus: int = 5) -> Machine:
    """Arithmetic modulo m without brackets, `*` before `+` and `-`, digits `0 .. m-1`.

    The output is the value of the expression read so far, or -1 where it is not complete or wrong
    (an error is for ever). States: waiting for a number after `+` or `-` (the sum so far, and the
    sign; the start is after `+` with sum 0), after a number (the sum of the finished terms and the
    product of the last), after `*` (likewise), and the error sink: 2m² + 2m + 1, or 61 for m = 5;
    for m = 2 the signs agree and 11 remain. It is not minimal: waiting after a sign is the same as
    waiting after `1*` or `-1*`, so `minimal()` has 2m² + 1 states.

    The task `mod_arithmetic` asks for these outputs. Its sequences are words of this machine and
    end in a further token `=`, at which the value is asked.

    >>> machine = mod_arithmetic()
    >>> machine.num_states, machine.outputs[machine.run("2+3*4-1")].tolist()
    (61, [2, -1, 0, -1, 4, -1, 3])
    """
    if modulus < 2:
        raise ValueError(f"mod_arithmetic needs a modulus of at least 2, got {modulus}")
    m = modulus
    if (2 * m * m + 2 * m + 1) * (m + 3) > MAX_TABLE:
        raise too_large("the table of mod_arithmetic", 2 * m**3, MAX_TABLE, "use a smaller modulus")
    waiting = [("sign", total, sign) for total in range(m) for sign in sorted({1, m - 1})]
    pairs = list(_product(range(m), range(m)))
    states: list[tuple[Any, ...]] = [*waiting, *(("value", *p) for p in pairs)]
    states += [*(("times", *p) for p in pairs), ("error",)]
    number = {state: i for i, state in enumerate(states)}

    def after(state: tuple[Any, ...], letter: str) -> tuple[Any, ...]:
        kind, *numbers = state
        if kind in ("sign", "times") and letter.isdigit():
            total, factor = numbers
            return ("value", total, factor * int(letter) % m)
        if kind == "value" and not letter.isdigit():
            total, term = numbers
            if letter == "*":
                return ("times", total, term)
            return ("sign", (total + term) % m, 1 if letter == "+" else m - 1)
        return ("error",)

    alphabet = ["+", "-", "*", *map(str, range(m))]
    rows = [[number[after(state, letter)] for letter in alphabet] for state in states]
    outputs = [sum(state[1:]) % m if state[0] == "value" else -1 for state in states]
    start = number["sign", 0, 1]
    return Machine.from_table(rows, start, outputs=outputs, alphabet=alphabet)


def counter(modulus: int) -> Machine:
    """Counts letter `a` modulo m; letter `r` resets to zero.

    >>> counter(3).run("aaara").tolist()
    [1, 2, 0, 0, 1]
    """
    if modulus < 1:
        raise ValueError(f"counter needs a modulus of at least 1, got {modulus}")
    return _of_maps([[(q + 1) % modulus for q in range(modulus)], [0] * modulus], "ar")


def cerny(n: int) -> Machine:
    """The Cerny automaton C_n: `a` is an n-cycle, `b` moves state n-1 to 0 and nothing else.

    Its shortest resetting word has (n-1)^2 letters; its permutator groups are cyclic.

    >>> cerny(4).run("aaab").tolist()
    [1, 2, 3, 0]
    """
    _at_least(n, 2, "cerny")
    return _of_maps([[(q + 1) % n for q in range(n)], [*range(n - 1), 0]], "ab")


def full_transformation(n: int) -> Machine:
    """T_n: letters that generate all n^n maps of n states (cycle, swap, and a map of defect one).

    >>> full_transformation(3).num_letters
    3
    """
    _at_least(n, 2, "t")
    cycle = [(q + 1) % n for q in range(n)]
    return _of_maps([cycle, [1, 0, *range(2, n)], [0, 0, *range(2, n)]], "cst")


def dyck(kinds: int, depth: int) -> Machine:
    """Well-matched brackets of one or more kinds, nested at most so deep; the rest is a sink.

    Up to four kinds are ( [ { <, up to 26 are a closed by A and so on, beyond that (1 and )1.

    >>> dyck(1, 2).accepts("(())()"), dyck(1, 2).accepts("((()))")
    (True, False)
    """
    if kinds < 1 or depth < 1:
        raise ValueError(f"dyck needs a kind and a depth of at least 1, got {kinds}, {depth}")
    num_stacks = 1
    for _ in range(depth):
        num_stacks = num_stacks * kinds + 1
        if num_stacks * 2 * kinds > MAX_DYCK:
            raise too_large(
                "the table of a dyck machine",
                num_stacks * 2 * kinds,
                MAX_DYCK,
                "use fewer kinds or a smaller depth",
            )
    stacks = [s for d in range(depth + 1) for s in _product(range(kinds), repeat=d)]
    number = {stack: i for i, stack in enumerate(stacks)}
    sink = len(stacks)
    rows = []
    for stack in stacks:
        opened = [number.get((*stack, kind), sink) for kind in range(kinds)]
        closed = [number[stack[:-1]] if stack[-1:] == (kind,) else sink for kind in range(kinds)]
        rows.append(opened + closed)
    rows.append([sink] * (2 * kinds))
    opening, closing = _brackets(kinds)
    return Machine.from_table(rows, accepting=[0], alphabet=[*opening, *closing])


def _brackets(kinds: int) -> tuple[list[str], list[str]]:
    """Single characters while there are some: brackets, then small and capital letters."""
    if kinds <= 4:
        return list("([{<"[:kinds]), list(")]}>"[:kinds])
    if kinds <= 26:
        return list(ascii_lowercase[:kinds]), list(ascii_uppercase[:kinds])
    return [f"({i}" for i in range(1, kinds + 1)], [f"){i}" for i in range(1, kinds + 1)]


def even_a_ends_b() -> Machine:
    """Words over a, b with an even number of a that end in b.

    >>> even_a_ends_b().accepts("aab"), even_a_ends_b().accepts("ab")
    (True, False)
    """
    return Machine.from_table([[1, 2], [0, 1], [1, 2]], accepting=[2], alphabet="ab")


def _swaps(n: int) -> Machine:
    return groups.symmetric(n, groups.displacing_at_most(n, 2))


def _three_points(n: int) -> Machine:
    return groups.symmetric(n, groups.displacing_at_most(n, 3))


def _symmetric_on_points(n: int) -> Machine:
    _at_least(n, 2, "s_points")
    return _of_maps([[1, 0, *range(2, n)], [(q + 1) % n for q in range(n)]], "sc")


def _alternating_on_points(n: int) -> Machine:
    if n < 3:
        raise ValueError(f"a_points needs at least 3 points, got {n}")
    long = [(q + 1) % n for q in range(n)] if n % 2 else [0, *range(2, n), 1]
    return _of_maps([[1, 2, 0, *range(3, n)], long], "tc")


def _symmetric_with_reset(n: int) -> Machine:
    _at_least(n, 2, "s_reset")
    swap, cycle = [1, 0, *range(2, n)], [(q + 1) % n for q in range(n)]
    return _of_maps([swap, cycle, [0] * n], "scr")


def _quaternion(order: int) -> Machine:
    if order != 8:
        raise ValueError(f"the quaternion group is q8, got q{order}")
    return groups.quaternion()


def _of_maps(maps: Sequence[Sequence[int]], alphabet: str) -> Machine:
    return groups.acting(maps, alphabet)


def _at_least(n: int, least: int, what: str) -> None:
    if n < least:
        raise ValueError(f"{what} needs at least {least} states, got {n}")


_Patterns = tuple[tuple[str, Callable[..., Machine]], ...]
_GROUPS: _Patterns = (
    (r"s(\d+)", groups.symmetric),
    (r"a(\d+)", groups.alternating),
    (r"z(\d+)", groups.cyclic),
    (r"d(\d+)", groups.dihedral),
    (r"q(\d+)", _quaternion),
)
_SUBSETS: _Patterns = (
    (r"s(\d+)_swaps", _swaps),
    (r"s(\d+)_3perms", _three_points),
)
_PATTERNS: _Patterns = (
    *_GROUPS,
    *_SUBSETS,
    (r"s(\d+)_points", _symmetric_on_points),
    (r"a(\d+)_points", _alternating_on_points),
    (r"s(\d+)_reset", _symmetric_with_reset),
    (r"parity", parity),
    (r"mod_arithmetic", mod_arithmetic),
    (r"mod_arithmetic_(\d+)", mod_arithmetic),
    (r"counter_(\d+)", counter),
    (r"cerny_(\d+)", cerny),
    (r"t_(\d+)", full_transformation),
    (r"dyck_(\d+)_depth_(\d+)", dyck),
    (r"even_a_ends_b", even_a_ends_b),
)

NAMES: tuple[str, ...] = (
    "s5",
    "a5",
    "z60",
    "d10",
    "q8",
    "a4_x_z5",
    "s5_swaps",
    "s5_3perms",
    "s5_points",
    "a5_points",
    "s5_reset",
    "parity",
    "mod_arithmetic",
    "mod_arithmetic_3",
    "counter_5",
    "cerny_4",
    "t_4",
    "dyck_2_depth_2",
    "even_a_ends_b",
)
"""One name of each kind; other numbers work too."""
