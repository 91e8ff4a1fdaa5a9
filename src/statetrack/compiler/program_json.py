"""A `Program` as JSON: every number exactly, every name; read back strictly.

The playground's JavaScript runs the same objects. A layer says its `kind`; a step is a list:
`["swap", i, j]`, `["project", i]`, `["write", row, value]` or `["reflect", key]`. Whole numbers are
written without a point. What is not as the writer writes it is refused with its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from statetrack.automata import Machine, Project, Swap, machine_of_table, table_of
from statetrack.compiler.program import (
    MAX_PROGRAM,
    DeltaLayer,
    DenseLayer,
    DiagonalLayer,
    FloatArray,
    IntArray,
    Program,
    ProgramLayer,
    Reflect,
    Stage,
    Step,
    Symbol,
    Write,
)

FORMAT = 1
EXACT_INTEGERS = 2.0**53

PROGRAM = ("format", "machine", "method", "exact", "note", "stages")
STAGE = ("layer", "symbol", "after")
DELTA = ("kind", "rows", "columns", "symbols", "start", "labels", "readout")
SYMBOL = ("name", "gate", "steps", "queries", "leaves")
DIAGONAL = ("kind", "coordinates", "symbols", "decay", "add", "start", "labels", "codes", "written")
DENSE = ("kind", "matrices", "symbols", "labels")


# -- writing ------------------------------------------------------------------------------------


def json_of_program(program: Program) -> dict[str, Any]:
    """The program as a JSON object, which `program_of_json` reads.

    >>> from statetrack.automata import read
    >>> from statetrack.compiler import compile_program
    >>> written = json_of_program(compile_program(read("parity"), "group"))
    >>> written["stages"][0]["layer"]["symbols"][1]["steps"]
    [['swap', 0, 1]]
    """
    return {
        "format": FORMAT,
        "machine": table_of(program.machine),
        "method": program.method,
        "exact": program.exact,
        "note": program.note,
        "stages": [
            {
                "layer": _json_of_layer(stage.layer),
                "symbol": stage.symbol.tolist(),
                "after": stage.after.tolist(),
            }
            for stage in program.stages
        ],
    }


def _json_of_layer(layer: ProgramLayer) -> dict[str, Any]:
    if isinstance(layer, DeltaLayer):
        return {
            "kind": "delta",
            "rows": list(layer.rows),
            "columns": list(layer.columns),
            "symbols": [
                {
                    "name": symbol.name,
                    "gate": _plain(symbol.gate),
                    "steps": [_json_of_step(step) for step in symbol.steps],
                    "queries": _plain(symbol.queries),
                    "leaves": symbol.leaves,
                }
                for symbol in layer.symbols
            ],
            "start": [_json_of_step(step) for step in layer.start],
            "labels": list(layer.labels),
            "readout": _plain(layer.readout),
        }
    if isinstance(layer, DiagonalLayer):
        return {
            "kind": "diagonal",
            "coordinates": list(layer.coordinates),
            "symbols": list(layer.symbols),
            "decay": _plain(layer.decay),
            "add": _plain(layer.add),
            "start": _plain(layer.start),
            "labels": list(layer.labels),
            "codes": _plain(layer.codes),
            "written": list(layer.written),
        }
    assert isinstance(layer, DenseLayer)
    return {
        "kind": "dense",
        "matrices": _plain(layer.matrices),
        "symbols": list(layer.symbols),
        "labels": list(layer.labels),
    }


def _json_of_step(step: Step) -> list[Any]:
    if isinstance(step, Swap):
        return ["swap", step.i, step.j]
    if isinstance(step, Project):
        return ["project", step.i]
    if isinstance(step, Write):
        return ["write", step.row, _plain(step.value)]
    return ["reflect", _plain(step.key)]


def _plain(value: float | Sequence[Any] | FloatArray) -> Any:
    """Whole numbers as integers, but for -0.0 and where the next one is further than 1 away."""
    numbers = np.asarray(value, dtype=np.float64)
    whole = (numbers == np.floor(numbers)) & (np.abs(numbers) < EXACT_INTEGERS)
    whole &= ~((numbers == 0) & np.signbit(numbers))
    mixed = numbers.astype(object)
    mixed[whole] = numbers[whole].astype(np.int64)
    return mixed.tolist()


# -- reading ------------------------------------------------------------------------------------


def program_of_json(content: object, where: str = "the program") -> Program:
    """The program of a JSON object; `where` it stands is named in what is refused.

    >>> from statetrack.automata import read
    >>> from statetrack.compiler import compile_program
    >>> program = compile_program(read("(a|b)*ab"))
    >>> program_of_json(json_of_program(program)).run("aab").tolist()
    [1, 1, 2]
    """
    read = _object(content, PROGRAM, where)
    if read["format"] != FORMAT:
        raise ValueError(f"{where} has format {read['format']!r}; this version reads {FORMAT}")
    machine = machine_of_table(read["machine"], f"{where}, machine")
    if table_of(machine) != read["machine"]:
        raise ValueError(f"{where}, machine: its states are not numbered as a program's are")
    stages = [
        _stage(stage, f"{where}, layer {i + 1}")
        for i, stage in enumerate(_list(read["stages"], f"{where}, stages"))
    ]
    if not stages:
        raise ValueError(f"{where} has no layer")
    _fit(machine, stages, where)
    return Program(
        machine,
        _text(read["method"], f"{where}, method"),
        tuple(stages),
        _typed(read["exact"], bool, f"{where}, exact", "true or false"),
        _text(read["note"], f"{where}, note"),
    )


def _fit(machine: Machine, stages: list[Stage], where: str) -> None:
    """Refuses layers whose contexts do not follow from one another."""
    contexts = machine.num_letters
    for i, stage in enumerate(stages):
        here = f"{where}, layer {i + 1}"
        if len(stage.symbol) != contexts:
            raise ValueError(f"{here} has {len(stage.symbol)} contexts, and there are {contexts}")
        last = i + 1 == len(stages)
        contexts = machine.num_states if last else len(stages[i + 1].symbol)
        if int(stage.after.max()) >= contexts:
            raise ValueError(f"{here}, after: {stage.after.max()} is not below {contexts}")


def _stage(content: object, where: str) -> Stage:
    read = _object(content, STAGE, where)
    layer = _layer(read["layer"], where)
    symbol = _integers(read["symbol"], f"{where}, symbol", 0, len(layer.symbol_names))
    labels = len(layer.label_names)
    rows = _list(read["after"], f"{where}, after")
    after = [_integers(row, f"{where}, after", -1, None, labels) for row in rows]
    if len(after) != len(symbol) or not after:
        raise ValueError(f"{where}: {len(symbol)} contexts in symbol and {len(after)} in after")
    return Stage(layer, symbol, np.stack(after))


def _layer(content: object, where: str) -> ProgramLayer:
    kind = content.get("kind") if isinstance(content, dict) else None
    readers: dict[Any, Callable[[object, str], ProgramLayer]] = {
        "delta": _delta,
        "diagonal": _diagonal,
        "dense": _dense,
    }
    if not isinstance(kind, str) or kind not in readers:
        raise ValueError(f"{where} is of kind {kind!r}; kinds are {', '.join(readers)}")
    return readers[kind](content, where)


def _delta(content: object, where: str) -> DeltaLayer:
    read = _object(content, DELTA, where)
    rows, columns = _names(read["rows"], where), _names(read["columns"], where)
    labels = _names(read["labels"], where)
    size = (len(rows), len(columns))
    symbols = []
    heads = None
    for i, item in enumerate(_list(read["symbols"], f"{where}, symbols")):
        here = f"{where}, symbol {i}"
        given = _object(item, SYMBOL, here)
        queries = _table(given["queries"], f"{here}, queries", (heads, len(rows)))
        heads = len(queries)
        symbols.append(
            Symbol(
                _text(given["name"], here),
                _number(given["gate"], f"{here}, gate"),
                _steps(given["steps"], size, here),
                tuple(tuple(row) for row in queries.tolist()),
                _integer(given["leaves"], f"{here}, leaves", -1, len(labels)),
            )
        )
    if heads is None:
        raise ValueError(f"{where} has no symbols")
    readout = _table(read["readout"], f"{where}, readout", (len(labels), heads * len(columns)))
    start = _steps(read["start"], size, f"{where}, start")
    return DeltaLayer(rows, columns, tuple(symbols), start, labels, readout)


def _steps(content: object, size: tuple[int, int], where: str) -> tuple[Step, ...]:
    rows, columns = size
    found: list[Step] = []
    for item in _list(content, f"{where}, steps"):
        match item:
            case ["swap", i, j]:
                ends = [_integer(end, f"{where}, swap", 0, rows) for end in (i, j)]
                found.append(Swap(*ends))
            case ["project", i]:
                found.append(Project(_integer(i, f"{where}, project", 0, rows)))
            case ["write", row, value]:
                put = _numbers(value, f"{where}, write", columns)
                found.append(Write(_integer(row, f"{where}, write", 0, rows), tuple(put)))
            case ["reflect", key]:
                found.append(Reflect(tuple(_numbers(key, f"{where}, reflect", rows))))
            case _:
                raise ValueError(
                    f'{where}: {item!r} is no step; steps are ["swap", i, j], ["project", i], '
                    '["write", row, value] and ["reflect", key]'
                )
    return tuple(found)


def _diagonal(content: object, where: str) -> DiagonalLayer:
    read = _object(content, DIAGONAL, where)
    names, symbols = _names(read["coordinates"], where), _names(read["symbols"], where)
    labels = _names(read["labels"], where)
    written = _integers(read["written"], f"{where}, written", -1, len(labels), len(symbols))
    return DiagonalLayer(
        coordinates=names,
        symbols=symbols,
        decay=_table(read["decay"], f"{where}, decay", (len(symbols), len(names))),
        add=_table(read["add"], f"{where}, add", (len(symbols), len(names))),
        start=np.array(_numbers(read["start"], f"{where}, start", len(names))),
        labels=labels,
        codes=_table(read["codes"], f"{where}, codes", (len(labels), len(names))),
        written=tuple(written.tolist()),
    )


def _dense(content: object, where: str) -> DenseLayer:
    read = _object(content, DENSE, where)
    symbols, labels = _names(read["symbols"], where), _names(read["labels"], where)
    given = _list(read["matrices"], f"{where}, matrices")
    if len(given) != len(symbols):
        raise ValueError(f"{where} has {len(given)} matrices for {len(symbols)} symbols")
    square = (len(labels), len(labels))
    matrices = [_table(matrix, f"{where}, matrices", square) for matrix in given]
    return DenseLayer(np.stack(matrices), symbols, labels)


# -- values -------------------------------------------------------------------------------------


def _object(content: object, keys: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{where} must be an object with {', '.join(keys)}")
    wrong = [*(key for key in keys if key not in content), *(k for k in content if k not in keys)]
    if wrong:
        raise ValueError(f"{where} has exactly the keys {', '.join(keys)}; look at {wrong[0]!r}")
    return content


def _typed(value: object, kind: type, where: str, what: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where}: {value!r} must be {what}")
    return value


def _list(value: object, where: str) -> list[Any]:
    found: list[Any] = _typed(value, list, where, "a list")
    return found


def _text(value: object, where: str) -> str:
    found: str = _typed(value, str, where, "a text")
    return found


def _names(value: object, where: str) -> tuple[str, ...]:
    found = tuple(_text(name, f"{where}, names") for name in _list(value, f"{where}, names"))
    if not found:
        raise ValueError(f"{where} has an empty list of names")
    return found


def _integer(value: object, where: str, least: int, below: int) -> int:
    found: int = _typed(value, int, where, "an integer")
    if not least <= found < below:
        raise ValueError(f"{where}: {found} must be at least {least} and below {below}")
    return found


def _integers(
    value: object, where: str, least: int, below: int | None, length: int | None = None
) -> IntArray:
    given = _list(value, where)
    if length is not None and len(given) != length:
        raise ValueError(f"{where} has {len(given)} entries and needs {length}")
    fine = set(map(type, given)) <= {int} and all(
        least <= item < (below or MAX_PROGRAM) for item in given
    )
    if not fine:
        given = [_integer(item, where, least, below or MAX_PROGRAM) for item in given]
    return np.array(given, dtype=np.int64)


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where}: {value!r} must be a number")
    found = float(value) if abs(value) <= EXACT_INTEGERS or isinstance(value, float) else math.inf
    if not math.isfinite(found):
        raise ValueError(f"{where}: {value!r} must be a finite number")
    return found


def _numbers(value: object, where: str, length: int) -> list[float]:
    given = _list(value, where)
    if len(given) != length:
        raise ValueError(f"{where} has {len(given)} entries and needs {length}")
    fine = set(map(type, given)) <= {int, float} and all(abs(x) < EXACT_INTEGERS for x in given)
    return list(map(float, given)) if fine else [_number(item, where) for item in given]


def _table(value: object, where: str, shape: tuple[int | None, int]) -> FloatArray:
    rows = [_numbers(row, where, shape[1]) for row in _list(value, where)]
    if not rows or (shape[0] is not None and len(rows) != shape[0]):
        raise ValueError(f"{where} has {len(rows)} rows and needs {shape[0] or 'some'}")
    return np.array(rows, dtype=np.float64)
