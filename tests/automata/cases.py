"""One table of automata, words and what is known about them; the compiler's tests use it too.

The facts are those of the theory notes' oracle table, each found there by enumeration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from statetrack.automata import Machine, named


@dataclass(frozen=True, kw_only=True)
class Case:
    """A machine, what is known of its monoid and its decompositions, and words with their fate.

    `orders` are those of the non-trivial permutator groups, sorted; `one_layer` is the kind and
    dimension that `one_layer` must find, or None; `monoid` None means too large to enumerate.
    """

    name: str
    make: Callable[[], Machine]
    states: int
    monoid: int | None
    group: bool = False
    aperiodic: bool = False
    two_group: bool = False
    solvable: bool = True
    sizes: tuple[int, ...]
    orders: tuple[int, ...] = ()
    one_layer: tuple[str, int] | None = None
    accepts: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def _regex(regex: str, alphabet: str = "ab") -> Callable[[], Machine]:
    return partial(Machine.from_regex, regex, alphabet)


def _named(name: str) -> Callable[[], Machine]:
    return partial(named, name)


CASES: tuple[Case, ...] = (
    Case(
        name="(ab)*",
        make=_regex("(ab)*"),
        states=3,
        monoid=6,
        aperiodic=True,
        two_group=True,
        sizes=(2, 2),
        one_layer=("partial-injection", 2),
        accepts=("", "ab", "abab"),
        rejects=("a", "ba", "abb", "aab"),
    ),
    Case(
        name="(aa)* over a",
        make=_regex("(aa)*", "a"),
        states=2,
        monoid=2,
        group=True,
        two_group=True,
        sizes=(2,),
        orders=(2,),
        one_layer=("group", 2),
        accepts=("", "aa", "aaaa"),
        rejects=("a", "aaa"),
    ),
    Case(
        name="(aa)* over ab",
        make=_regex("(aa)*"),
        states=3,
        monoid=3,
        two_group=True,
        sizes=(3,),
        orders=(2,),
        one_layer=("partial-injection", 2),
        accepts=("", "aa"),
        rejects=("a", "b", "aab", "baa"),
    ),
    Case(
        name="a*b*",
        make=_regex("a*b*"),
        states=3,
        monoid=5,
        aperiodic=True,
        two_group=True,
        sizes=(2, 2, 2),
        accepts=("", "aab", "bb", "a"),
        rejects=("ba", "aba"),
    ),
    Case(
        name="(a|b)*ab",
        make=_regex("(a|b)*ab"),
        states=3,
        monoid=5,
        aperiodic=True,
        two_group=True,
        sizes=(2, 2),
        one_layer=("partial-injection", 2),
        accepts=("ab", "bbab", "aab"),
        rejects=("", "a", "abb", "ba"),
    ),
    Case(
        name="(a|b)*aba",
        make=_regex("(a|b)*aba"),
        states=4,
        monoid=8,
        aperiodic=True,
        two_group=True,
        sizes=(2, 2, 2),
        one_layer=("memory", 3),
        accepts=("aba", "ababa", "bbaba"),
        rejects=("", "abab", "abba"),
    ),
    Case(
        name="third letter from the end is a",
        make=_regex("(a|b)*a(a|b){2}"),
        states=8,
        monoid=15,
        aperiodic=True,
        two_group=True,
        sizes=(2, 2, 2),
        one_layer=("memory", 3),
        accepts=("abb", "baaa"),
        rejects=("", "aa", "abbb"),
    ),
    Case(
        name="(a|bb)*",
        make=_regex("(a|bb)*"),
        states=3,
        monoid=7,
        two_group=True,
        sizes=(2, 2),
        orders=(2,),
        one_layer=("partial-injection", 2),
        accepts=("", "a", "abba", "bbbb"),
        rejects=("b", "aba", "bbb"),
    ),
    Case(
        name="(ab|ba)*",
        make=_regex("(ab|ba)*"),
        states=4,
        monoid=15,
        aperiodic=True,
        two_group=True,
        sizes=(2, 2, 2),
        one_layer=("partial-injection", 3),
        accepts=("", "abba", "baab"),
        rejects=("a", "aabb"),
    ),
    Case(
        name="(aab|bba)*",
        make=_regex("(aab|bba)*"),
        states=6,
        monoid=35,
        aperiodic=True,
        two_group=True,
        sizes=(2, 2, 2, 2, 2),
        one_layer=("partial-injection", 5),
        accepts=("", "aabbba"),
        rejects=("aa", "aba"),
    ),
    Case(
        name="even a, ends in b",
        make=_named("even_a_ends_b"),
        states=3,
        monoid=5,
        two_group=True,
        sizes=(2, 2),
        orders=(2,),
        accepts=("b", "aab", "abab"),
        rejects=("", "ab", "aa", "aaba"),
    ),
    Case(
        name="counter modulo 3 with reset",
        make=_named("counter_3"),
        states=3,
        monoid=6,
        sizes=(3,),
        orders=(3,),
        one_layer=("permutation-reset", 3),
    ),
    Case(
        name="counter modulo 5 with reset",
        make=_named("counter_5"),
        states=5,
        monoid=10,
        sizes=(5,),
        orders=(5,),
        one_layer=("permutation-reset", 5),
    ),
    *(
        Case(
            name=f"Dyck-1, depth {d}",
            make=_named(f"dyck_1_depth_{d}"),
            states=d + 2,
            monoid=(d + 1) * (d + 2) * (2 * d + 3) // 6 + 1,
            aperiodic=True,
            two_group=True,
            sizes=(2,) * (d + 1),
            one_layer=("partial-injection", d + 1),
            accepts=("", "()", "(())()"),
            rejects=("(", ")", "())(", "(" * (d + 1) + ")" * (d + 1)),
        )
        for d in (2, 3, 5)
    ),
    Case(
        name="Dyck-2, depth 2",
        make=_named("dyck_2_depth_2"),
        states=8,
        monoid=60,
        aperiodic=True,
        two_group=True,
        sizes=(3, 3, 2),
        one_layer=("partial-injection", 7),
        accepts=("", "([])", "[()]()"),
        rejects=("(]", "([)]", "[", "((()))"),
    ),
    Case(
        name="S5 from a swap and a 5-cycle",
        make=_named("s5_points"),
        states=5,
        monoid=120,
        group=True,
        solvable=False,
        sizes=(5,),
        orders=(120,),
        one_layer=("group", 5),
    ),
    Case(
        name="A5 from a 3-cycle and a 5-cycle",
        make=_named("a5_points"),
        states=5,
        monoid=60,
        group=True,
        solvable=False,
        sizes=(5,),
        orders=(60,),
        one_layer=("group", 5),
    ),
    Case(
        name="S5 and a reset",
        make=_named("s5_reset"),
        states=5,
        monoid=125,
        solvable=False,
        sizes=(5,),
        orders=(120,),
        one_layer=("permutation-reset", 5),
    ),
    *(
        Case(
            name=f"Cerny C{n}",
            make=_named(f"cerny_{n}"),
            states=n,
            monoid=monoid,
            sizes=tuple(range(n, 1, -1)),
            orders=tuple(range(2, n + 1)),
        )
        for n, monoid in ((4, 128), (6, 2742), (8, 51424), (10, None))
    ),
    *(
        Case(
            name=f"T{n}, all maps of {n} points",
            make=_named(f"t_{n}"),
            states=n,
            monoid=n**n if n <= 6 else None,
            solvable=n <= 4,
            sizes=tuple(range(n, 1, -1)),
            orders=tuple(int(np.prod(range(1, m + 1))) for m in range(2, n + 1)),
        )
        for n in range(3, 9)
    ),
    Case(
        name="arithmetic modulo 2",
        make=_named("mod_arithmetic_2"),
        states=11,
        monoid=46,
        two_group=True,
        sizes=(3, 2, 3),
        orders=(2,),
    ),
    Case(
        name="arithmetic modulo 3",
        make=_named("mod_arithmetic_3"),
        states=25,
        monoid=154,
        sizes=(4, 3, 4),
        orders=(2, 3),
    ),
    Case(
        name="arithmetic modulo 5",
        make=_named("mod_arithmetic"),
        states=61,
        monoid=618,
        sizes=(4, 5, 6),
        orders=(4, 5),
    ),
    Case(
        name="S3 word problem",
        make=_named("s3"),
        states=6,
        monoid=6,
        group=True,
        sizes=(6,),
        orders=(6,),
        one_layer=("group", 6),
    ),
    Case(
        name="Q8 word problem",
        make=_named("q8"),
        states=8,
        monoid=8,
        group=True,
        two_group=True,
        sizes=(8,),
        orders=(8,),
        one_layer=("group", 8),
    ),
    Case(
        name="Z60 word problem",
        make=_named("z60"),
        states=60,
        monoid=60,
        group=True,
        sizes=(60,),
        orders=(60,),
        one_layer=("group", 60),
    ),
)


def random_machine(rng: np.random.Generator, n: int, k: int, kind: str = "uniform") -> Machine:
    """A random machine with a random accepting set; at most n states, since it is trimmed.

    Kinds: `uniform` maps, `near-permutations` (permutations, half of them spoilt in one place),
    `order-preserving` maps (these are aperiodic).
    """
    if kind == "uniform":
        delta = rng.integers(0, n, (n, k))
    elif kind == "order-preserving":
        delta = np.sort(rng.integers(0, n, (n, k)), axis=0)
    elif kind == "near-permutations":
        delta = np.stack([rng.permutation(n) for _ in range(k)], axis=1)
        for a in range(k):
            if rng.random() < 0.5:
                delta[rng.integers(n), a] = rng.integers(n)
    else:
        raise ValueError(kind)
    return Machine.from_table(delta, outputs=rng.random(n) < 0.5)


KINDS = ("uniform", "near-permutations", "order-preserving")


def random_word(rng: np.random.Generator, machine: Machine, length: int) -> NDArray[np.int64]:
    """Uniform letter numbers. Sinks swallow these words: use `lively_word` as well."""
    return rng.integers(0, machine.num_letters, length)


def lively_word(rng: np.random.Generator, machine: Machine, length: int) -> NDArray[np.int64]:
    """Random letters that avoid sinks (states that no letter leaves) wherever there is a choice."""
    delta = machine.delta
    sinks = (delta == np.arange(machine.num_states)[:, None]).all(axis=1)
    options: Sequence[NDArray[np.int64]] = [
        np.flatnonzero(~sinks[row]) if (~sinks[row]).any() else np.arange(machine.num_letters)
        for row in delta
    ]
    word = np.empty(length, dtype=np.int64)
    state = 0
    for t, draw in enumerate(rng.random(length)):
        word[t] = options[state][int(draw * len(options[state]))]
        state = int(delta[state, word[t]])
    return word
