"""Where machines come from when a person names one: a name, a JSON table, a regular expression."""

from __future__ import annotations

import json
import re
from pathlib import Path

from statetrack.automata import Machine, letters_of, named

SHAPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "delta": (list, "a list of rows"),
    "start": (int, "a state number"),
    "accepting": (list, "a list of state numbers"),
    "outputs": (list, "a list with a number or boolean for each state"),
    "alphabet": ((str, list), "a string or a list of letters"),
}


def machine_from(text: str, alphabet: str | None = None) -> Machine:
    """The machine that `text` means.

    A path that ends in `.json` is a table: a list of rows, or an object with `delta` and any of
    `start`, `accepting`, `outputs`, `alphabet`, as for `Machine.from_table`. A word with a digit or
    an underscore in it is a name (`s5`, `z60`, `mod_arithmetic`), and so is `parity`. Anything else
    is a regular expression; its alphabet is its own letters unless given.

    >>> machine_from("(aa)*").num_states, machine_from("(aa)*", "ab").num_states
    (2, 3)
    >>> machine_from("s5").num_states
    120
    """
    text = text.strip()
    if not text:
        raise ValueError("there is no machine in an empty text; give a regex, a name or a file")
    if text.endswith(".json"):
        return _machine_from_file(Path(text))
    if re.fullmatch(r"\w*[\d_]\w*|parity", text):
        if alphabet is not None:
            raise ValueError(f"{text!r} is a name and has its own alphabet; leave alphabet out")
        return named(text)
    return Machine.from_regex(text, letters_of(text) if alphabet is None else alphabet)


def _machine_from_file(path: Path) -> Machine:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if isinstance(content, list):
        content = {"delta": content}
    if not isinstance(content, dict) or "delta" not in content:
        raise ValueError(f'{path} must hold a list of rows, or an object with "delta"')
    unknown = sorted(set(content) - set(SHAPES))
    if unknown:
        raise ValueError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(SHAPES)}")
    for key, (kinds, wanted) in SHAPES.items():
        if key in content and not isinstance(content[key], kinds):
            raise ValueError(f"{path}: {key} is {content[key]!r}, but must be {wanted}")
    table = content.pop("delta")
    start = content.pop("start", 0)
    try:
        return Machine.from_table(table, start, **content)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
