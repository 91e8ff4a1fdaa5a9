"""The passes in order: machine -> one-layer form or cascade -> `Program`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from statetrack.automata import Cascade, Machine, RookLayer, drop_point, holonomy
from statetrack.compiler.from_cascade import program_of_cascade
from statetrack.compiler.from_cyclic import program_of_reflections, program_of_rotations
from statetrack.compiler.from_group import program_of_group
from statetrack.compiler.from_one_layer import program_of_memory, program_of_rook_layer
from statetrack.compiler.from_split import program_of_split
from statetrack.compiler.from_table import program_of_table
from statetrack.compiler.program import Program
from statetrack.compiler.rules import METHOD_RULES, Profile

METHODS = (
    "auto",
    "group",
    "one-layer",
    "cascade",
    "diagonal",
    "dense",
    "rotation",
    "reflections",
)

MAX_DROP_POINT = 14
"""States up to which the drop-a-point cascade is tried beside the holonomy cascade; beyond, it is
tried where that is too large."""

MAX_EXTRA = 64
"""States up to which diagonal layers are tried although one layer of another kind is known."""


def compile_program(machine: Machine, method: str = "auto") -> Program:
    """What `compile` lowers to weights: the same network in numpy, with a name for each direction.

    >>> compile_program(Machine.from_regex("(ab)*", "ab")).stages[0].layer.directions
    ('state 0', 'state 1', 'one')
    """
    return chosen_program(machine, method)[0]


def chosen_program(machine: Machine, method: str = "auto") -> tuple[Program, str]:
    """The program and why it was taken."""
    if method not in METHODS:
        raise ValueError(f"method={method!r} is not one of {', '.join(METHODS)}")
    profile = Profile(machine)
    if method != "auto":
        best, why = _of_method(profile, method), "asked for"
    else:
        found = exact_programs(profile)
        best = min(found, key=lambda program: program.cost.key)
        others = [f"{p.method}: {p.cost}" for p in found if p is not best]
        why = "nothing else that is exact fits as well"
        if others:
            why = f"it is the cheapest of the exact ones ({'; '.join(others)})"
    return best, f"{why}; {best.note}" if best.note else why


def exact_programs(profile: Profile) -> list[Program]:
    """One program for each exact method that fits, `dense` left out; cascades only if needed.

    A cascade has a layer for each level, so it is not built where one layer does.
    """
    found = []
    if profile.is_group:
        found.append(_of_method(profile, "group"))
    elif profile.form is not None:
        found += _attempt(lambda: _of_method(profile, "one-layer"))
    if not found or profile.machine.num_states <= MAX_EXTRA:
        found += _attempt(lambda: _of_method(profile, "diagonal"))
    if not any(program.cost.layers == 1 for program in found):
        found.append(_of_method(profile, "cascade"))
    return found


def _attempt(make: Callable[[], Program]) -> list[Program]:
    """A program, or none where it does not fit or is too large."""
    try:
        return [make()]
    except ValueError:
        return []


def _of_method(profile: Profile, method: str) -> Program:
    machine = profile.machine
    if method == "group":
        if not profile.is_group:
            raise ValueError(
                f"method='group' needs letters that permute the states, and {machine!r} has one "
                "that does not; use method='auto'"
            )
        return program_of_group(machine)
    verdict = METHOD_RULES[method](profile)
    if method in ("rotation", "reflections") and profile.cyclic is None:
        raise ValueError(
            f"method={method!r} is for addition modulo m, and {machine!r} is something else"
        )
    if verdict.answer != "can":
        raise ValueError(f"method={method!r} does not fit {machine!r}: {verdict.reason}")
    if method == "one-layer":
        form = profile.form
        assert form is not None
        if isinstance(form, RookLayer):
            return program_of_rook_layer(machine, form)
        return program_of_memory(form)
    if method == "cascade":
        return _cheaper_cascade(machine)
    if method == "diagonal":
        return program_of_split(holonomy(machine, "disjoint"))
    if method == "rotation":
        return program_of_rotations(machine)
    if method == "reflections":
        return program_of_reflections(machine)
    return program_of_table(machine)


def _cheaper_cascade(machine: Machine) -> Program:
    """Holonomy often has fewer levels, drop-a-point never more than n - 1."""
    found: list[Program] = []
    problem = ""
    ways: dict[str, Callable[[Machine], Cascade]] = {
        "holonomy": holonomy,
        "dropping points": drop_point,
    }
    for name, decompose in ways.items():
        if found and machine.num_states > MAX_DROP_POINT:
            break
        try:
            program = program_of_cascade(decompose(machine))
        except ValueError as error:
            problem = problem or str(error)
            continue
        because = f", because holonomy is {problem}" if not found and problem else ""
        found.append(replace(program, note=f"decomposed by {name}{because}"))
    if not found:
        raise ValueError(f"{problem}, or method='dense'")
    return min(found, key=lambda program: program.cost.key)
