"""The cube against rotations of coordinates, and against what is known of its group."""

import itertools

import numpy as np
import pytest
from sympy.combinatorics import Permutation, PermutationGroup

from statetrack import tasks
from statetrack.tasks.applied.cube import COLOURS, MAPS, MOVES, STICKERS
from tests.tasks.oracles import draw, rows

NORMALS = {
    **{"U": (0, 0, 1), "D": (0, 0, -1), "R": (1, 0, 0)},
    **{"L": (-1, 0, 0), "F": (0, -1, 0), "B": (0, 1, 0)},
}


def rotation(normal: tuple[int, int, int]) -> np.ndarray:
    """A quarter turn, clockwise when seen from where `normal` points: Rodrigues at -90 degrees."""
    x, y, z = normal
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3, dtype=int) - cross + cross @ cross


class Cube:
    """Colours of all 24 stickers by where they are and where they point."""

    def __init__(self) -> None:
        self.shows = {
            (corner, normal): face
            for corner in itertools.product((-1, 1), repeat=3)
            for face, normal in NORMALS.items()
            if np.dot(corner, normal) == 1
        }

    def turn(self, move: str) -> None:
        normal = NORMALS[move[0]]
        turn = rotation(normal)
        for _ in range({"": 1, "2": 2, "'": 3}[move[1:]]):
            self.shows = {
                (tuple(turn @ at), tuple(turn @ way)) if np.dot(at, normal) == 1 else (at, way): c
                for (at, way), c in self.shows.items()
            }


@pytest.mark.parametrize(("batch", "longest"), [(12, 16), (1, 64)])
def test_rotating_coordinates_finds_the_answers(batch: int, longest: int) -> None:
    task = tasks.get("cube")
    for words, asked in rows(task, draw("cube", batch, longest)):
        cube = Cube()
        for t, word in enumerate(words):
            if word in MOVES:
                cube.turn(word)
            else:
                corner, face = STICKERS[int(word[2:])]
                assert asked[t] == cube.shows[corner, NORMALS[face]]
        assert len(asked) == sum(word.startswith("?") for word in words)


def test_the_group() -> None:
    """3 674 160 positions; a move has order 4, R U has order 15, R U R' U' order 6."""
    moves = {name: Permutation(row) for name, row in zip(MOVES, MAPS, strict=True)}
    assert PermutationGroup([moves["U"], moves["R"], moves["F"]]).order() == 3_674_160
    assert [moves[name].order() for name in MOVES] == [4, 2, 4] * 3
    assert (moves["R"] * moves["U"]).order() == 15
    assert (moves["R"] * moves["U"] * moves["R'"] * moves["U'"]).order() == 6


def test_chance_is_the_best_constant_answer() -> None:
    counts = [sum(face == colour for _, face in STICKERS) for colour in COLOURS]
    assert sorted(counts) == [3, 3, 3, 4, 4, 4]
    assert tasks.get("cube").chance == 4 / 21


def test_depths_count_moves_of_the_sticker() -> None:
    task = tasks.get("cube")
    assert task.depths is not None
    batch = draw("cube", 50, 16)
    found = task.depths(batch)
    operations, ages = found.operations[batch.mask], found.age[batch.mask]
    assert (operations <= ages).all() and ages.max() == 16 and operations.max() > 8
    assert 0.4 < (operations.sum() / ages.sum()).item() < 0.7  # a move turns 12 of 21 stickers
