"""What each family of linear RNNs can track: one table of rules, which `explain` asks.

The rules speak of finite precision and fixed depth, as docs/design/theory.md states them. Every
verdict carries its evidence: proven here (built by `compile`, or proved in docs/design), cited (a
paper is named), or open (neither a proof nor a construction is known here).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from statetrack.automata import Machine
from statetrack.compiler.driver import Candidate
from statetrack.compiler.profile import Profile
from statetrack.compiler.program import DeltaLayer

Answer = Literal["can", "cannot", "open"]
Evidence = Literal["proven here", "cited", "open"]

PAPER = "arXiv:2411.12537"
DELTA_PRODUCT = "arXiv:2502.10297"
RWKV7 = "arXiv:2503.14456"
TC0 = "arXiv:2404.08819"
DEPTH = "arXiv:2603.01959"

CAST = (
    "at any length, if products are computed exactly and then rounded to finitely many values; "
    "networks that round at every step, or tasks of bounded length, are not covered"
)


@dataclass(frozen=True)
class Verdict:
    """One family's answer for one machine.

    Attributes:
        answer: `can`, `cannot` or `open`.
        reason: the theorem or construction, in one sentence.
        evidence: `proven here`, `cited` or `open`.
        source: the paper, where it is cited.
        assuming: what a `cannot` rests on.
        built: the smallest network of the family that `compile` builds, if it builds one.
    """

    answer: Answer
    reason: str
    evidence: Evidence
    source: str = ""
    assuming: str = ""
    built: Candidate | None = None

    @property
    def method(self) -> str | None:
        """The `compile` method that builds it, if one does."""
        return None if self.built is None else self.built.method


@dataclass(frozen=True, eq=False)
class Case:
    """A machine's profile, and the networks that `compile` can build for it, cheapest first."""

    profile: Profile
    candidates: tuple[Candidate, ...]

    def built(self, fits: Callable[[Candidate], bool]) -> Candidate | None:
        """The first candidate that was built and fits."""
        return next((c for c in self.candidates if c.cost is not None and fits(c)), None)


@dataclass(frozen=True)
class Rule:
    """A family of layers.

    Attributes:
        family: its name.
        models: the layers that belong to it.
        judge: its judgement of a machine.
        inside: families that can do all that this one can, by the beginning of their names.
    """

    family: str
    models: str
    judge: Callable[[Case], Verdict]
    inside: tuple[str, ...]


def verdicts(case: Case) -> list[tuple[Rule, Verdict]]:
    """Every rule's verdict, made consistent: what a family can, every family around it can."""
    found = {rule.family: rule.judge(case) for rule in RULES}
    for rule in RULES:  # inner families stand before outer ones
        verdict = found[rule.family]
        for outer in _around(rule):
            if verdict.answer == "can" and found[outer.family].answer == "open":
                reason = f"it contains the family '{rule.family}': {verdict.reason}"
                found[outer.family] = replace(verdict, reason=reason)
            assert (verdict.answer, found[outer.family].answer) != ("can", "cannot")
    for rule in reversed(RULES):
        verdict = found[rule.family]
        for outer in _around(rule):
            if verdict.answer == "open" and found[outer.family].answer == "cannot":
                reason = f"the larger family '{outer.family}' cannot: {found[outer.family].reason}"
                found[rule.family] = replace(found[outer.family], reason=reason)
    return [(rule, found[rule.family]) for rule in RULES]


def _around(rule: Rule) -> list[Rule]:
    return [other for other in RULES if other.family.startswith(rule.inside or ("-",))]


# -- the families -------------------------------------------------------------------------------


def judge_unsigned(case: Case) -> Verdict:
    """Eigenvalues in [0, 1]: exactly the aperiodic machines."""
    profile = case.profile
    order = profile.element_order
    if order > 1 or (profile.facts is not None and not profile.facts.is_aperiodic):
        return Verdict(
            "cannot",
            f"a word acts as a permutation of order {order}, and with no eigenvalue other than 1 "
            "of modulus 1 every layer's output settles",
            "cited",
            f"theorem 1 of {PAPER}",
            CAST,
        )
    if profile.facts is None:
        return _undecided(profile)
    return Verdict(
        "can",
        "aperiodic: one register layer for each holonomy level",
        "proven here",
        built=case.built(lambda c: c.method == "diagonal"),
    )


def judge_signed(case: Case) -> Verdict:
    """Real eigenvalues in [-1, 1], diagonal or triangular: all groups inside are 2-groups."""
    profile = case.profile
    periods = {length for lengths in profile.letter_cycles for length in lengths}
    odd = any(length & (length - 1) for length in periods)
    if odd or (profile.facts is not None and not profile.facts.is_2_group):
        return Verdict(
            "cannot",
            "real eigenvalues give periods that are powers of 2, and a group inside has an "
            "element of another order",
            "cited",
            f"theorem 2 of {PAPER}",
            CAST,
        )
    if profile.facts is None:
        return _undecided(profile)
    order = profile.element_order
    depth = (
        ""
        if order <= 2
        else f"; at least {math.ceil(math.log2(order))} layers, since a word has order {order}"
    )
    return Verdict(
        "can",
        f"every group inside is a 2-group: counters ±1 and registers{depth}",
        "proven here",
        built=case.built(lambda c: c.method == "diagonal"),
    )


def judge_complex(case: Case) -> Verdict:
    """Complex diagonal, modulus at most 1."""
    facts = case.profile.facts
    if facts is None:
        return _undecided(case.profile)
    if facts.is_2_group:
        return Verdict("can", "real numbers will do: counters ±1 and registers", "proven here")
    if facts.is_solvable:
        return Verdict(
            "can",
            "every group inside is solvable: rotations of prime order and registers (not exact)",
            "cited",
            DEPTH,
        )
    return Verdict(
        "cannot",
        "a group inside is not solvable, so the word problem is NC1-complete (Barrington 1989), "
        "and diagonal layers stay in TC0",
        "cited",
        TC0,
        "unless TC0 = NC1, for numbers whose bits grow as the logarithm of the length",
    )


def judge_one_reflection(case: Case) -> Verdict:
    """One layer, one generalized Householder per token and head."""
    profile = case.profile
    period = profile.letter_period
    if period > 2:
        return Verdict(
            "cannot",
            f"a letter repeats with period {period}, and I - β k kᵀ, times a gate or not, has real "
            "eigenvalues, so period at most 2",
            "cited",
            f"theorem 2 of {PAPER} for one layer",
            CAST,
        )
    built = case.built(_one_factor)
    if built is not None:
        return Verdict("can", f"{built.way}: one factor a letter", "proven here", built=built)
    if profile.is_signs:
        reason = "the letters commute and undo themselves: a head with ±1 for each factor Z2"
        return Verdict("can", reason, "proven here")
    if profile.is_dihedral_by_mirrors:
        return Verdict("can", "each letter is a mirror of the plane (not exact)", "proven here")
    if _is_a_star_b_star(profile.machine):
        return Verdict(
            "can",
            "a code that is not injective: A(a) = I - e2 e2ᵀ and A(b) = I - k kᵀ with "
            "k = (1, -1)/√2 from (1, 0); the sink fades",
            "proven here",
        )
    return Verdict("open", "no code is known here in which every letter is one factor", "open")


def judge_one_layer(case: Case) -> Verdict:
    """One layer, any product of Householders with eigenvalues in [-1, 1]."""
    built = case.built(lambda c: c.cost is not None and c.cost.layers == 1 and _delta_only(c))
    profile = case.profile
    if profile.is_group:
        source = f"theorem 3 of {PAPER}"
        reason = "a group: permutation matrices are products of swaps"
        return Verdict("can", reason, "proven here", source, built=built)
    if built is not None:
        reason = f"{built.way}: 0/1 matrices of norm 1, and a gate of 0"
        return Verdict("can", reason, "proven here", built=built)
    if profile.rook is not None:
        reason = "permutations, partial injections and constant letters: 0/1 matrices of norm 1"
        return Verdict("can", reason, "proven here")
    if profile.memory is not None:
        reason = f"a shift register over the last {profile.memory.length} letters"
        return Verdict("can", reason, "proven here")
    return Verdict("open", "none of the known one-layer forms fits; that proves nothing", "open")


def judge_two_reflections(case: Case) -> Verdict:
    """Two layers, one reflection per token in each."""
    cyclic = case.profile.cyclic
    if cyclic is not None:
        reason = f"addition modulo {cyclic.modulus} (not exact): method 'reflections'"
        return Verdict("can", reason, "proven here", f"theorem 6 of {PAPER}")
    diagonal = case.built(
        lambda c: c.method == "diagonal" and c.cost is not None and c.cost.layers <= 2
    )
    if diagonal is not None:
        return Verdict(
            "can", "the diagonal layers: each coordinate is a head with one factor", "proven here"
        )
    return Verdict(
        "open", "known for addition modulo m and for two diagonal layers; this is neither", "open"
    )


def judge_many_reflections(case: Case) -> Verdict:
    """Any depth, one generalized Householder per token in each layer: every machine."""
    facts = case.profile.facts
    if facts is not None and facts.is_2_group:
        return Verdict("can", "each ±1 counter and each register is one factor", "proven here")
    if facts is not None and facts.is_solvable:
        return Verdict(
            "can",
            "two layers for each prime counter and registers (not exact)",
            "proven here",
            f"theorem 6 of {PAPER}",
        )
    return Verdict(
        "can",
        "four layers for the group of each level of a cascade, and registers (not exact)",
        "cited",
        DELTA_PRODUCT,
    )


def judge_rank_one(case: Case) -> Verdict:
    """Any depth, Diag(w) - κ (a∘κ)ᵀ."""
    return Verdict(
        "can",
        "every machine; where w = 1 it is one Householder in [-1, 1]",
        "cited",
        RWKV7,
    )


def judge_products(case: Case) -> Verdict:
    """Any depth, products of Householders with eigenvalues in [-1, 1]."""
    n = case.profile.machine.num_states
    layers = f"{n - 1} layers are" if n > 2 else "1 layer is"
    return Verdict(
        "can",
        f"every machine: dropping one state a layer, {layers} always enough",
        "proven here",
        f"theorem 4 of {PAPER} with its gap closed",
        built=case.built(_delta_only),
    )


def judge_dense(case: Case) -> Verdict:
    """One layer, any matrices."""
    return Verdict("can", "one 0/1 matrix for each letter, of any norm: 'dense'", "proven here")


def _undecided(profile: Profile) -> Verdict:
    return Verdict("open", f"not decided here, because it is {profile.unknown}", "open")


def _delta_only(candidate: Candidate) -> bool:
    assert candidate.program is not None
    return all(isinstance(stage.layer, DeltaLayer) for stage in candidate.program.stages)


def _one_factor(candidate: Candidate) -> bool:
    """One layer with at most one factor as built, and no gate."""
    assert candidate.program is not None and candidate.cost is not None
    layer = candidate.program.stages[0].layer
    return (
        candidate.cost.layers == 1
        and candidate.cost.householders <= 1
        and isinstance(layer, DeltaLayer)
        and all(symbol.gate == 1 for symbol in layer.symbols)
    )


def _is_a_star_b_star(machine: Machine) -> bool:
    """Whether the table is that of a*b*, whichever letter comes first."""
    tables = ([[0, 1], [2, 1], [2, 2]], [[1, 0], [1, 2], [2, 2]])
    return machine.delta.tolist() in tables


UNSIGNED = "eigenvalues in [0, 1], any depth"
SIGNED = "real diagonal or triangular in [-1, 1], any depth"
COMPLEX = "complex diagonal, modulus at most 1, any depth"
ONE_FACTOR = "one layer, one Householder in [-1, 1]"
ONE_LAYER = "one layer, products of Householders in [-1, 1]"
TWO_LAYERS = "two layers, one Householder in [-1, 1]"
DEEP = "any depth, one Householder in [-1, 1]"
RANK_ONE = "any depth, diagonal plus rank one in [-1, 1]"
PRODUCTS = "any depth, products of Householders in [-1, 1]"
DENSE = "one layer, any matrices"

RULES: tuple[Rule, ...] = (
    Rule(
        UNSIGNED,
        "Mamba, Mamba2, GLA, MLSTM, DeltaNet, GatedDeltaNet and DeltaProduct with range (0, 1)",
        judge_unsigned,
        (SIGNED, COMPLEX, DEEP, RANK_ONE, PRODUCTS),
    ),
    Rule(
        SIGNED,
        "Diagonal, Mamba, Mamba2, GLA and MLSTM with range (-1, 1)",
        judge_signed,
        (COMPLEX, DEEP, RANK_ONE, PRODUCTS),
    ),
    Rule(COMPLEX, "complex SSMs", judge_complex, ()),
    Rule(
        ONE_FACTOR,
        "DeltaNet, GatedDeltaNet",
        judge_one_reflection,
        (ONE_LAYER, TWO_LAYERS, DEEP, RANK_ONE, PRODUCTS, DENSE),
    ),
    Rule(ONE_LAYER, "DeltaProduct", judge_one_layer, (PRODUCTS, DENSE)),
    Rule(TWO_LAYERS, "DeltaNet, GatedDeltaNet", judge_two_reflections, (DEEP, RANK_ONE, PRODUCTS)),
    Rule(DEEP, "DeltaNet, GatedDeltaNet", judge_many_reflections, (RANK_ONE, PRODUCTS)),
    Rule(RANK_ONE, "RWKV7, KDA", judge_rank_one, ()),
    Rule(PRODUCTS, "DeltaProduct", judge_products, ()),
    Rule(DENSE, "FullMatrix", judge_dense, ()),
)
"""Weakest first: a family stands before those around it."""
