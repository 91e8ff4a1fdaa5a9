"""`explain`: what can track a machine, by which theorem, and at what size."""

from __future__ import annotations

from dataclasses import dataclass

from statetrack.automata import Facts, Machine
from statetrack.compiler.driver import chosen_program, exact_programs
from statetrack.compiler.program import Cost, Program
from statetrack.compiler.rules import CAVEAT, Profile, Verdict, rules


@dataclass(frozen=True)
class Row:
    """One family of layers: its verdict and the smallest construction known here."""

    family: str
    models: str
    verdict: Verdict
    cost: Cost | None


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; `str()` of it is a page of text.

    Attributes:
        machine: the machine asked about.
        minimal: the minimal machine with the same outputs, which the verdicts speak of.
        facts: about its transition monoid.
        rows: one for each family, weakest first.
        best: the exact construction that `compile` would take, its cost and why.
    """

    machine: Machine
    minimal: Machine
    facts: Facts
    rows: tuple[Row, ...]
    best: tuple[str, Cost, str]

    def verdict(self, family: str) -> Verdict:
        """The verdict of the family whose name starts so.

        >>> explain(Machine.from_regex("(aa)*", "a")).verdict("eigenvalues in [0, 1]").answer
        'cannot'
        """
        found = [row.verdict for row in self.rows if row.family.startswith(family)]
        if len(found) != 1:
            names = "; ".join(row.family for row in self.rows)
            raise ValueError(f"{len(found)} families start with {family!r}; there are: {names}")
        return found[0]

    def text(self) -> str:
        """The explanation in words."""
        found = self.facts
        lines = [repr(self.machine)]
        if self.minimal.num_states < self.machine.num_states:
            lines.append(f"its minimal form has {self.minimal.num_states} states")
        lines.append(f"transition monoid: {_kind(found)}")
        for permutator in found.permutators[:8]:
            states = ",".join(map(str, permutator.states[:12]))
            more = ",…" if len(permutator.states) > 12 else ""
            order = permutator.group.order
            lines.append(f"  words permute the states {{{states}{more}}}: a group of order {order}")
        if len(found.permutators) > 8:
            lines.append(f"  and {len(found.permutators) - 8} more groups")
        lines.append("")
        for row in self.rows:
            lines.append(f"{row.verdict.answer.upper():7} {row.family}  ({row.models})")
            lines.append(f"        {row.verdict.reason}")
            if row.cost is not None:
                lines.append(f"        smallest built here: {row.verdict.method}, {row.cost}")
        method, cost, why = self.best
        lines += ["", f"compile takes {method}: {cost}", f"  {why}"]
        if any(row.verdict.answer == "cannot" for row in self.rows):
            lines += ["", CAVEAT]
        return "\n".join(lines)

    __str__ = text


def explain(machine: Machine) -> Explanation:
    """For each family of linear RNNs: can it track the machine, why, and how large is it.

    Verdicts are about the machine's outputs, so about its minimal form; sizes are those of the
    programs that `compile` makes for that form.

    >>> explanation = explain(Machine.from_regex("(ab)*", "ab"))
    >>> [row.verdict.answer for row in explanation.rows][:2]
    ['can', 'can']
    """
    minimal = machine.minimal()
    profile = Profile(minimal)
    programs = {program.method: program for program in exact_programs(profile)}
    rows = []
    for rule in rules():
        verdict = rule.judge(profile)
        cost = None
        if verdict.answer == "can" and verdict.method is not None:
            cost = _cost(minimal, verdict.method, programs)
        rows.append(Row(rule.family, rule.models, verdict, cost))
    program, why = chosen_program(minimal)
    return Explanation(
        machine, minimal, profile.facts, tuple(rows), (program.method, program.cost, why)
    )


def _cost(machine: Machine, method: str, programs: dict[str, Program]) -> Cost | None:
    if method not in programs:
        try:
            programs[method] = chosen_program(machine, method)[0]
        except ValueError:  # too large to build, which is no verdict
            return None
    cost: Cost = programs[method].cost
    return cost


def _kind(found: Facts) -> str:
    kinds = ["a group"] if found.is_group else []
    if found.is_aperiodic:
        kinds.append("aperiodic (star-free)")
    elif found.is_2_group:
        kinds.append("every group inside is a 2-group")
    elif found.is_solvable:
        kinds.append("every group inside is solvable")
    else:
        kinds.append("a group inside is not solvable")
    return ", ".join(kinds)
