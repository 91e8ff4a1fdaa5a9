"""Verdicts against what is known of each case, and the corrections to the paper as tests."""

import numpy as np
import pytest
import torch

from statetrack.automata import Machine, groups, named, read
from statetrack.compiler import compile, explain
from statetrack.compiler.profile import Profile
from statetrack.compiler.rules import RULES
from tests.automata.cases import CASES, KINDS, Case, random_machine


@pytest.mark.parametrize("case", CASES, ids=str)
def test_verdicts_follow_from_the_monoid(case: Case) -> None:
    """The oracle table's facts, seen through the rules; minimising changes none of them."""
    machine = case.make()
    found = explain(machine)
    answer = {row.family: row.verdict.answer for row in found.rows}
    assert len(answer) == len(RULES)

    def says(family: str) -> str:
        return found.verdict(family).answer

    assert says("eigenvalues in [0, 1]") == ("can" if case.aperiodic else "cannot")
    assert says("real diagonal") == ("can" if case.two_group else "cannot")
    assert says("complex diagonal") == ("can" if case.solvable else "cannot")
    known = case.one_layer or case.group or case.name == "a*b*"  # by a code that is not injective
    assert says("one layer, products") == ("can" if known else "open")
    assert says("any depth, products") == "can"
    assert says("one layer, any matrices") == "can"


def test_every_can_with_a_method_compiles_and_every_cannot_refuses() -> None:
    """One table for both: what explain promises, compile builds; what it denies, it refuses."""
    for case in CASES[:20]:
        machine = case.make()
        for row in explain(machine).rows:
            if row.verdict.method is not None:
                assert row.verdict.answer == "can"
                assert row.cost is not None
                network = compile(machine, row.verdict.method)
                assert network.plan.method == row.verdict.method
        if not case.two_group:
            with pytest.raises(ValueError, match="theorem 2"):
                compile(machine, "diagonal")


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("s5_swaps", "can"),  # on 120 states a swap is 60 swaps, on 5 points it is one
        ("d5", "cannot"),  # its letters include the rotations
        ("z3", "cannot"),
        ("a5_points", "cannot"),
        ("parity", "can"),
    ],
)
def test_one_layer_with_one_householder(name: str, answer: str) -> None:
    assert explain(named(name)).verdict("one layer, one Householder").answer == answer


def test_two_mirrors_are_dihedral() -> None:
    mirrors = groups.dihedral(5, generators=[5, 6])
    verdict = explain(mirrors).verdict("one layer, one Householder")
    assert verdict.answer == "can" and "mirror" in verdict.reason


def test_sizes_of_arithmetic_modulo_5() -> None:
    found = explain(named("mod_arithmetic"))
    assert found.minimal.num_states == 51
    assert found.best.method == "cascade" and found.best.cost is not None
    assert found.best.cost.layers == 3
    assert sorted(p.group.order for p in found.facts.permutators) == [4, 5]


def test_depth_of_signed_diagonal_models_is_bounded_by_the_order() -> None:
    reason = explain(groups.cyclic(8)).verdict("real diagonal").reason
    assert "at least 3 layers" in reason
    assert len(compile(groups.cyclic(8), "diagonal").stages) == 3


def test_text_names_theorems_and_the_caveat() -> None:
    text = str(explain(read("(aa)*")))
    assert "CANNOT  eigenvalues in [0, 1]" in text and "theorem 1" in text
    assert "rounded to finitely many values" in text
    assert "CANNOT" not in str(explain(read("(ab)*")))
    assert "its minimal form has 51 states" in str(explain(named("mod_arithmetic")))


def test_explanations_speak_of_the_minimal_machine() -> None:
    padded = Machine.from_table([[1], [2], [3], [0]], outputs=[0, 1, 0, 1])
    assert explain(padded).minimal.num_states == 2
    assert explain(padded).verdict("real diagonal").answer == "can"


def test_unknown_family_is_refused() -> None:
    with pytest.raises(ValueError, match="0 families start with 'nonlinear'"):
        explain(named("parity")).verdict("nonlinear")


def test_profile_finds_the_period_of_letters() -> None:
    assert Profile(named("cerny_6")).letter_period == 6
    assert Profile(Machine.from_regex("(ab)*", "ab")).letter_period == 1
    assert Profile(named("dyck_1_depth_3")).letter_period == 1


# -- no sentence that is not true ---------------------------------------------------------------


def random_tables(count: int) -> list[Machine]:
    rng = np.random.default_rng(0)
    return [random_machine(rng, 2 + i % 5, 2, KINDS[i % 3]) for i in range(count)]


def test_nested_families_never_contradict_each_other() -> None:
    """What a family can, every family around it can; the case that once failed comes first."""
    swaps = [[1, 0, 0, 0, 0], [0, 2, 1, 1, 1], [2, 1, 3, 2, 2], [3, 3, 2, 4, 3]]
    swaps += [[4, 4, 4, 3, 5], [5, 5, 5, 5, 5]]
    for machine in (Machine.from_table(swaps), *random_tables(30)):
        found = {row.family: row.verdict for row in explain(machine).rows}
        for rule in RULES:
            for outer in rule.inside:
                pair = (found[rule.family].answer, found[outer].answer)
                assert pair not in (("can", "open"), ("can", "cannot"), ("open", "cannot")), pair


def test_every_verdict_carries_its_evidence() -> None:
    for machine in (named("s5"), read("a*b*"), named("mod_arithmetic"), *random_tables(10)):
        for row in explain(machine).rows:
            verdict = row.verdict
            assert (verdict.evidence == "open") == (verdict.answer == "open")
            if verdict.evidence == "cited":
                assert "arXiv:" in verdict.source
            assert bool(verdict.assuming) == (verdict.answer == "cannot")


@pytest.mark.parametrize(
    "machine",
    [
        Machine.from_table([[1, 0], [1, 0]]),
        Machine.from_table([[0, 1, 2]] * 3),  # the last of three letters
        read("a*b*"),
        groups.dihedral(5, generators=[5, 6, 7, 8, 9]),  # all mirrors
        groups.direct_product(groups.cyclic(2), groups.cyclic(2)),  # two heads of ±1
    ],
    ids=str,
)
def test_codes_that_are_known(machine: Machine) -> None:
    verdict = explain(machine).verdict("one layer, one Householder")
    assert (verdict.answer, verdict.evidence) == ("can", "proven here")
    if verdict.built is not None:
        assert verdict.built.cost is not None and verdict.built.cost.householders <= 1


def test_two_heads_of_signs_follow_klein_four() -> None:
    """The construction that the verdict names, in full."""
    machine = groups.direct_product(groups.cyclic(2), groups.cyclic(2))
    word = np.random.default_rng(0).integers(0, 4, 100)
    heads = np.cumprod(np.where(word[:, None] >> np.array([1, 0]) & 1, -1, 1), axis=0)
    states = (heads[:, 0] < 0) * 2 + (heads[:, 1] < 0)
    assert (states == machine.run(word)).all()


def test_families_of_rwkv7_gated_deltanet_and_signed_mlstm() -> None:
    text = str(explain(named("s5")))
    for name in ("RWKV7, KDA", "GatedDeltaNet", "MLSTM with range (-1, 1)", "arXiv:2411.12537"):
        assert name in text


def test_a_conditional_cannot_has_its_own_caveat() -> None:
    found = explain(named("s5"))
    assert "TC0 = NC1" in found.verdict("complex").assuming
    assert "TC0" not in found.verdict("real diagonal").assuming


def test_rows_that_need_no_monoid_answer_where_it_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("statetrack.automata.images.MAX_IMAGE_BITS", 40)
    machine = named("cerny_6")
    found = explain(machine)
    assert found.facts is None and "not looked at" in str(found)
    assert found.verdict("eigenvalues in [0, 1]").answer == "cannot"
    assert found.verdict("real diagonal").answer == "cannot"
    assert found.verdict("complex").answer == "open"
    assert found.verdict("one layer, one Householder").answer == "cannot"
    assert found.verdict("any depth, products").answer == "can"


def test_explain_tells_what_compile_takes_as_given_and_minimised() -> None:
    six = Machine.from_table([[1], [2], [3], [4], [5], [0]], outputs=[0, 1, 0, 1, 0, 1])
    found = explain(six)
    assert found.best.cost == compile(six, minimise=True).plan.cost
    assert found.as_given is not None and found.as_given[0].cost == compile(six).plan.cost
    text = str(found)
    assert "compile with minimise=True takes diagonal" in text and "compile takes group" in text


@pytest.mark.slow
def test_s6_is_explained_on_six_points() -> None:
    found = explain(named("s6"))
    assert found.best.way == "on 6 points"


@pytest.mark.slow
def test_a_long_row_of_letters_is_explained() -> None:
    """It took more than a minute."""
    found = explain(read("(a?){2000}"))
    assert found.minimal.num_states == 2002 and "one layer, any matrices" in str(found)


# -- corrections to the paper -------------------------------------------------------------------


def test_e3_products_of_three_factors_in_0_1_can_have_complex_eigenvalues() -> None:
    """Proposition 1.3's last clause is false from three factors on; |λ| < 1 or λ = 1 remains."""
    matrix = np.eye(2)
    for degrees in (0, 60, 120):
        v = np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])
        matrix = (np.eye(2) - 0.8 * np.outer(v, v)) @ matrix
    values = np.linalg.eigvals(matrix)
    assert np.abs(values.imag).max() == pytest.approx(0.053, abs=5e-4)
    assert values.real[0] == pytest.approx(0.072, abs=5e-4)
    assert np.abs(values).max() < 1
    matrix = np.eye(2)
    for degrees in (0, 60, 120):
        v = np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])
        matrix = (np.eye(2) - np.outer(v, v)) @ matrix
    assert np.linalg.eigvals(matrix).real.min() == pytest.approx(-1 / 8)


def test_e3_two_factors_in_0_1_have_real_eigenvalues() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        matrix = np.eye(3)
        for _ in range(2):
            v = rng.normal(size=3)
            matrix = (np.eye(3) - rng.random() * np.outer(v, v) / (v @ v)) @ matrix
        assert np.abs(np.linalg.eigvals(matrix).imag).max() < 1e-6


def test_e5_n_minus_1_layers_are_enough() -> None:
    for n in (3, 5, 7):
        assert len(compile(named(f"t_{n}"), "cascade").stages) == n - 1


def test_non_injective_code_of_a_star_b_star_in_one_layer() -> None:
    """The one-layer forms are sufficient, not necessary: no "needs two layers" may follow."""
    machine = Machine.from_regex("a*b*", "ab")
    for family in ("one layer, one Householder", "one layer, products"):
        verdict = explain(machine).verdict(family)
        assert (verdict.answer, verdict.evidence) == ("can", "proven here")
    first = torch.eye(2) - torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    u = torch.tensor([1.0, -1.0])
    second = torch.eye(2) - 0.5 * u[:, None] * u[None, :]
    for word in ("aabb", "bbb", "abab", "ba", "aaaa", "abbabab"):
        h = torch.tensor([1.0, 0.0])
        for letter, state in zip(word, machine.run(word).tolist(), strict=True):
            h = (first if letter == "a" else second) @ h
            code = {(1.0, 0.0): 0, (0.5, 0.5): 1}
            assert code.get(tuple(h.tolist()), 2) == state
