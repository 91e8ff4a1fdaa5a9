"""Traces against Python itself, which runs them."""

import contextlib
import io
from collections import Counter

import pytest
import torch

from statetrack import tasks
from statetrack.tasks import IGNORE, Batch
from statetrack.tasks.applied.repl import REVEALS
from tests.tasks.oracles import draw, rows

LEVELS = ["repl_1", "repl_2", "repl_3", "repl_4"]
COINS = {"repl_5_p25": 0.25, "repl_5_p50": 0.5, "repl_5_p75": 0.75}


def lines_of(words: list[str]) -> list[str]:
    return [line.strip() for line in " ".join(words).split("\\n")]


def printed(words: list[str]) -> list[str]:
    """What Python prints when the statements of a trace are executed."""
    said = io.StringIO()
    code = [line.removeprefix(">>> ") for line in lines_of(words) if line.startswith(">>>")]
    known = {"swap": lambda a, b: (b, a), "same": lambda a, b: (a, b)}
    with contextlib.redirect_stdout(said):
        exec("\n".join(code), known)
    return said.getvalue().split()


@pytest.mark.parametrize("name", [*LEVELS, *(f"{name}_silent" for name in LEVELS)])
@pytest.mark.parametrize(("batch", "longest"), [(60, 32), (4, 300)])
def test_python_prints_the_answers(name: str, batch: int, longest: int) -> None:
    task = tasks.get(name)
    for words, asked in rows(task, draw(name, batch, longest)):
        said = printed(words)
        assert said == list(asked.values())
        assert all(words[t] == "\\n" and words[t - 2].startswith("x") for t in asked)
        behind = [words[t + 1] for t in asked if t + 1 < len(words)]
        assert behind == (["?"] * len(behind) if name.endswith("silent") else said[:-1])


@pytest.mark.parametrize("name", COINS)
def test_hidden_swaps_happen_as_often_as_said(name: str) -> None:
    """Of values printed at the start and again after one line that names the variable."""
    moved = stayed = 0
    for words, asked in rows(tasks.get(name), draw(name, 4000, 2, shortest=2)):
        lines = lines_of(words)
        if "if" in lines[1]:
            start = dict(zip(lines[0].split()[1:10:2], lines[0].split()[11::2], strict=True))
            pair = lines[1].split()[-7:-4:2]
            assert lines[1].split()[2] == name[-3:]
            variable, (value,) = lines[2].split()[3], asked.values()
            if variable not in pair:
                assert value == start[variable]
                continue
            assert value in {start[x] for x in pair}
            stayed += value == start[variable]
            moved += value != start[variable]
    share = moved / (moved + stayed)
    assert moved + stayed > 800 and abs(share - COINS[name]) < 0.06


def test_the_law_of_the_statements() -> None:
    task = tasks.get("repl_4")
    counts: Counter[str] = Counter()
    for words, _ in rows(task, draw(task, 400, 32, shortest=32)):
        for line in lines_of(words)[2:]:
            if line.startswith(">>>"):
                kind = next((w for w in ("print", "if", "not", "swap", "same") if w in line), None)
                flag = line.split()[1] in ("c0", "c1")
                both = line.split()[2] == "," and kind is None
                counts[kind or ("set" if flag else "tuple" if both else "temp")] += 1
    counts["temp"] //= 3
    total = sum(counts.values())
    assert total == 400 * 32
    shares = {kind: count / total for kind, count in counts.items()}
    assert abs(shares.pop("print") - (REVEALS * 31 + 1) / 32) < 0.02
    assert len(shares) == 7
    assert all(abs(share - 0.75 * 31 / 32 / 7) < 0.015 for share in shares.values())


def test_lengths_and_sizes() -> None:
    task = tasks.get("repl_2_silent")
    batch = draw(task, 500, 32)
    statements = [
        sum("=" in line or "print" in line for line in lines_of(words)[1:])
        - 2 * sum("z =" in line for line in lines_of(words))
        for words, _ in rows(task, batch)
    ]
    assert min(statements) == 8 and max(statements) == 32
    assert int(batch.num_tokens.max()) <= task.num_tokens(32)


def batch_of(name: str, text: str) -> Batch:
    """One sequence in print, asked at the newline of every print."""
    task = tasks.get(name)
    words = text.replace("\n", " \\n ").split()
    tokens = torch.tensor([[task.token_names.index(word) for word in words]])
    targets = torch.full_like(tokens, IGNORE)
    for t, word in enumerate(words):
        if word == "print":
            targets[0, t + 4] = 0
    return Batch(tokens, targets, targets != IGNORE)


START = ">>> x0 , x1 , x2 , x3 , x4 = 2 , 1 , 0 , 3 , 4\n"


@pytest.mark.parametrize(
    ("text", "operations", "ages"),
    [
        (">>> x0 , x1 = x1 , x0\n>>> print ( x1 )\n2\n>>> print ( x1 )\n", [1, 0], [1, 0]),
        (">>> x0 , x1 = x1 , x0\n>>> print ( x1 )\n?\n>>> print ( x1 )\n", [1, 1], [1, 1]),
        (">>> x0 , x1 = same ( x0 , x1 )\n>>> print ( x0 )\n", [0], [1]),
        (">>> z = x0\n>>> x0 = x1\n>>> x1 = z\n>>> print ( x0 )\n", [1], [1]),
        (">>> c0 , c1 = True , False\n>>> if c1 : x0 , x1 = x1 , x0\n>>> print ( x0 )\n", [0], [1]),
        (">>> c0 , c1 = True , False\n>>> c1 = not c1\n"
         ">>> if c1 : x0 , x1 = x1 , x0\n>>> print ( x0 )\n", [1], [2]),
        (">>> if p50 ( ) : x0 , x1 = x1 , x0\n>>> print ( x2 )\n0\n>>> print ( x0 )\n",
         [0, 1], [1, 1]),
    ],
)  # fmt: skip
def test_depths(text: str, operations: list[int], ages: list[int]) -> None:
    batch = batch_of("repl_4", START + text)
    depths = tasks.get("repl_4").depths
    assert depths is not None
    found = depths(batch)
    assert found.operations[batch.mask].tolist() == operations
    assert found.age[batch.mask].tolist() == ages
