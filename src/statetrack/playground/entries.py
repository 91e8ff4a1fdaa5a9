"""What the page needs to know of a machine, as one JSON object: verdicts, programs, layers."""

from __future__ import annotations

import json
from typing import Any

from statetrack.automata import Machine
from statetrack.compiler import METHODS, explain, json_of_program
from statetrack.compiler.driver import Candidate, chosen
from statetrack.compiler.explain import Explanation
from statetrack.compiler.layout import layout_of
from statetrack.compiler.profile import Profile
from statetrack.playground.gallery import Specimen

__all__ = ["LARGEST", "LARGEST_MORE", "entry_of", "example_word"]

LARGEST = 2_000_000
"""Characters of the largest program that the page is given."""

LARGEST_MORE = 60_000
"""The same for programs besides the one that `compile` takes."""

EXAMPLE = 12
"""Letters of an example word."""


def entry_of(machine: Machine, text: str, specimen: Specimen | None = None) -> dict[str, Any]:
    """The machine that `text` means, for the page; `specimen` if it is one of the gallery.

    Has one program for each method that fits. Raises `ValueError` with the library's line where
    nothing fits, or where it is too large to show.

    >>> from statetrack.automata import read
    >>> entry = entry_of(read("(aa)*"), "(aa)*")
    >>> [program["method"] for program in entry["programs"]][:2]
    ['diagonal', 'group']
    """
    profile = Profile(machine)
    best, why, _ = chosen(profile, "auto", "latency")
    taken = _program(best, why, LARGEST)
    if taken is None:
        raise ValueError(
            f"too large to show: the program of {machine!r} has more than {LARGEST:,} characters; "
            "`statetrack compile` takes it"
        )
    programs, refused = [taken], []
    for method in METHODS:
        if method in ("auto", best.method) or (method == "one-layer" and profile.is_group):
            continue
        try:
            candidate, why, _ = chosen(profile, method, "latency")
        except ValueError as error:
            refused.append({"method": method, "why": str(error)})
            continue
        program = _program(candidate, why, LARGEST_MORE)
        if program is not None:
            programs.append(program)
        else:
            refused.append({"method": method, "why": "it is built, but too large to show"})
    return {
        "text": text,
        "title": text if specimen is None else specimen.title,
        "about": "" if specimen is None else specimen.about,
        "word": _word(machine, specimen),
        **_explained(explain(machine)),
        "programs": programs,
        "refused": refused,
    }


def _program(candidate: Candidate, why: str, largest: int) -> dict[str, Any] | None:
    assert candidate.program is not None and candidate.cost is not None
    written = json_of_program(candidate.program)
    if len(json.dumps(written)) > largest:
        return None
    layouts = [layout_of(stage.layer) for stage in candidate.program.stages]
    return {
        "method": candidate.method,
        "why": why,
        "cost": str(candidate.cost),
        "layers": [
            {"layer": one.kind, "d_model": one.d_model, "options": one.options} for one in layouts
        ],
        "program": written,
    }


def _explained(explanation: Explanation) -> dict[str, Any]:
    return {
        "facts": explanation.about,
        "families": [
            {
                "family": row.family,
                "models": row.models,
                "answer": row.verdict.answer,
                "reason": row.verdict.reason,
                "evidence": row.verdict.evidence,
                "source": row.verdict.source,
                "assuming": row.verdict.assuming,
                "built": None if row.verdict.built is None else str(row.verdict.built),
            }
            for row in explanation.rows
        ],
    }


def _word(machine: Machine, specimen: Specimen | None) -> list[int]:
    if specimen is None:
        return example_word(machine)
    spelled = specimen.word.split() if " " in specimen.word else list(specimen.word)
    number = {str(letter): i for i, letter in enumerate(machine.alphabet)}
    return [number[name] for name in spelled]


def example_word(machine: Machine, length: int = EXAMPLE) -> list[int]:
    """A word that takes arrows not taken before, and leaves sinks for last.

    >>> from statetrack.automata import read
    >>> machine = read("(ab)*")
    >>> "".join(machine.alphabet[letter] for letter in example_word(machine, 6))
    'ababab'
    """
    table = machine.delta.tolist()
    sinks = {state for state, row in enumerate(table) if set(row) == {state}}
    taken = [[0] * machine.num_letters for _ in table]
    word, state = [], 0
    for _ in range(length):
        letter = min(
            range(machine.num_letters),
            key=lambda a: (table[state][a] in sinks, taken[state][a], a),
        )
        taken[state][letter] += 1
        word.append(letter)
        state = table[state][letter]
    return word
