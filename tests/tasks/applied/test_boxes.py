"""Boxes against an interpreter of the text."""

import re

import pytest
import torch

from statetrack import tasks
from statetrack.tasks import IGNORE, Batch
from tests.tasks.oracles import draw, rows

NAMES = ["boxes", "boxes_mixed", "boxes_no_swap"]
SENTENCE = re.compile(
    r"Box (?P<box>\d) contains the (?P<what>o\d+|\?)( [,.])?"
    r"|Swap the contents of Box (?P<a>\d) and Box (?P<b>\d) \."
    r"|Replace the contents of Box (?P<to>\d) with the (?P<new>o\d+) \."
    r"|Empty Box (?P<bare>\d) \."
)


def told(words: list[str]) -> tuple[list[str], list[str]]:
    """The answers to the questions, and the operations."""
    boxes: dict[str, str] = {}
    answers, kinds = [], []
    text, at = " ".join(words), 0
    while at < len(text):
        match = SENTENCE.match(text, at)
        assert match is not None, text[at : at + 60]
        at = match.end() + 1
        if match["what"] == "?":
            answers.append(boxes[match["box"]])
        elif match["box"]:
            boxes[match["box"]] = match["what"]
        elif match["a"]:
            assert match["a"] != match["b"]
            a, b = match["a"], match["b"]
            boxes[a], boxes[b] = boxes[b], boxes[a]
        else:
            boxes[match["to"] or match["bare"]] = match["new"] or "nothing"
        if not match["box"]:
            kinds.append(match[0].split()[0])
    return answers, kinds


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("batch", "longest"), [(200, 12), (10, 192)])
def test_an_interpreter_finds_the_answers(name: str, batch: int, longest: int) -> None:
    task = tasks.get(name)
    drawn = draw(name, batch, longest)
    assert drawn.tokens.shape[1] <= task.num_tokens(longest)
    sizes = []
    for words, asked in rows(task, drawn):
        answers, kinds = told(words)
        assert answers == list(asked.values())
        assert all(words[t] == "?" for t in asked) and words.count("?") == len(asked)
        sizes.append(len(kinds))
    assert min(sizes) >= 2 and max(sizes) <= longest


def test_shares_of_the_operations_and_questions() -> None:
    kinds = {name: "" for name in NAMES}
    questions = 0
    for name in NAMES:
        for words, asked in rows(tasks.get(name), draw(name, 300, 12, shortest=12)):
            kinds[name] += "".join(kind[0] for kind in told(words)[1])
            questions += len(asked)
    assert kinds["boxes"] == "S" * 3600
    assert "S" not in kinds["boxes_no_swap"]
    for letter, share in (("S", 0.6), ("R", 0.2), ("E", 0.2)):
        assert abs(kinds["boxes_mixed"].count(letter) / 3600 - share) < 0.03
    assert abs(questions / 900 - (1 + 11 / 2)) < 0.3


def test_objects_are_distinct_and_mean_nothing() -> None:
    batch = draw("boxes", 2000, 2, shortest=2)
    first = batch.tokens[:, 4:42:6]
    assert all(len(set(row)) == 7 for row in first.tolist())
    counts = torch.bincount(first.flatten() - 21, minlength=100)
    assert len(counts) == 100 and counts.min() > 90 and counts.max() < 200


def test_a_guess_of_nothing_is_right_as_often_as_chance_says() -> None:
    for name in ("boxes_mixed", "boxes_no_swap"):
        batch = draw(name, 100, 192, shortest=192)
        share = (batch.targets[batch.mask] == 100).double().mean()
        assert abs(share - tasks.get(name).chance) < 0.03


def test_depths() -> None:
    task = tasks.get("boxes")
    boxes = " , ".join(f"Box {i} contains the o{i}" for i in range(7)) + " . "
    text = boxes + (
        "Swap the contents of Box 0 and Box 2 . Swap the contents of Box 2 and Box 1 . "
        "Box 1 contains the ? Replace the contents of Box 1 with the o71 . Box 1 contains the ? "
        "Empty Box 0 . Swap the contents of Box 0 and Box 1 . Box 1 contains the ?"
    )
    words = text.split()
    assert told(words)[0] == ["o0", "o71", "nothing"]
    tokens = torch.tensor([[task.token_names.index(word) for word in words]])
    mask = tokens == task.token_names.index("?")
    batch = Batch(tokens, torch.where(mask, 0, IGNORE), mask)
    assert task.depths is not None
    found = task.depths(batch)
    assert found.operations[mask].tolist() == [2, 0, 1]
    assert found.age[mask].tolist() == [2, 0, 1]
