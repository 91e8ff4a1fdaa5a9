"""Selective copying against the letters in the order they come."""

from statetrack import tasks
from tests.tasks.oracles import draw, rows


def test_letters_in_order() -> None:
    task = tasks.get("selective_copying")
    sizes, first = [], 0
    for words, asked in rows(task, draw(task, 200, 128, shortest=16)):
        assert list(asked) == list(range(len(words) - 16, len(words)))
        assert words[-16:] == ["?"] * 16
        letters = [word for word in words[:-16] if word != "_"]
        assert letters == list(asked.values()) and len(letters) == 16
        sizes.append(len(words) - 16)
        first += words[0] != "_"
    assert min(sizes) < 20 and max(sizes) > 120
    assert first / 200 < 0.6  # letters do not gather at the beginning
