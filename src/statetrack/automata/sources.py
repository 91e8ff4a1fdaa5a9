"""The grammar for "which machine": what a text means to `explain`, `compile` and the tasks.

    s5, counter_5, machine:s5      a name, as in `named`
    my.json, machine:my.json       a file with a transition table
    my.dot, machine:my.dot         a file with a state diagram
    regex:(aa)*, (aa)*             a regular expression over its own letters
    regex:(aa)* over ab            a regular expression over a wider alphabet

A table is JSON: a list of rows, or an object with `delta` and any of `start`, `accepting`,
`outputs`, `alphabet`, as for `Machine.from_table`. In place of `delta` an object may have arrows by
name: `transitions` (`Machine.from_dict`), `nfa` (`from_nfa`) or `mealy` (`from_mealy`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from statetrack._suggest import did_you_mean
from statetrack.automata._automata_lib import OPERATORS, letters_of
from statetrack.automata.dot import machine_of_dot
from statetrack.automata.machine import Letter, Machine
from statetrack.automata.named import NAMES, is_name, named

REGEX, MACHINE, OVER = "regex:", "machine:", " over "

SHAPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "delta": (Sequence, "a list of rows"),
    "start": (int, "a state number"),
    "accepting": (Sequence, "a list of state numbers"),
    "outputs": (Sequence, "a list with a number or boolean for each state"),
    "alphabet": (Sequence, "a string or a list of letters"),
    "output_names": (Sequence, "a list of words, one for each output"),
}
ARROWS: dict[str, tuple[str, ...]] = {
    "transitions": ("start", "accepting", "outputs"),
    "nfa": ("start", "accepting"),
    "mealy": ("start",),
}
"""Arrows by name, and the keys that go with each."""

FILES = (".json", ".dot", ".gv")


@dataclass(frozen=True)
class Source:
    """Which machine a text means, before it is built.

    Attributes:
        kind: what `value` is: the `name` of a machine in lower case, the path of a `table`, or a
            `regex`.
        alphabet: that of a regular expression; None for its own letters.
    """

    kind: Literal["name", "table", "regex"]
    value: str
    alphabet: str | None = None

    def machine(self) -> Machine:
        """The machine itself."""
        if self.kind == "name":
            return named(self.value)
        if self.kind == "table":
            return _machine_of_file(Path(self.value))
        letters = letters_of(self.value) if self.alphabet is None else self.alphabet
        return Machine.from_regex(self.value, letters)


def read(text: str, alphabet: str | None = None) -> Machine:
    """The machine that `text` means: a name, the path of a JSON table, or a regular expression.

    `machine:` in front of a name or a path and `regex:` in front of an expression may be left out.
    The alphabet of an expression is its own letters, unless ` over ` and letters follow it or
    `alphabet` is given. An unknown word that looks like a name is refused.

    >>> read("s5").num_states, read("counter_5").alphabet
    (120, ('a', 'r'))
    >>> read("(aa)*").num_states, read("regex:(aa)* over ab").num_states
    (2, 3)
    """
    return source(text, alphabet).machine()


def source(text: str, alphabet: str | None = None) -> Source:
    """What `read` would build, found without building it.

    >>> source("regex:(aa)* over ab")
    Source(kind='regex', value='(aa)*', alphabet='ab')
    """
    text = text.strip()
    word = text.removeprefix(MACHINE).strip()
    if not word:
        raise ValueError("there is no machine in an empty text; give a regex, a name or a file")
    if text.startswith(REGEX):
        return _regex(text.removeprefix(REGEX), alphabet)
    if not (text.startswith(MACHINE) or word.endswith(FILES) or is_name(word)):
        if "/" in text and os.path.exists(text):  # of Path, a long text would be an OSError
            raise ValueError(
                f"{text} is no table of a machine, which would end in {', '.join(FILES)}; for the "
                f"regular expression write {REGEX}{text}"
            )
        if alphabet is None:
            _refuse_a_misspelling(text)
        return _regex(text, alphabet)
    if alphabet is not None:
        raise ValueError(
            f"{word!r} is not a regular expression and has its own alphabet; leave alphabet out"
        )
    return Source("table", word) if word.endswith(FILES) else Source("name", word.lower())


def _regex(text: str, alphabet: str | None) -> Source:
    expression, over, letters = text.rpartition(OVER)
    if not over:
        return Source("regex", text, alphabet)
    if alphabet is not None:
        raise ValueError(f"{text!r} names its alphabet {letters!r}; leave alphabet out")
    return Source("regex", expression, letters)


def looks_like_a_name(text: str) -> bool:
    """Whether nothing in the text says that it is a regular expression or a file.

    >>> [looks_like_a_name(text) for text in ("ab", "my-task", "(ab)*", "my.json", "regex:ab")]
    [True, True, False, False, False]
    """
    return not OPERATORS & set(text) and not text.startswith((REGEX, MACHINE))


def _refuse_a_misspelling(word: str) -> None:
    """Refuses a word near a known name, or with a digit or an underscore in it, as names have.

    Refuses an unknown word before a colon as well.
    """
    prefix = re.match(r"\w{2,}:", word)
    if prefix:
        hint = did_you_mean(prefix[0], (REGEX, MACHINE))
        raise ValueError(
            f"{word!r} begins with {prefix[0]!r}, which is none of {REGEX} and {MACHINE}; "
            f"{hint}For the regular expression write {REGEX}{word}"
        )
    if not re.fullmatch(r"\w+", word):
        return
    near = did_you_mean(word.lower(), NAMES, cutoff=0.75)
    begun = [name for name in NAMES if len(word) > 2 and name.startswith(word.lower())]
    if begun and not near:
        near = f"did you mean {begun[0]!r}? "
    if re.search(r"[\d_]", word):
        near = near or did_you_mean(word.lower(), NAMES) or f"there are {', '.join(NAMES)}. "
    if near:
        raise ValueError(
            f"no machine is called {word!r}; {near}For the regular expression write {REGEX}{word}"
        )


def table_of(machine: Machine) -> dict[str, Any]:
    """The machine as a JSON object, which `machine_of_table` reads.

    >>> table_of(read("parity"))
    {'alphabet': [0, 1], 'delta': [[0, 1], [1, 0]], 'outputs': [0, 1]}
    """
    table: dict[str, Any] = {
        "alphabet": list(machine.alphabet),
        "delta": machine.delta.tolist(),
        "outputs": machine.outputs.tolist(),
    }
    return table | ({"output_names": list(machine.output_names)} if machine.output_names else {})


def save(machine: Machine, path: str | Path) -> None:
    """Writes a machine to a file that `read` reads: a JSON table, or a diagram (`.dot`, `.gv`)."""
    path = Path(path)
    if path.suffix not in FILES:
        raise ValueError(f"a machine is written to {', '.join(FILES)}, got {str(path)!r}")
    text = json.dumps(table_of(machine)) if path.suffix == ".json" else machine.to_dot()
    path.write_text(text + "\n")


def machine_of_table(content: object, where: str) -> Machine:
    """The machine of a JSON table; `where` it stands is named in what is refused."""
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = {"delta": content}
    if isinstance(content, Mapping):
        named_by = [key for key in ARROWS if key in content]
        if named_by:
            return _machine_of_arrows(content, named_by[0], where)
    if not isinstance(content, Mapping) or "delta" not in content:
        raise ValueError(
            f'{where} must hold a list of rows, or an object with "delta", "transitions", "nfa" '
            'or "mealy"'
        )
    for key in content:
        if key not in SHAPES:
            hint = did_you_mean(str(key), SHAPES)
            raise ValueError(f"{where}: unknown key {key!r}; {hint}Known are {', '.join(SHAPES)}")
    for key, (kinds, wanted) in SHAPES.items():
        value = content.get(key, [])
        text = isinstance(value, str) and key != "alphabet"
        if key in content and (not isinstance(value, kinds) or isinstance(value, bool) or text):
            raise ValueError(f"{where}: {key} is {value!r}, but must be {wanted}")
    options = dict(content)
    table, start = options.pop("delta"), options.pop("start", 0)
    if "alphabet" in options:
        options["alphabet"] = [_letter(letter, where) for letter in options["alphabet"]]
    try:
        names = tuple(map(str, options.pop("output_names", ())))
        machine = Machine.from_table(table, start, **options)
        if names and not 0 <= machine.outputs.min() <= machine.outputs.max() < len(names):
            raise ValueError(f"there are {len(names)} output_names and other outputs")
        return replace(machine, output_names=names)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _machine_of_arrows(content: Mapping[str, Any], kind: str, where: str) -> Machine:
    """The machine of arrows by name; JSON has no names but words, so a number is its word."""
    for key in content:
        if key not in (kind, *ARROWS[kind]):
            known = ", ".join((kind, *ARROWS[kind]))
            raise ValueError(f"{where}: unknown key {key!r}; beside {kind!r} known are {known}")
    if "start" not in content:
        raise ValueError(f'{where} must name the state to "start" in')
    options = dict(content)
    arrows, start = options.pop(kind), str(options.pop("start"))
    try:
        if kind == "mealy":
            pairs = {p: {a: (str(q), x) for a, (q, x) in row.items()} for p, row in arrows.items()}
            return Machine.from_mealy(pairs, start)
        if "accepting" in options:
            options["accepting"] = [str(state) for state in options["accepting"]]
        if kind == "nfa":
            sets = {
                p: {a: [str(q) for q in to] for a, to in row.items()} for p, row in arrows.items()
            }
            return Machine.from_nfa(sets, start, **options)
        ends = {p: {a: str(q) for a, q in row.items()} for p, row in arrows.items()}
        return Machine.from_dict(ends, start, **options)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _machine_of_file(path: Path) -> Machine:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        if path.suffix != ".json":
            return machine_of_dot(path.read_text(), str(path))
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    return machine_of_table(content, str(path))


def _letter(value: object, where: str) -> Letter:
    """A letter that is a tuple is a list in JSON."""
    if isinstance(value, str | int):
        return value
    if isinstance(value, list | tuple):
        return tuple(_letter(part, where) for part in value)
    raise ValueError(f"{where}: {value!r} is no letter; a letter is a string, a number or a list")
