"""The rules and labels of chess against python-chess."""

import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from statetrack import tasks
from statetrack.tasks import IGNORE
from statetrack.tasks.applied.chess import (
    FIFTY,
    LABELS,
    MOVES,
    NONE,
    PIECES,
    Position,
    drawn,
    labels,
    legal,
    played,
    rules,
)
from tests.tasks.oracles import draw

oracle = pytest.importorskip("chess")

RULES = rules(torch.device("cpu"))
NUMBER = {str(move): number for number, move in enumerate(MOVES)}
# Positions that move generators are tried on: castling, pins, checks, en passant, promotions.
TRICKY = [
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1",
    "r2q1rk1/pP1p2pp/Q4n2/bbp1p3/Np6/1B3NBn/pPPP1PPP/R3K2R b KQ - 0 1",
    "rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8",
    "8/8/8/8/k2Pp2Q/8/8/3K4 b - d3 0 1",  # en passant would lay the king bare on its rank
    "8/8/8/2k5/3Pp3/8/8/4K3 b - d3 0 1",  # en passant takes the pawn that gives check
    "3k4/8/8/8/3pP3/8/8/3RK3 b - e3 0 1",  # en passant leaves the file of the king
    "4k3/8/8/8/8/8/4q3/R3K2R w KQ - 0 1",
    "r3k2r/8/8/8/8/8/6q1/R3K2R w KQkq - 0 1",
    "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1",
    "8/PPP4k/8/8/8/8/4Kppp/8 w - - 0 1",
]


def position_of(boards: list["oracle.Board"]) -> Position:
    def rights(board: "oracle.Board") -> list[bool]:
        sides = (board.has_kingside_castling_rights, board.has_queenside_castling_rights)
        return [side(colour) for colour in (oracle.WHITE, oracle.BLACK) for side in sides]

    pieces = [[str(board.piece_at(square) or ".") for square in range(64)] for board in boards]
    return Position(
        pieces=torch.tensor([[PIECES.index(piece) for piece in row] for row in pieces]),
        black=torch.tensor([board.turn == oracle.BLACK for board in boards]),
        rights=torch.tensor([rights(board) for board in boards]),
        passed=torch.tensor([NONE if b.ep_square is None else b.ep_square for b in boards]),
        clock=torch.tensor([board.halfmove_clock for board in boards]),
        number=torch.tensor([board.fullmove_number for board in boards]),
    )


def assert_same_moves(boards: list["oracle.Board"]) -> list[list[int]]:
    """The numbers of the legal moves, which are python-chess's."""
    found = legal(position_of(boards), RULES)
    wanted = [sorted(NUMBER[move.uci()] for move in board.legal_moves) for board in boards]
    for board, row, moves in zip(boards, found, wanted, strict=True):
        assert row.nonzero().flatten().tolist() == moves, board.fen()
    return wanted


def assert_same_successors(boards: list["oracle.Board"], moves: list[int]) -> None:
    after = played(position_of(boards), torch.tensor(moves), RULES)
    for board, move in zip(boards, moves, strict=True):
        board.push_uci(str(MOVES[move]))
    for name, mine, theirs in zip(Position._fields, after, position_of(boards), strict=True):
        assert torch.equal(mine, theirs), name


def walk(fens: list[str], plies: int, seed: int) -> int:
    """Plays random games in step and compares every position; how many there were."""
    chosen = random.Random(seed)
    boards = [oracle.Board(fen) for fen in fens]
    seen = 0
    for _ in range(plies):
        moves = assert_same_moves(boards)
        seen += len(boards)
        going = [(b, m) for b, m in zip(boards, moves, strict=True) if m]
        boards = [board for board, _ in going]
        if not boards:
            break
        assert_same_successors(boards, [chosen.choice(m) for _, m in going])
    return seen


def test_legal_moves_and_successors_of_random_games() -> None:
    assert walk([oracle.STARTING_FEN] * 8, 30, seed=0) == 240


@pytest.mark.slow
def test_legal_moves_and_successors_of_many_games() -> None:
    assert walk([oracle.STARTING_FEN] * 40, 300, seed=1) > 6000


@pytest.mark.parametrize("seed", range(2))
def test_tricky_positions(seed: int) -> None:
    assert walk(TRICKY * 2, 10, seed=seed) > 100


@pytest.mark.slow
@pytest.mark.parametrize("fen", [*TRICKY, oracle.STARTING_FEN])
def test_every_move_from_tricky_positions(fen: str) -> None:
    (moves,) = assert_same_moves([oracle.Board(fen)])
    boards = [oracle.Board(fen) for _ in moves]
    assert_same_successors(boards, moves)
    assert_same_moves(boards)


def test_moves() -> None:
    assert len(MOVES) == 1968 == len(NUMBER)
    assert sum(move.promotion > 0 for move in MOVES) == 176
    assert len(LABELS) == 75 and sum(LABELS) == 1878


def test_labels_of_the_first_moves() -> None:
    at = Position.start(1, torch.device("cpu"))
    for move in ("e2e4", "e7e5", "g1f3"):
        assert legal(at, RULES)[0, NUMBER[move]]
        at = played(at, torch.tensor([NUMBER[move]]), RULES)
        if move == "e2e4":
            assert labels(at)[0, 64:].tolist() == [1, 1, 1, 1, 1, 5, 1, 0, 0, 0, 1]
    found = labels(at)[0].tolist()
    rows = ["".join(PIECES[piece] for piece in found[8 * r : 8 * r + 8]) for r in range(8)]
    assert rows == [
        *("rnbqkbnr", "pppp.ppp", "........", "....p..."),
        *("....P...", ".....N..", "PPPP.PPP", "RNBQKB.R"),
    ]
    assert found[64:] == [1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 2]


def test_games_are_legal_and_labelled() -> None:
    task = tasks.get("chess")
    batch = draw(task, 4, 60)
    for tokens, targets, mask in zip(batch.tokens, batch.targets, batch.mask, strict=True):
        board = oracle.Board()
        assert task.token_names[tokens[0]] == "START" and mask[0]
        for t in range(len(tokens)):
            if not mask[t]:
                assert tokens[t] == task.pad_id and (targets[t] == IGNORE).all()
                continue
            if t:
                move = oracle.Move.from_uci(task.token_names[tokens[t]])
                assert move in board.legal_moves
                board.push(move)
            assert targets[t].tolist() == labels(position_of([board]))[0].tolist()


def test_moves_are_uniform_and_games_end() -> None:
    batch = draw("chess", 3000, 1)
    counts = torch.bincount(batch.tokens[:, 1])
    counts = counts[counts > 0]
    assert len(counts) == 20 and counts.min() > 100 and counts.max() < 210


@pytest.mark.parametrize(
    ("fen", "over"),
    [
        ("8/8/4k3/8/8/3K4/8/8 w - - 0 1", True),
        ("8/8/4k3/8/2n5/3K4/8/8 w - - 0 1", True),
        ("8/8/4k3/8/2n5/3K4/7b/8 w - - 0 1", False),
        ("8/8/4k3/8/8/3K4/7P/8 w - - 0 1", False),
        (f"8/8/4k3/8/8/3K4/7R/8 w - - {FIFTY} 90", True),
        (f"8/8/4k3/8/8/3K4/7R/8 w - - {FIFTY - 1} 90", False),
    ],
)
def test_draws(fen: str, over: bool) -> None:
    assert drawn(position_of([oracle.Board(fen)])).tolist() == [over]


class Counting(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_more_games_are_no_more_operations() -> None:
    """Which is why training draws many batches at once where operations wait for their launch."""
    counts = []
    for games in (2, 64):
        with Counting() as counting:
            draw("chess", games, 3)
        counts.append(counting.count)
    assert counts[0] == counts[1] > 100
