"""Tasks by name."""

import difflib
from collections.abc import Callable
from functools import lru_cache, partial

from statetrack.automata import named
from statetrack.tasks import arithmetic, groups, letters, machines
from statetrack.tasks._task import Task

_STRINGS: dict[str, Callable[..., Task]] = {
    "parity": letters.parity,
    "mod_arithmetic": arithmetic.mod_arithmetic,
    "mod_arithmetic_brackets": arithmetic.mod_arithmetic_brackets,
    "even_pairs": letters.even_pairs,
    "cycle_navigation": letters.cycle_navigation,
}
_BUILDERS: dict[str, Callable[[], Task]] = {
    **_STRINGS,
    **{f"{name}_dense": partial(build, dense=True) for name, build in _STRINGS.items()},
}
_WORD_PROBLEMS = (
    *("s5", "s5_swaps", "s5_3perms", "s5_4tokens", "z60", "z60_2tokens"),
    *("s3", "s4", "a5", "d10", "a4_x_z5"),
)
REGEX, MACHINE = "regex:", "machine:"


@lru_cache(maxsize=64)
def get(name: str) -> Task:
    """The task of that name.

    One of `available()`, any group (`s4`, `a5_x_z2`), `regex:` and an expression, or `machine:` and
    a name known to `statetrack.automata.named`.

    >>> get("parity").vocab_size, get("s5").vocab_size, get("regex:(a|b)*ab").num_classes
    (3, 127, 2)
    """
    if name in _BUILDERS:
        return _BUILDERS[name]()
    if name.startswith(REGEX):
        return machines.from_regex(name.removeprefix(REGEX))
    if name.startswith(MACHINE):
        return machines.from_machine(named(name.removeprefix(MACHINE)), name=name)
    if groups.is_group_task(name):
        return groups.word_problem(name)
    known = [*_BUILDERS, *_WORD_PROBLEMS]
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)};"
    raise ValueError(
        f"unknown task {name!r}; {hint} Groups (s4, a5_x_z2), regular expressions "
        "(regex:(a|b)*ab) and machines (machine:dyck_2_depth_3) work too"
    )


def available() -> dict[str, str]:
    """The names of the tasks with a name of their own, each with one line.

    >>> available()["parity"]
    'the parity of the bits'
    """
    return {name: get(name).summary for name in (*_BUILDERS, *_WORD_PROBLEMS)}
