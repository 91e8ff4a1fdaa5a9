"""State diagrams in the DOT language, read: what `Machine.to_dot` writes, and what people draw.

An arrow is `p -> q [label="a,b"]`, one letter or several with commas. Accepting states have the
shape `doublecircle`. The start is the state that an arrow without a label leads to, from a node
that has no other arrows; without one it is the first state. A label `name / output` of a node is
what the state says. Letters that are all numbers are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any

from statetrack.automata.machine import Machine

_NAME = r'"(?:[^"\\]|\\.)*"|[\w.]+'
_STATEMENT = re.compile(
    rf"(?P<from>{_NAME})\s*(?:->\s*(?P<to>{_NAME})\s*)?(?:\[(?P<options>(?:[^\]\"]|\"(?:[^\"\\]|\\.)*\")*)\])?\s*(?:;|\n|$)"
)
_OPTION = re.compile(rf"(\w+)\s*=\s*({_NAME})")


def machine_of_dot(text: str, where: str = "the diagram") -> Machine:
    """The machine of a state diagram; missing arrows lead to a sink.

    >>> parity = Machine.from_regex("(aa)*", "a")
    >>> machine_of_dot(parity.to_dot()) == parity
    True
    """
    body = re.search(r"digraph[^{]*\{(.*)\}", text, re.DOTALL)
    if body is None:
        raise ValueError(f"{where} is no diagram: it has no digraph {{ ... }}")
    nodes: dict[str, dict[str, str]] = {}
    arrows: dict[str, dict[str, str]] = {}
    first: list[tuple[str, str]] = []
    for source, target, options in _statements(body[1]):
        if target is None:
            if source not in ("node", "edge", "graph", "rankdir"):
                nodes[source] = nodes.get(source, {}) | options
            continue
        if "label" not in options:
            first.append((source, target))
            continue
        row = arrows.setdefault(source, {})
        for letter in _letters(options["label"]):
            if letter in row and row[letter] != target:
                raise ValueError(f"{where}: two arrows of state {source} read {letter!r}")
            row[letter] = target
    if not arrows:
        raise ValueError(f'{where} has no arrow with a label; write p -> q [label="a"]')
    begun = [target for source, target in first if source not in arrows]
    states = [*dict.fromkeys([*arrows, *(end for row in arrows.values() for end in row.values())])]
    starts = {source for source, _ in first}
    states += [name for name in nodes if name not in states and name not in starts]
    start = begun[0] if begun else states[0]
    for state in states:
        arrows.setdefault(state, {})
    says = {state: nodes.get(state, {}).get("label", "") for state in states}
    if all(" / " in said for said in says.values()):
        named = {state: _value(said.split(" / ", 1)[1]) for state, said in says.items()}
        return Machine.from_dict(_numbers_if_all(arrows), start, outputs=named)
    final = [s for s in states if nodes.get(s, {}).get("shape") == "doublecircle"]
    return Machine.from_dict(_numbers_if_all(arrows), start, accepting=final)


def _statements(body: str) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    without = re.sub(r"//[^\n]*|/\*.*?\*/", "", body, flags=re.DOTALL)
    for found in _STATEMENT.finditer(re.sub(r"\b\w+\s*=\s*\w+\s*;", "", without)):
        options = {key: _plain(value) for key, value in _OPTION.findall(found["options"] or "")}
        target = None if found["to"] is None else _plain(found["to"])
        yield _plain(found["from"]), target, options


def _letters(label: str) -> list[str]:
    """The letters of an arrow; a comma alone is a letter."""
    return [","] if label == "," else [part.strip() or part for part in label.split(",")]


def _numbers_if_all(arrows: dict[str, dict[str, str]]) -> dict[str, dict[Any, Hashable]]:
    every = {letter for row in arrows.values() for letter in row}
    numbers = all(re.fullmatch(r"-?\d+", letter) for letter in every)
    return {
        state: {int(a) if numbers else a: end for a, end in row.items()}
        for state, row in arrows.items()
    }


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def _plain(name: str) -> str:
    if name.startswith('"'):
        return re.sub(r"\\(.)", r"\1", name[1:-1])
    return name
