"""The passes in order: machine -> one-layer form or cascade -> `Program`; and the cheapest of them.

Each method has one or more ways. `candidates` tries all that can be the cheapest, and says of the
others why they were left out; `compile` takes the first that is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from statetrack.automata import Machine, drop_point, holonomy
from statetrack.automata.limits import MAX_IMAGES
from statetrack.compiler.from_cascade import program_of_cascade
from statetrack.compiler.from_cyclic import program_of_reflections, program_of_rotations
from statetrack.compiler.from_group import program_on_few_points
from statetrack.compiler.from_one_layer import program_of_memory, program_of_rook_layer
from statetrack.compiler.from_split import program_of_split
from statetrack.compiler.from_table import program_of_table
from statetrack.compiler.layout import (
    LAYER_STEPS,
    MAX_WEIGHTS,
    OBJECTIVES,
    Cost,
    Objective,
    layout_of,
    total,
)
from statetrack.compiler.profile import Profile
from statetrack.compiler.program import Program

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

HOLONOMY = "by holonomy"
DROPPING = "by dropping points"

LEAST_PARAMETERS = 50
"""Fewer weights than any layer of a cascade has."""

QUICK_IMAGES = 2**9
"""Image sets, besides the single states, up to which cascades and diagonal layers are tried where
one layer is known."""


QUICK_DROPPING = 16
"""States up to which dropping points is tried where another way is known."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to compile a machine.

    Attributes:
        method: of `METHODS`.
        way: which of the method's ways.
        program, cost: what it gives; None if it does not fit, or was left out.
        refused: why not.
    """

    method: str
    way: str
    program: Program | None
    cost: Cost | None
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.method}, {self.way}: {self.cost or self.refused}"


Way = tuple[str, str, Callable[[], Program]]
"""A method, its way, and what makes the program; it raises `ValueError` where it does not fit."""


def compile_program(
    machine: Machine,
    method: str = "auto",
    *,
    objective: Objective = "latency",
    minimise: bool = False,
) -> Program:
    """What `compile` lowers to weights: the same network in numpy, with a name for each direction.

    >>> compile_program(Machine.from_regex("(ab)*", "ab")).stages[0].layer.directions
    ('state 0', 'state 1', 'one')
    """
    profile = Profile(machine.minimal() if minimise else machine)
    program = chosen(profile, method, objective)[0].program
    assert program is not None
    return program


def chosen(
    profile: Profile, method: str, objective: Objective
) -> tuple[Candidate, str, tuple[Candidate, ...]]:
    """The candidate that is taken, why, and all that were looked at."""
    if method not in METHODS:
        raise ValueError(f"method={method!r} is not one of {', '.join(METHODS)}")
    if objective not in OBJECTIVES:
        raise ValueError(f"objective={objective!r} is not one of {', '.join(OBJECTIVES)}")
    if method == "auto":
        table = candidates(profile, objective)
    else:
        table = _sorted([_tried(way) for way in _ways(profile, method)], objective)
    best = table[0]
    if best.cost is None:
        # a way that fits and is too large says more than one that does not fit
        refusals = sorted((c.refused for c in table), key=lambda r: not r.startswith("too large"))
        raise ValueError(_refusal(refusals[0], machine=profile.machine, method=method))
    built = [candidate for candidate in table if candidate.cost is not None]
    if method != "auto":
        return best, f"asked for; {best.way}", table
    if len(built) == 1:
        return best, f"{best.way}; nothing else that is exact fits as well", table
    why = f"{best.way}; by {objective} it is the cheapest of {len(built)} exact candidates"
    return best, why, table


def _refusal(reason: str, machine: Machine, method: str) -> str:
    """Why nothing was built, with ways out that exist."""
    if method == "dense" or not reason.startswith("too large"):
        return reason
    grown, outs = reason.partition(";")[0], []
    smaller = machine.minimal().num_states
    if smaller < machine.num_states:
        outs.append(f"minimise=True leaves {smaller} of its {machine.num_states} states")
    if method != "auto" and 2 * machine.num_states**2 * max(machine.delta.shape) <= MAX_WEIGHTS:
        outs.append("method='dense' takes it")
    return "; ".join([grown, *(outs or ["use a machine with fewer states or letters"])])


def candidates(profile: Profile, objective: Objective = "latency") -> tuple[Candidate, ...]:
    """Every exact way to compile a machine but `dense`, cheapest first; `dense` where no other is.

    Ways that cannot be the cheapest are named and not built.

    >>> from statetrack.automata import groups
    >>> [str(c.cost) for c in candidates(Profile(groups.cyclic(2)))][0]
    '1 layer, width 1, 40 parameters'
    """
    first = "group" if profile.is_group else "one-layer"
    found = [_tried(way) for way in _ways(profile, first)]
    single = [candidate.cost for candidate in found if candidate.cost is not None]
    images = QUICK_IMAGES + profile.machine.num_states if single else MAX_IMAGES
    found += [_tried(way) for way in _ways(profile, "diagonal", images)]
    for way in _ways(profile, "cascade", images):
        levels = 1 if way[1] == HOLONOMY else profile.machine.num_states - 1
        if any(c.cost is not None and _not_above(c.cost, levels, objective) for c in found):
            refused = "not built: it cannot cost less than what is known"
            found.append(Candidate(way[0], way[1], None, None, refused))
        elif (
            way[1] == DROPPING
            and profile.machine.num_states > QUICK_DROPPING
            and any(candidate.cost is not None for candidate in found)
        ):
            refused = f"not built: above {QUICK_DROPPING} states only where nothing else fits"
            found.append(Candidate(way[0], way[1], None, None, refused))
        else:
            found.append(_tried(way))
    if all(candidate.cost is None for candidate in found):
        found += [_tried(way) for way in _ways(profile, "dense")]
    return _sorted(found, objective)


def candidate_table(table: tuple[Candidate, ...]) -> str:
    """The candidates as text, a line each."""
    head = ("method", "way", "layers", "width", "Householders", "steps", "parameters", "flops")
    rows: list[tuple[str, ...]] = [head]
    for candidate in table:
        cost = candidate.cost
        if cost is not None:
            numbers = (cost.layers, cost.width, cost.householders, cost.steps, cost.parameters)
            rows.append((candidate.method, candidate.way, *map(str, (*numbers, cost.flops))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for i, names in enumerate(zip(*((c.method, c.way) for c in table), strict=True)):
        widths[i] = max(widths[i], *map(len, names))
    lines = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)) for row in rows]
    lines += [
        f"{candidate.method.ljust(widths[0])}  {candidate.way.ljust(widths[1])}  "
        f"{candidate.refused}"
        for candidate in table
        if candidate.cost is None
    ]
    return "\n".join(line.rstrip() for line in lines)


def _not_above(cost: Cost, layers: int, objective: Objective) -> bool:
    """Whether a cascade of so many layers cannot be cheaper: each has two labels, or more."""
    if objective == "layers":
        return cost.layers < layers
    if objective == "latency":
        return cost.steps <= layers * (LAYER_STEPS + 1)
    least = LEAST_PARAMETERS * layers
    return (cost.parameters if objective == "parameters" else cost.flops // 2) <= least


def _sorted(found: list[Candidate], objective: Objective) -> tuple[Candidate, ...]:
    built = [c for c in found if c.cost is not None]
    built.sort(key=lambda c: c.cost.key(objective) if c.cost is not None else ())
    return (*built, *(c for c in found if c.cost is None))


def _tried(way: Way) -> Candidate:
    """What a way gives: its program with the cost as built, or why there is none."""
    method, name, make = way
    try:
        program = make()
        layouts = [layout_of(stage.layer) for stage in program.stages]
        for layout in layouts:
            layout.check()
    except ValueError as error:
        return Candidate(method, name, None, None, str(error))
    return Candidate(method, program.note or name, program, total(layouts))


def _ways(profile: Profile, method: str, images: int = MAX_IMAGES) -> list[Way]:
    machine = profile.machine
    if method in ("group", "one-layer"):
        ways: list[Way] = [
            (method, "a row for each state", partial(_on_states, profile, method)),
            (method, "on few points", partial(program_on_few_points, machine, method)),
        ]
        if method == "one-layer":
            ways.append((method, "a shift register", partial(_memory, profile)))
        return ways
    if method == "diagonal":
        return [(method, "counters and registers", partial(_diagonal, profile, images))]
    if method == "cascade":
        return [
            (method, HOLONOMY, partial(_holonomy, profile, images)),
            (method, DROPPING, lambda: program_of_cascade(drop_point(machine))),
        ]
    if method == "dense":
        return [(method, "a matrix for each letter", partial(program_of_table, machine))]
    make = program_of_rotations if method == "rotation" else program_of_reflections
    return [(method, "of the plane", partial(make, machine))]


def _on_states(profile: Profile, method: str) -> Program:
    if method == "group" and not profile.is_group:
        raise ValueError(
            f"method='group' needs letters that permute the states, and {profile.machine!r} has "
            "one that does not; use method='auto'"
        )
    if profile.rook is None:
        raise ValueError(
            f"method='one-layer' does not fit {profile.machine!r}: none of the known one-layer "
            "forms fits; that proves nothing"
        )
    return program_of_rook_layer(profile.machine, profile.rook, method)


def _memory(profile: Profile) -> Program:
    if profile.memory is None:
        raise ValueError(f"{profile.machine!r} remembers for ever: it is no shift register")
    return program_of_memory(profile.memory)


def _holonomy(profile: Profile, images: int) -> Program:
    if profile.too_many_images:
        raise ValueError(profile.unknown)
    return program_of_cascade(holonomy(profile.machine, limit=images))


def _diagonal(profile: Profile, images: int) -> Program:
    facts = profile.facts
    if facts is None:
        raise ValueError(profile.unknown)
    if not facts.is_2_group:
        raise ValueError(
            f"method='diagonal' does not fit {profile.machine!r}: by theorem 2 real eigenvalues "
            "give periods that are powers of 2, and a group inside has an element of another order"
        )
    return program_of_split(holonomy(profile.machine, "disjoint", limit=images))
