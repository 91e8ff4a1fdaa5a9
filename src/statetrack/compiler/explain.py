"""`explain`: what can track a machine, by which theorem, and at what size."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from statetrack.automata import Facts, Machine
from statetrack.compiler.driver import Candidate, candidate_table, candidates
from statetrack.compiler.layout import Cost, Objective
from statetrack.compiler.profile import Profile
from statetrack.compiler.rules import Case, Verdict, verdicts


@dataclass(frozen=True)
class Row:
    """One family of layers: its verdict and the smallest construction known here."""

    family: str
    models: str
    verdict: Verdict

    @property
    def cost(self) -> Cost | None:
        """Of the smallest network of the family that `compile` builds."""
        return None if self.verdict.built is None else self.verdict.built.cost


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; `str()` of it is a page of text.

    Attributes:
        machine: the machine asked about.
        minimal: the minimal machine with the same outputs, which the verdicts speak of.
        facts: about its transition monoid; None where that is too large.
        unknown: why there are no facts.
        rows: one for each family, weakest first.
        candidates: what `compile(machine, minimise=True)` chooses from, cheapest first.
        as_given: the same of `compile(machine)`, where that is another machine; else None.
    """

    machine: Machine
    minimal: Machine
    facts: Facts | None
    unknown: str
    rows: tuple[Row, ...]
    candidates: tuple[Candidate, ...]
    as_given: tuple[Candidate, ...] | None

    @property
    def best(self) -> Candidate:
        """What `compile(machine, minimise=True)` takes; it has no cost where all are refused."""
        return self.candidates[0]

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

    @property
    def about(self) -> list[str]:
        """The machine and its transition monoid, a line each."""
        lines = [repr(self.machine)]
        if self.minimal.num_states < self.machine.num_states:
            lines.append(f"its minimal form has {self.minimal.num_states} states")
        return lines + _about(self.facts, self.unknown)

    def text(self) -> str:
        """The explanation in words."""
        lines = [*self.about, ""]
        for row in self.rows:
            verdict = row.verdict
            lines.append(f"{verdict.answer.upper():7} {row.family}  ({row.models})")
            source = f" ({verdict.source})" if verdict.source else ""
            evidence = "" if verdict.answer == "open" else f"{verdict.evidence}{source}: "
            lines.append(f"        {evidence}{verdict.reason}")
            if verdict.built is not None:
                lines.append(f"        smallest built here: {verdict.built}")
        lines += ["", *_takes(self.candidates, "compile", self.as_given is not None)]
        if self.as_given is not None:
            lines += ["", *_takes(self.as_given, "compile", False)]
        lines += _caveats(self.rows)
        return "\n".join(lines)

    __str__ = text

    def _repr_html_(self) -> str:
        """In a notebook: the text, with the diagram of a small machine above it."""
        drawn = self.machine._repr_svg_() or ""
        return f"{drawn}<pre>{escape(self.text())}</pre>"


def explain(machine: Machine, *, objective: Objective = "latency") -> Explanation:
    """For each family of linear RNNs: can it track the machine, why, and how large is it.

    Verdicts are about the machine's outputs, so about its minimal form. Sizes are those of the
    networks that `compile` builds, cheapest by `objective`.

    >>> explanation = explain(Machine.from_regex("(ab)*", "ab"))
    >>> [row.verdict.answer for row in explanation.rows][:2]
    ['can', 'can']
    """
    minimal = machine.minimal()
    profile = Profile(minimal)
    table = candidates(profile, objective)
    rows = [
        Row(rule.family, rule.models, verdict) for rule, verdict in verdicts(Case(profile, table))
    ]
    other = None
    if minimal.num_states < machine.num_states:
        other = candidates(Profile(machine), objective)
    return Explanation(machine, minimal, profile.facts, profile.unknown, tuple(rows), table, other)


def _takes(table: tuple[Candidate, ...], name: str, minimise: bool) -> list[str]:
    name += " with minimise=True" if minimise else ""
    best = table[0]
    if best.cost is None:
        return [f"{name} is refused: {best.refused}"]
    lines = [f"{name} takes {best}", ""]
    return lines + ["  " + line for line in candidate_table(table).splitlines()]


def _caveats(rows: tuple[Row, ...]) -> list[str]:
    """What each "cannot" rests on, said once."""
    lines = []
    for assuming in dict.fromkeys(row.verdict.assuming for row in rows):
        if assuming:
            names = "; ".join(row.family for row in rows if row.verdict.assuming == assuming)
            lines += ["", f"cannot ({names}): {assuming}"]
    return lines


def _about(found: Facts | None, unknown: str) -> list[str]:
    if found is None:
        return [f"transition monoid: not looked at; {unknown}"]
    lines = [f"transition monoid: {_kind(found)}"]
    for permutator in found.permutators[:8]:
        states = ",".join(map(str, permutator.states[:12]))
        more = ",…" if len(permutator.states) > 12 else ""
        order = permutator.group.order
        lines.append(f"  words permute the states {{{states}{more}}}: a group of order {order}")
    if len(found.permutators) > 8:
        lines.append(f"  and {len(found.permutators) - 8} more groups")
    return lines


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
