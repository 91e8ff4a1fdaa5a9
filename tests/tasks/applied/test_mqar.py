"""Recall against a dictionary."""

import pytest
import torch

from statetrack import tasks
from tests.tasks.oracles import draw, rows


def recalled(words: list[str], asked: dict[int, str]) -> None:
    """Checks every answer by a dictionary that is written to as the words come."""
    known: dict[str, str] = {}
    for t, word in enumerate(words):
        if word.startswith("v"):
            known[words[t - 1]] = word
        elif t in asked:
            assert asked[t] == known[word]


@pytest.mark.parametrize("name", ["mqar", "mqar_256"])
def test_every_key_is_asked_for_once(name: str) -> None:
    task = tasks.get(name)
    batch = draw(task, 100, 32)
    sizes = []
    for words, asked in rows(task, batch):
        recalled(words, asked)
        pairs = len(asked)
        keys = [words[t] for t in asked]
        assert sorted(keys) == sorted(words[: 2 * pairs : 2]) and len(set(keys)) == pairs
        assert min(asked) >= 2 * pairs and len(words) < 8 * pairs
        assert all(t % 2 == 0 for t in asked)
        sizes.append(pairs)
    assert min(sizes) == 4 and max(sizes) == 32


def test_questions_come_sooner_rather_than_later() -> None:
    """Of one pair: slots 1, 2, 3 with shares as 1, 2^-0.99, 3^-0.99."""
    batch = draw("mqar", 6000, 1, shortest=1)
    slots = torch.bincount((batch.num_tokens - 3) // 2, minlength=3)
    expected = torch.tensor([1.0, 2**-0.99, 3**-0.99])
    assert torch.allclose(slots / 6000, expected / expected.sum(), atol=0.02)


@pytest.mark.parametrize("name", ["mqar_forgetting", "mqar_forgetting_256"])
def test_the_last_value_counts(name: str) -> None:
    task = tasks.get(name)
    sizes = []
    for words, asked in rows(task, draw(task, 100, 64)):
        recalled(words, asked)
        assert len(asked) == 8 == len({words[t] for t in asked})
        sizes.append(min(asked) // 2)
        assert len(words) == 2 * sizes[-1] + 15
        assert {words[t] for t in asked} == set(words[: 2 * sizes[-1] : 2])
    assert min(sizes) < 12 and max(sizes) > 60


@pytest.mark.parametrize("name", ["mqar_256", "mqar_forgetting_256"])
def test_with_fewer_names_all_of_them_are_used(name: str) -> None:
    task = tasks.get(name)
    assert task.name == name and task.vocab_size == 2 + 2 * 256 and task.num_classes == 256
    batch = draw(task, 400, task.train_lengths.max)
    written = batch.tokens[batch.tokens >= 2].unique()
    assert written.tolist() == list(range(2, 514))
    assert batch.targets[batch.mask].unique().tolist() == list(range(256))


def test_no_more_pairs_than_keys() -> None:
    assert draw("mqar_256", 2, 256, shortest=256).mask.sum() == 512
    with pytest.raises(ValueError, match="257 pairs need as many keys, and there are 256"):
        draw("mqar_256", 2, 257)


def test_depths() -> None:
    task = tasks.get("mqar_forgetting")
    assert task.depths is not None
    batch = draw(task, 40, 64)
    found = task.depths(batch)
    expected = []
    for words, asked in rows(task, batch):
        start = min(asked)
        written = words[:start:2]
        for t in asked:
            since = written[::-1].index(words[t]) + 1
            expected.append((written.count(words[t]) - 1, since))
    pairs = zip(found.operations[batch.mask].tolist(), found.age[batch.mask].tolist(), strict=True)
    assert list(pairs) == expected
    other = tasks.get("mqar")
    assert other.depths is not None
    batch = draw(other, 10, 8)
    ages = other.depths(batch).age[batch.mask].tolist()
    gaps = [(t - words.index(words[t])) // 2 for words, asked in rows(other, batch) for t in asked]
    assert ages == gaps
