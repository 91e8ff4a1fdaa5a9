"""The examples of the evaluation tasks: read from local files, or generated.

The YAML files in `tasks/` name the functions below, and the lm-evaluation-harness calls them.
"""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FIELDS", "PAPER", "examples", "expect_data", "file_of", "generated", "local", "read"]

FIELDS: dict[str, tuple[str, ...]] = {
    "wikitext": ("page",),
    "lambada": ("text",),
    "piqa": ("goal", "sol1", "sol2", "label"),
    "hellaswag": ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
    "winogrande": ("sentence", "option1", "option2", "answer"),
    "arc_easy": ("question", "choices", "answerKey"),
    "arc_challenge": ("question", "choices", "answerKey"),
    "swde": ("text", "value"),
    "squad_completion": ("text", "value"),
    "fda": ("text", "value"),
}
"""What every line of a task's file holds: the names that the published sets have."""
PAPER = tuple(FIELDS)
"""The tasks of the paper's table, in its order."""
SPLIT = "test"
STEPS = (2, 4, 8, 16, 32)
"""Events in the examples of a generated task."""
EACH = 40
"""Generated examples for each number of events."""
PEOPLE = ("Ann", "Ben", "Cleo", "Dan", "Eve")
COLOURS = ("red", "blue", "green", "white", "black")


def file_of(task: str, folder: Path) -> Path:
    return folder / f"{task}.jsonl"


def expect_data(tasks: Iterable[str], folder: Path | None) -> None:
    """Every task finds its examples; the first that does not is named, with what it expects."""
    for task in tasks:
        if task not in FIELDS:
            continue
        expected = f"one JSON object a line with {', '.join(FIELDS[task])}"
        if folder is None:
            raise ValueError(
                f"{task} reads its examples from a file {task}.jsonl, {expected}: give its folder"
            )
        path = file_of(task, folder)
        if not path.is_file():
            there = "" if folder.is_dir() else ", and there is no such folder"
            raise ValueError(f"{task} needs the file {path}, {expected}{there}")
        read(task, folder)


def read(task: str, folder: Path) -> list[dict[str, Any]]:
    """The examples in a task's file, with the fields that the task has and no others."""
    path, fields = file_of(task, folder), FIELDS[task]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: no JSON object")
        missing = [name for name in fields if name not in row]
        if missing:
            raise ValueError(
                f"{path}, line {number}: no {missing[0]!r}; {task} has {', '.join(fields)}"
            )
        rows.append({name: row[name] for name in fields})
    if not rows:
        raise ValueError(f"{path} is empty: it should have an example of {task} on every line")
    return rows


def local(*, task: str, data: str, **metadata: Any) -> Any:
    """The data set of a task whose examples lie in the folder `data`.

    The harness also hands over all that it knows about the task.
    """
    rows = read(task, Path(data))
    if task == "hellaswag":
        from lm_eval.tasks.hellaswag.utils import preprocess

        for row in rows:
            story = f"{row['ctx_a']} {row['ctx_b'].capitalize()}"
            row["query"] = preprocess(f"{row['activity_label']}: {story}")
            row["choices"] = [preprocess(ending) for ending in row["endings"]]
            row["label"] = int(row["label"])
    return _in_memory(rows)


def generated(*, task: str, **metadata: Any) -> Any:
    """The data set of a task that needs no file."""
    return _in_memory(examples(task))


def examples(task: str) -> list[dict[str, Any]]:
    """The examples of a task that needs no file; the same ones every time."""
    make = {"state_switch": _switch, "state_swaps": _swaps}[task]
    rng = random.Random(task)
    return [make(rng, steps) for steps in STEPS for _ in range(EACH)]


def contains(row: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """1 if the answer stands in what the model wrote, in capitals or not."""
    from lm_eval.tasks.swde.task import contains_score

    return {"contains": float(contains_score(results[0], [row["value"].strip()]))}


def by_steps(row: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Whether the likeliest choice is right: in all, and among examples of this many events."""
    best = max(range(len(results)), key=lambda i: results[i][0])
    right = float(best == row["label"])
    return {"acc": right, f"acc_{row['steps']}": right}


def _in_memory(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset

    return {SPLIT: Dataset.from_list(rows)}


def _switch(rng: random.Random, steps: int) -> dict[str, Any]:
    """Parity: is the lamp on after these people pressed the switch, or not?"""
    on = rng.random() < 0.5
    said = [f"The lamp is {'on' if on else 'off'}."]
    for _ in range(steps):
        presses = rng.random() < 0.5
        on ^= presses
        said.append(f"{rng.choice(PEOPLE)} {'presses the switch' if presses else 'waits'}.")
    said.append("Now the lamp is")
    return {"text": " ".join(said), "choices": ["off", "on"], "label": int(on), "steps": steps}


def _swaps(rng: random.Random, steps: int) -> dict[str, Any]:
    """The permutations of five: who has which ball after these swaps?"""
    balls = rng.sample(range(len(COLOURS)), k=len(PEOPLE))
    said = [f"{who} has the {COLOURS[i]} ball." for who, i in zip(PEOPLE, balls, strict=True)]
    for _ in range(steps):
        a, b = rng.sample(range(len(PEOPLE)), k=2)
        balls[a], balls[b] = balls[b], balls[a]
        said.append(f"{PEOPLE[a]} and {PEOPLE[b]} swap.")
    asked = rng.randrange(len(PEOPLE))
    said.append(f"Now {PEOPLE[asked]} has the")
    return {
        "text": " ".join(said),
        "choices": [f"{colour} ball" for colour in COLOURS],
        "label": balls[asked],
        "steps": steps,
    }
