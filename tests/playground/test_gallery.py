"""The gallery: every machine can be read, and its word too."""

import pytest

from statetrack.automata import read
from statetrack.playground.gallery import GALLERY, Specimen, found


def test_there_are_two_dozen_of_several_kinds() -> None:
    assert len(GALLERY) >= 24
    assert len({one.text for one in GALLERY}) == len({one.title for one in GALLERY}) == len(GALLERY)
    assert len({one.kind for one in GALLERY}) == 4


@pytest.mark.parametrize("one", GALLERY, ids=lambda one: one.text)
def test_machine_and_word_can_be_read(one: Specimen) -> None:
    machine = read(one.text)
    names = {str(letter) for letter in machine.alphabet}
    word = one.word.split() if " " in one.word else list(one.word)
    assert set(word) <= names and 6 <= len(word) <= 14
    assert found(f" {one.text} ") == one
    assert one.about.endswith((".", "?"))


def test_the_words_tell_something() -> None:
    """Acceptors reach an accepting and a rejecting state on their word."""
    for one in GALLERY:
        machine = read(one.text)
        if machine.outputs.dtype == bool:
            assert len(set(machine.says(one.word))) == 2, one.text
