"""What each family of linear RNNs can track: one table, for `explain` and for `compile` alike.

The rules speak of finite precision and fixed depth, as docs/design/theory.md states them. "cannot"
is a theorem in a model where products are exact and then cast; "open" means that neither a proof
nor a construction is known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from statetrack.automata import (
    Facts,
    FiniteMemory,
    Machine,
    RookLayer,
    factors,
    facts,
    holonomy,
    one_layer,
)
from statetrack.automata.permutation_group import cycles
from statetrack.compiler.from_cyclic import Cyclic, cyclic_form
from statetrack.compiler.from_group import program_of_group
from statetrack.compiler.from_split import program_of_split

Answer = Literal["can", "cannot", "open"]

CAVEAT = (
    "cannot: at any length, if products are computed exactly and then rounded to finitely many "
    "values; networks that round at every step, or tasks of bounded length, are not covered"
)


@dataclass(frozen=True)
class Verdict:
    """One family's answer for one machine.

    Attributes:
        answer: `can`, `cannot` or `open`.
        reason: the theorem or construction, in one sentence.
        method: the `compile` method that builds it, if one does.
    """

    answer: Answer
    reason: str
    method: str | None = None


@dataclass(frozen=True, eq=False)
class Profile:
    """A machine and what the rules ask about it, each found when first asked for."""

    machine: Machine

    @cached_property
    def facts(self) -> Facts:
        return facts(self.machine)

    @cached_property
    def form(self) -> RookLayer | FiniteMemory | None:
        return one_layer(self.machine)

    @cached_property
    def cyclic(self) -> Cyclic | None:
        return cyclic_form(self.machine)

    @property
    def is_group(self) -> bool:
        """Whether every letter permutes the states."""
        n = self.machine.num_states
        return all(len(set(column)) == n for column in self.machine.delta.T.tolist())

    @cached_property
    def letter_period(self) -> int:
        """The longest cycle of states that repeating one letter runs through."""
        longest = 1
        for column in self.machine.delta.T:
            states = np.arange(self.machine.num_states)
            for _ in states:
                states = np.unique(column[states])
            for state in states.tolist():
                length, at = 1, int(column[state])
                while at != state:
                    length, at = length + 1, int(column[at])
                longest = max(longest, length)
        return longest

    @cached_property
    def element_order(self) -> int:
        """The largest order of a generator of the groups inside: a lower bound for all elements."""
        orders = [1]
        for permutator in self.facts.permutators:
            for generator in permutator.group.generators:
                orders.append(_order(generator))
        return max(orders)

    @cached_property
    def diagonal_layers(self) -> int | None:
        """How many diagonal layers `compile` needs; None if it cannot, or finds it too large."""
        if not self.facts.is_2_group:
            return None
        try:
            return len(program_of_split(holonomy(self.machine, "disjoint")).stages)
        except ValueError:
            return None

    @cached_property
    def group_householders(self) -> int:
        """The factors of the worst letter of a group, in the representation that is cheapest."""
        return program_of_group(self.machine).cost.householders

    @property
    def householders(self) -> int | None:
        """The factors of the worst letter in the one-layer form with a row for each state."""
        if not isinstance(self.form, RookLayer):
            return None
        return max(
            len(images) if reset is not None else len(factors(images))
            for images, reset in zip(self.form.maps, self.form.resets, strict=True)
        )


@dataclass(frozen=True)
class Rule:
    """A family: its name, the layers that belong to it, and its judgement of a machine."""

    family: str
    models: str
    judge: Callable[[Profile], Verdict]


def rules() -> tuple[Rule, ...]:
    """The table, weakest family first."""
    return RULES


def judge_unsigned(profile: Profile) -> Verdict:
    """Eigenvalues in [0, 1]: exactly the aperiodic machines."""
    if profile.facts.is_aperiodic:
        return Verdict("can", "aperiodic: one register layer for each holonomy level", "diagonal")
    order = profile.element_order
    return Verdict(
        "cannot",
        f"theorem 1: a word acts as a permutation of order {order}, and with no eigenvalue other "
        "than 1 of modulus 1 every layer's output settles",
    )


def judge_signed(profile: Profile) -> Verdict:
    """Real eigenvalues in [-1, 1], diagonal or triangular: all groups inside are 2-groups."""
    if profile.facts.is_2_group:
        order = profile.element_order
        depth = (
            ""
            if order <= 2
            else f"; at least {math.ceil(math.log2(order))} layers, since a word has order {order}"
        )
        return Verdict(
            "can", f"every group inside is a 2-group: counters ±1 and registers{depth}", "diagonal"
        )
    return Verdict(
        "cannot",
        "theorem 2: real eigenvalues give periods that are powers of 2, and a group inside has "
        "an element of another order",
    )


def judge_complex(profile: Profile) -> Verdict:
    """Complex diagonal, modulus at most 1."""
    if profile.facts.is_solvable:
        return Verdict(
            "can",
            "every group inside is solvable: rotations of prime order and registers (cited; "
            "rotations are not exact)",
        )
    return Verdict(
        "cannot",
        "a group inside is not solvable, so the word problem is NC1-complete (Barrington), and "
        "diagonal layers stay in TC0 (Merrill et al. 2024): cannot unless TC0 = NC1",
    )


def judge_one_reflection(profile: Profile) -> Verdict:
    """One layer, one generalized Householder per token."""
    period = profile.letter_period
    if period > 2:
        return Verdict(
            "cannot",
            f"theorem 2 for one layer: a letter repeats with period {period}, and I - β k kᵀ has "
            "real eigenvalues, so period at most 2",
        )
    if profile.is_group and profile.group_householders <= 1:
        return Verdict("can", "each letter is one swap of a few points", "group")
    if profile.householders is not None and profile.householders <= 1:
        return Verdict("can", "each letter is one factor on one row for each state", "one-layer")
    if profile.is_group and profile.machine.num_letters == 2:
        return Verdict("can", "two involutions are two mirrors of the plane (inexact)")
    return Verdict("open", "no code is known in which every letter is a single factor")


def judge_one_layer(profile: Profile) -> Verdict:
    """One layer, any product of Householders with eigenvalues in [-1, 1]."""
    if profile.is_group:
        return Verdict("can", "theorem 3: a group; see the Householders per token", "group")
    if isinstance(profile.form, RookLayer):
        kind = {
            "permutation-reset": "permutations and constant letters",
            "partial-injection": "partial injections and constant letters",
        }[profile.form.kind]
        return Verdict("can", f"{kind}: 0/1 matrices of norm 1", "one-layer")
    if isinstance(profile.form, FiniteMemory):
        length = profile.form.length
        return Verdict("can", f"a shift register over the last {length} letters", "one-layer")
    return Verdict("open", "none of the known one-layer forms fits; that proves nothing")


def judge_two_reflections(profile: Profile) -> Verdict:
    """Two layers, one reflection per token in each."""
    if profile.cyclic is not None:
        m = profile.cyclic.modulus
        return Verdict("can", f"theorem 6: addition modulo {m} (inexact)", "reflections")
    if profile.diagonal_layers is not None and profile.diagonal_layers <= 2:
        return Verdict("can", "the diagonal layers: each coordinate is a head with one factor")
    one = judge_one_reflection(profile)
    if one.answer == "can":
        return Verdict("can", f"one layer will do: {one.reason}")
    return Verdict("open", "theorem 6 speaks of addition modulo m, and this is not that")


def judge_many_reflections(profile: Profile) -> Verdict:
    """Any depth, one generalized Householder per token in each layer."""
    if profile.facts.is_2_group:
        return Verdict("can", "each ±1 counter and each register is one factor")
    if profile.facts.is_solvable:
        return Verdict("can", "theorem 6 for each prime counter, and registers (inexact)")
    if profile.is_group:
        return Verdict("can", "four layers for any group (DeltaProduct paper; cited)")
    return Verdict("open", "known for groups and for solvable machines")


def judge_products(profile: Profile) -> Verdict:
    """Any depth, products of Householders with eigenvalues in [-1, 1]."""
    n = profile.machine.num_states
    return Verdict(
        "can",
        f"theorem 4 with its gap closed: every machine, in at most {max(1, n - 1)} "
        f"layer{'s' if n > 2 else ''}",
        "cascade",
    )


def judge_dense(profile: Profile) -> Verdict:
    """One layer, any matrices."""
    return Verdict("can", "one 0/1 matrix for each letter, of any norm", "dense")


RULES: tuple[Rule, ...] = (
    Rule(
        "eigenvalues in [0, 1], any depth",
        "Mamba, Mamba2, GLA, mLSTM, DeltaNet and DeltaProduct with range (0, 1)",
        judge_unsigned,
    ),
    Rule(
        "real diagonal or triangular in [-1, 1], any depth",
        "Diagonal, Mamba, Mamba2, GLA with range (-1, 1)",
        judge_signed,
    ),
    Rule("complex diagonal, modulus at most 1, any depth", "complex SSMs", judge_complex),
    Rule("one layer, one Householder in [-1, 1]", "DeltaNet", judge_one_reflection),
    Rule("one layer, products of Householders in [-1, 1]", "DeltaProduct", judge_one_layer),
    Rule("two layers, one Householder in [-1, 1]", "DeltaNet", judge_two_reflections),
    Rule("any depth, one Householder in [-1, 1]", "DeltaNet", judge_many_reflections),
    Rule("any depth, products of Householders in [-1, 1]", "DeltaProduct", judge_products),
    Rule("one layer, any matrices", "FullMatrix", judge_dense),
)

METHOD_RULES: dict[str, Callable[[Profile], Verdict]] = {
    "diagonal": judge_signed,
    "reflections": judge_two_reflections,
    "rotation": judge_two_reflections,
    "one-layer": judge_one_layer,
    "cascade": judge_products,
    "dense": judge_dense,
}
"""The rule that must say "can" before `compile` takes a method; `group` asks for a group."""


def _order(permutation: tuple[int, ...]) -> int:
    return math.lcm(*(len(cycle) for cycle in cycles(permutation)))
