"""Tasks by name, by machine and by spec."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from statetrack._suggest import did_you_mean
from statetrack.automata import Machine, is_name, looks_like_a_name, source, table_of
from statetrack.automata.named import NAMES
from statetrack.automata.sources import MACHINE, OVER, REGEX
from statetrack.tasks import arithmetic, groups, letters, machines
from statetrack.tasks._task import Task, found_by
from statetrack.tasks.applied.boxes import boxes
from statetrack.tasks.applied.chess import chess
from statetrack.tasks.applied.cube import cube
from statetrack.tasks.applied.flip_flop import flip_flop
from statetrack.tasks.applied.lights_out import lights_out
from statetrack.tasks.applied.mqar import mqar, mqar_forgetting
from statetrack.tasks.applied.repl import COINS, repl
from statetrack.tasks.applied.selective_copying import selective_copying

_STRINGS: dict[str, Callable[..., Task]] = {
    "parity": letters.parity,
    "mod_arithmetic": arithmetic.mod_arithmetic,
    "mod_arithmetic_brackets": arithmetic.mod_arithmetic_brackets,
    "even_pairs": letters.even_pairs,
    "cycle_navigation": letters.cycle_navigation,
}
_REPL: dict[str, Callable[..., Task]] = {
    "repl_1": partial(repl, 1),
    "repl_2": partial(repl, 2),
    "repl_3": partial(repl, 3),
    "repl_4": partial(repl, 4),
    **{f"repl_5_{coin}": partial(repl, 5, p=p) for p, coin in COINS.items()},
}
_APPLIED: dict[str, Callable[[], Task]] = {
    **_REPL,
    **{f"{name}_silent": partial(build, silent=True) for name, build in _REPL.items()},
    "boxes": partial(boxes, "swap"),
    "boxes_mixed": partial(boxes, "mixed"),
    "boxes_no_swap": partial(boxes, "no_swap"),
    "chess": chess,
    "cube": cube,
    "lights_out": lights_out,
    "lights_out_5x5": partial(lights_out, 5),
    "mqar": mqar,
    "mqar_forgetting": mqar_forgetting,
    "mqar_256": partial(mqar, 256),
    "mqar_forgetting_256": partial(mqar_forgetting, 256),
    "flip_flop": flip_flop,
    "flip_flop_i98": partial(flip_flop, 0.98),
    "flip_flop_i10": partial(flip_flop, 0.1),
    "selective_copying": selective_copying,
}
_BUILDERS: dict[str, Callable[[], Task]] = {
    **_STRINGS,
    **{f"{name}_dense": partial(build, dense=True) for name, build in _STRINGS.items()},
    **_APPLIED,
}
_WORD_PROBLEMS = (
    *("s5", "s5_swaps", "s5_3perms", "s5_4tokens", "z60", "z60_2tokens"),
    *("s3", "s4", "a5", "d10", "a4_x_z5"),
)
_REGISTERED: dict[str, Task] = {}


def get(what: str | Path | Task | Machine | Mapping[str, Any]) -> Task:
    """The task that `what` means.

    - a name: one of `available()`, or any group (`s4`, `a5_x_z2`), which is its word problem;
    - any other text that `automata.read` reads: the name of a machine (`counter_5`), the path of a
      JSON table (`my.json`), a regular expression (`regex:(a|b)*ab`, `regex:(aa)* over ab`). The
      task is to say the machine's output; `machine:` and `regex:` in front may be left out where
      it is clear what is meant;
    - a machine, as for `from_machine`, or the `spec` of a task;
    - a task, which is returned. One with a sampler of your own is registered.

    >>> get("parity").vocab_size, get("s5").vocab_size, get("regex:(a|b)*ab").num_classes
    (3, 127, 2)
    >>> get("counter_5").name
    'machine:counter_5'
    """
    if isinstance(what, Task):
        return _known(what)
    if isinstance(what, Machine):
        return _built(json.dumps({"machine": table_of(what)}))
    if isinstance(what, Mapping):
        return _built(_json(what))
    text = str(what).strip()
    return _REGISTERED[text] if text in _REGISTERED else _of_text(text)


def register(task: Task) -> Task:
    """Makes a task known by its name: to `get`, so to every config and to the command line.

    Register it in each process that uses it, before the first config with its name. The name must
    be new, and one that cannot be read as a machine or a regular expression.
    """
    if _REGISTERED.get(task.name) is task:
        return task
    if not task.name or not looks_like_a_name(task.name):
        raise ValueError(
            f"a task cannot be called {task.name!r}, which reads as a regular expression, a file "
            "or a machine; use letters, digits, - and _"
        )
    name = task.name.lower()
    if task.name in _REGISTERED or _is_ours(name):
        raise ValueError(f"there is a task {task.name!r} already; give yours another name")
    _REGISTERED[task.name] = task
    return task


def is_registered(name: str) -> bool:
    """Whether `register` was given a task of that name."""
    return name in _REGISTERED


def available() -> dict[str, str]:
    """The names of the tasks with a name of their own, each with one line.

    >>> available()["parity"]
    'the parity of the bits'
    """
    return {name: get(name).summary for name in (*_BUILDERS, *_WORD_PROBLEMS, *_REGISTERED)}


def _is_ours(name: str) -> bool:
    return name in _BUILDERS or groups.is_group_task(name) or is_name(name)


def _known(task: Task) -> Task:
    return register(task) if task.is_foreign else task


def _of_text(text: str) -> Task:
    """The text in the one form that stands in configs, then built."""
    name = text.lower()
    if name in _BUILDERS or groups.is_group_task(name):
        return _built(json.dumps(name))
    if looks_like_a_name(text) and not is_name(name):
        known = list(dict.fromkeys([*_REGISTERED, *_BUILDERS, *_WORD_PROBLEMS, *NAMES]))
        hint = did_you_mean(text, known) or did_you_mean(name, known)
        hint = hint or "`statetrack tasks` lists those there are. "
        raise ValueError(
            f"unknown task {text!r}; {hint}Groups (s4, a5_x_z2), machines (counter_5, my.json) and "
            "regular expressions (regex:(a|b)*ab) work too, and your own after tasks.register"
        )
    found = source(text)
    if found.kind == "name":
        return _built(json.dumps(MACHINE + found.value))
    if found.kind == "regex":
        over = "" if found.alphabet is None else OVER + found.alphabet
        return _built(json.dumps(REGEX + found.value + over))
    machine = found.machine()
    try:
        return get(machine)
    except ValueError as error:
        raise ValueError(f"{found.value}: {error}") from None


def _json(spec: Mapping[str, Any]) -> str:
    try:
        return json.dumps(spec, default=dict)
    except (TypeError, ValueError):
        raise ValueError(f"the task {dict(spec)!r} is not JSON") from None


@lru_cache(maxsize=64)
def _built(spec: str) -> Task:
    """The task of the JSON text of its spec."""
    what = json.loads(spec)
    if isinstance(what, dict):
        return machines.from_spec(what)
    if what in _BUILDERS:
        task = _BUILDERS[what]()
    elif groups.is_group_task(what):
        task = groups.word_problem(what)
    else:
        found = source(what)
        if found.kind == "regex":
            return machines.from_regex(found.value, found.alphabet)
        task = machines.from_machine(found.machine(), name=what)
    return found_by(task, what)
