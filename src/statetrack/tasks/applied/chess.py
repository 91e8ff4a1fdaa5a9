"""Chess: read the moves of a random game, and say the whole position after each of them.

    START e2e4 e7e5 g1f3

Every move is drawn uniformly from the legal ones. A token is one of the 1,968 moves that some piece
can make on some board, promotions apart. The 75 labels after every token, the first among them, are
those of a FEN: 64 squares from a8 to h1 (0 empty, PNBRQK, pnbrqk), the side to move, four castling
rights, the file and the rank of the square behind a pawn that has just moved two, and high and low
byte of the halfmove clock and of the move number.

A game ends at mate, stalemate, bare kings (with at most one bishop or knight) or after a hundred
plies without a capture or a pawn's move. Length counts plies; a game that ends is shorter.

The rules are masks over the moves, for all games at once; only the plies come one after the other.
Squares are numbered from a1, 0, by ranks to h8, 63, and sets of squares are the bits of an int64.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statetrack._typing import Bool, Float, Int
from statetrack.tasks._sampling import DeviceTable, lengths_of
from statetrack.tasks._task import IGNORE, Batch, LengthRange, Source, Task
from statetrack.tasks.applied._text import dice

__all__ = ["LABELS", "MOVES", "Position", "Tables", "chess", "labels", "legal", "played", "rules"]

PIECES = ".PNBRQKpnbrqk"
PAWN, KNIGHT, BISHOP, ROOK, QUEEN, KING = range(1, 7)
BLACK = 6
"""What a black piece is more than a white one."""
FIRST_RANK = (ROOK, KNIGHT, BISHOP, QUEEN, KING, BISHOP, KNIGHT, ROOK)
WHITE_KING_SIDE, WHITE_QUEEN_SIDE, BLACK_KING_SIDE, BLACK_QUEEN_SIDE = range(4)
NONE = -1
FIFTY = 100

LABELS: tuple[int, ...] = (*(13,) * 64, 2, *(2,) * 4, 9, 3, *(256,) * 4)
"""The number of classes of every label."""
PARTS = {"board": (0, 64), "position": (0, 71)}
"""Labels that are also judged alone: the squares, and all but the two counters."""
TRAIN, EVALUATE = LengthRange(128, 128), LengthRange(512, 512)
TOGETHER = 32
"""Batches that are drawn at once on a GPU: a ply there is a chain of small kernels, whose number
does not grow with that of the games."""


class Move(NamedTuple):
    """From a square to a square; `promotion` is a kind of piece, or 0."""

    source: int
    target: int
    promotion: int

    def __str__(self) -> str:
        letter = ".pnbrq"[self.promotion] if self.promotion else ""
        return _square(self.source) + _square(self.target) + letter


def _square(number: int) -> str:
    return "abcdefgh"[number % 8] + str(number // 8 + 1)


def _step(source: int, target: int) -> tuple[int, int]:
    """Files and ranks between two squares."""
    return target % 8 - source % 8, target // 8 - source // 8


def _on_a_line(source: int, target: int) -> bool:
    files, ranks = _step(source, target)
    return source != target and (files == 0 or ranks == 0 or abs(files) == abs(ranks))


def _reaches(kind: int, source: int, target: int) -> bool:
    """Whether an officer goes from square to square on an empty board."""
    files, ranks = (abs(step) for step in _step(source, target))
    if kind == KNIGHT:
        return {files, ranks} == {1, 2}
    if kind == KING:
        return max(files, ranks) == 1
    straight, diagonal = (files == 0) != (ranks == 0), files == ranks != 0
    return (kind in (ROOK, QUEEN) and straight) or (kind in (BISHOP, QUEEN) and diagonal)


def _moves() -> list[Move]:
    found = []
    for source in range(64):
        for target in range(64):
            if _reaches(QUEEN, source, target) or _reaches(KNIGHT, source, target):
                found.append(Move(source, target, 0))
    for source in range(64):
        for target in range(64):
            files, ranks = _step(source, target)
            last = (source // 8, ranks) in ((6, 1), (1, -1))
            if last and abs(files) <= 1:
                found += [Move(source, target, kind) for kind in (QUEEN, ROOK, BISHOP, KNIGHT)]
    return found


MOVES = tuple(_moves())
TOKENS = ("[PAD]", "START", *map(str, MOVES))
PAD, START, FIRST_MOVE = 0, 1, 2


def _bit(square: int) -> int:
    """The bit of a square in an int64, whose highest one is its sign."""
    return 1 << square if square < 63 else -(1 << 63)


def _between(source: int, target: int) -> int:
    if not _on_a_line(source, target):
        return 0
    files, ranks = _step(source, target)
    count = max(abs(files), abs(ranks))
    step = files // count + 8 * (ranks // count)
    return sum(_bit(source + step * n) for n in range(1, count))


def _line(source: int, target: int) -> int:
    """All squares on the line through two squares; none if there is no such line."""
    if not _on_a_line(source, target):
        return 0
    files, ranks = _step(source, target)
    return sum(
        _bit(square)
        for square in range(64)
        if files * (square // 8 - source // 8) == ranks * (square % 8 - source % 8)
    )


def _goes(piece: int, move: Move, *, captures: bool) -> bool:
    """Whether a piece makes a move to an empty square, or to one with an enemy; not castling."""
    kind, colour = (piece - 1) % 6 + 1, 1 if piece > BLACK else 0
    if kind != PAWN:
        return not move.promotion and _reaches(kind, move.source, move.target)
    files, ranks = _step(move.source, move.target)
    ahead, rank = (-ranks, 7 - move.source // 8) if colour else (ranks, move.source // 8)
    if (rank == 6) != bool(move.promotion) or rank in (0, 7):
        return False
    if captures:
        return ahead == 1 and abs(files) == 1
    return files == 0 and (ahead == 1 or (ahead == 2 and rank == 1))


def _attacks(piece: int, source: int, target: int) -> bool:
    """Whether a piece strikes at a square, if nothing stands between."""
    kind = (piece - 1) % 6 + 1
    if kind != PAWN:
        return _reaches(kind, source, target)
    files, ranks = _step(source, target)
    return abs(files) == 1 and ranks == (-1 if piece > BLACK else 1)


CASTLING = (
    # king from, king to, rook from, rook to, squares the king may not be struck on
    (4, 6, 7, 5, (4, 5, 6)),
    (4, 2, 0, 3, (4, 3, 2)),
    (60, 62, 63, 61, (60, 61, 62)),
    (60, 58, 56, 59, (60, 59, 58)),
)


QUIET, CAPTURE = 1, 2
"""Bits of `Tables.goes`: a piece makes a move to an empty square, to one of the other side."""


def _near(king: int) -> list[int]:
    """Where a king is after a move, castling too, and what it passes; filled up with its square."""
    found = [square for square in range(64) if _reaches(KING, king, square)]
    found += [king - 2, king + 2] if king in (4, 60) else []
    return [*found, *[king] * (11 - len(found))]


def _passing(square: int, side: int) -> int:
    """Where a pawn stands that takes on `square` en passant, from the left or the right."""
    rank = square // 8
    source = square + (8 if rank == 2 else -8) + side
    beside = rank in (2, 5) and abs(source % 8 - square % 8) == 1
    return source if beside else NONE


class Tables:
    """What the rules need, on one device."""

    def __init__(self, device: torch.device) -> None:
        def table(values: object, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device)

        officers = range(1, 13)
        squares = range(64)
        self.source = table([move.source for move in MOVES])
        self.target = table([move.target for move in MOVES])
        self.promotion = table([move.promotion for move in MOVES])
        self.bits = table([_bit(square) for square in squares])
        between = torch.tensor([[_between(a, b) for b in squares] for a in squares])
        self.between = between.to(device)
        self.path = between[[m.source for m in MOVES], [m.target for m in MOVES]].to(device)
        # By the square of a king: the moves along a line through it, and the squares it may go to.
        lines = [[_line(king, square) for square in squares] for king in squares]
        self.along = table(
            [[bool(line[m.source] & _bit(m.target)) for m in MOVES] for line in lines], torch.bool
        )
        self.near = table([_near(king) for king in squares])
        nothing = [False] * len(MOVES)
        quiet, capture = (
            torch.tensor([nothing, *([_goes(p, m, captures=it) for m in MOVES] for p in officers)])
            for it in (False, True)
        )
        self.goes = (quiet * QUIET + capture * CAPTURE).byte().T.contiguous().to(device)
        none = [[False] * 64] * 64
        attacks = [[[_attacks(p, a, b) for b in squares] for a in squares] for p in officers]
        self.attacks = table([none, *attacks], torch.bool)
        slides = [
            piece != 0 and (piece - 1) % 6 + 1 in (BISHOP, ROOK, QUEEN) for piece in range(13)
        ]
        self.slides = table(slides, torch.bool)
        # En passant: from which squares pawns take behind one that has moved two, and the moves.
        passing = [[_passing(square, side) for side in (-1, 1)] for square in squares]
        self.pawns = table(passing)
        self.passing = table(
            [
                [0 if a == NONE else MOVES.index(Move(a, square, 0)) for a in passing[square]]
                for square in squares
            ]
        )
        # Castling: the moves, and the rights that last when a piece leaves or takes a square.
        self.castles = table([MOVES.index(Move(king, to, 0)) for king, to, *_ in CASTLING])
        self.castle_path = table([_between(king, rook) for king, _, rook, _, _ in CASTLING])
        self.castle_safe = table([safe for *_, safe in CASTLING])
        lost = [[square in (king, rook) for king, _, rook, *_ in CASTLING] for square in squares]
        self.keeps = ~table(lost, torch.bool)
        self.rook = table([[rook, to] for _, _, rook, to, _ in CASTLING])


@functools.cache
def rules(device: torch.device) -> Tables:
    """The rules on a device, made once."""
    return Tables(device)


class Position(NamedTuple):
    """Positions of many games.

    Attributes:
        pieces: by square, as in `PIECES`.
        black: whether black is to move.
        rights: to castle, white first, the king's side first.
        passed: the square behind a pawn that has just moved two, or `NONE`.
        clock: plies since the last capture or pawn's move.
        number: of the move, from 1.
    """

    pieces: Int[Tensor, "games 64"]
    black: Bool[Tensor, "games"]
    rights: Bool[Tensor, "games 4"]
    passed: Int[Tensor, "games"]
    clock: Int[Tensor, "games"]
    number: Int[Tensor, "games"]

    @staticmethod
    def start(games: int, device: torch.device) -> "Position":
        """The first position of `games` games."""
        zeros = torch.zeros(games, dtype=torch.long, device=device)
        return Position(
            pieces=_START.on(device).repeat(games, 1),
            black=zeros.bool(),
            rights=torch.ones(games, 4, dtype=torch.bool, device=device),
            passed=zeros + NONE,
            clock=zeros,
            number=zeros + 1,
        )


_START = DeviceTable(
    [*FIRST_RANK, *(PAWN,) * 8, *(0,) * 32, *(PAWN + BLACK,) * 8, *(p + BLACK for p in FIRST_RANK)]
)


def legal(at: Position, tables: Tables) -> Bool[Tensor, "games moves"]:
    """Which of `MOVES` are legal."""
    pieces, black = at.pieces, at.black[:, None]
    owner = (pieces > BLACK).long() - ((pieces > 0) & (pieces <= BLACK)).long()  # 1, -1, 0
    mine = torch.where(black, 1, -1)
    own, enemy = owner == mine, owner == -mine
    king = (pieces == KING + BLACK * black).long().argmax(dim=1, keepdim=True)
    occupied = (tables.bits * (pieces > 0)).sum(dim=1, keepdim=True)

    # The king: who strikes at it, and who of its own stands alone between it and a slider.
    square = torch.arange(64, device=pieces.device)
    foes = pieces * enemy
    aims = tables.attacks[foes, square, king]
    blockers = tables.between[square, king] & occupied
    checks = aims & (blockers == 0)
    checkers = checks.sum(dim=1, keepdim=True)
    alone = aims & (blockers != 0) & (blockers & (blockers - 1) == 0)
    guards = torch.where(alone, blockers, 0).sum(dim=1, keepdim=True)  # one bit for each pin
    where = torch.where(checks, tables.between[square, king] | tables.bits, 0)
    answers = torch.where(checkers == 1, where.sum(dim=1, keepdim=True), 0)
    answers = torch.where(checkers == 0, -1, answers)

    # Squares about the king that are struck when it has left its own.
    without = occupied & ~tables.bits[king]
    near = tables.near[king.squeeze(1)]
    from_, to = square[:, None], near[:, None, :]
    strikes = tables.attacks[foes[..., None], from_, to]
    strikes &= tables.between[from_, to] & without[..., None] == 0
    struck = torch.zeros_like(own).scatter(1, near, strikes.any(dim=1))

    # What can be said of a square is said there, and read by the moves from it or to it.
    source, target = tables.source, tables.target
    goes = tables.goes[_numbers(tables), (pieces * own)[:, source]]
    meets = torch.where(enemy, CAPTURE, torch.where(owner == 0, QUIET, 0)).byte()
    allowed = (tables.path & occupied == 0) & (goes & meets[:, target] != 0)
    pinned, saves = guards & tables.bits != 0, answers & tables.bits != 0
    along = tables.along[king.squeeze(1)]
    free = torch.where(
        source == king, ~struck[:, target], saves[:, target] & (~pinned[:, source] | along)
    )
    found = allowed & free

    # En passant, by trying it: both pawns leave their rank at once, which pins do not show.
    behind = at.passed.clamp(min=0)
    victim = behind[:, None] + torch.where(black, 8, -8)
    others = (checks & ~tables.slides[pieces] & (square != victim)).any(dim=1, keepdim=True)
    gone = occupied & ~tables.bits[victim.clamp(min=0, max=63)] | tables.bits[behind][:, None]
    pawns = tables.pawns[behind]
    stands = pawns.clamp(min=0)
    left = gone & ~tables.bits[stands]
    lines = (aims & tables.slides[pieces])[..., None] & (
        tables.between[square, king][..., None] & left[:, None, :] == 0
    )
    passes = (pawns >= 0) & (at.passed[:, None] >= 0) & ~(others | lines.any(dim=1))
    passes &= pieces.gather(1, stands) == PAWN + BLACK * black
    moves = tables.passing[behind]
    found = found.scatter(1, moves, found.gather(1, moves) | passes)

    # Castling.
    clear = tables.castle_path & occupied == 0
    safe = ~struck[:, tables.castle_safe].any(dim=2) & (checkers == 0)
    turn = torch.stack([~at.black, ~at.black, at.black, at.black], dim=1)
    castles = at.rights & clear & safe & turn
    return found.index_copy(1, tables.castles, found[:, tables.castles] | castles)


def _numbers(tables: Tables) -> Tensor:
    return torch.arange(len(MOVES), device=tables.source.device)


def played(at: Position, move: Int[Tensor, "games"], tables: Tables) -> Position:
    """The positions after a legal move in each game."""
    source, target = tables.source[move][:, None], tables.target[move][:, None]
    promotion, black = tables.promotion[move][:, None], at.black[:, None]
    piece = at.pieces.gather(1, source)
    is_pawn = piece - BLACK * black == PAWN
    castling = (piece - BLACK * black == KING) & (move[:, None] == tables.castles)
    takes = at.pieces.gather(1, target) != 0

    square = torch.arange(64, device=move.device)
    passing = is_pawn & (target == at.passed[:, None])
    victim = torch.where(passing, at.passed[:, None] + torch.where(black, 8, -8), NONE)
    pieces = at.pieces.masked_fill((square == source) | (square == victim), 0)
    placed = torch.where(promotion > 0, promotion + BLACK * black, piece)
    pieces = torch.where(square == target, placed, pieces)
    rook = torch.where(castling[..., None], tables.rook, NONE).amax(dim=1)
    pieces = pieces.masked_fill(square == rook[:, :1], 0)
    pieces = torch.where(square == rook[:, 1:], ROOK + BLACK * black, pieces)

    twice = is_pawn & ((target - source).abs() == 16)
    keeps = tables.keeps[source.squeeze(1)] & tables.keeps[target.squeeze(1)]
    return Position(
        pieces=pieces,
        black=~at.black,
        rights=at.rights & keeps,
        passed=torch.where(twice, (source + target) // 2, NONE).squeeze(1),
        clock=torch.where((is_pawn | takes).squeeze(1), 0, at.clock + 1),
        number=at.number + at.black.long(),
    )


def drawn(at: Position) -> Bool[Tensor, "games"]:
    """Whether nobody can win: bare kings, or too long without a capture or a pawn's move."""
    kind = (at.pieces - 1) % 6 + 1
    minor = (at.pieces > 0) & ((kind == KNIGHT) | (kind == BISHOP))
    other = (at.pieces > 0) & (kind != KING) & ~minor
    return (~other.any(dim=1) & (minor.sum(dim=1) <= 1)) | (at.clock >= FIFTY)


def labels(at: Position) -> Int[Tensor, "games labels"]:
    """The position as its 75 labels."""
    board = at.pieces.unflatten(1, (8, 8)).flip(1).flatten(1)
    passed = at.passed
    file = torch.where(passed == NONE, 0, passed % 8 + 1)
    rank = torch.where(passed == NONE, 0, torch.where(passed // 8 == 2, 1, 2))
    counters = [at.clock // 256, at.clock % 256, at.number // 256, at.number % 256]
    rest = torch.stack([file, rank, *counters], dim=1)
    return torch.cat([board, at.black.long()[:, None], at.rights.long(), rest], dim=1)


def chess() -> Task:
    """Random legal games.

    >>> chess().vocab_size, chess().num_classes
    (1970, 1878)
    """
    return Task(
        name="chess",
        summary="the whole position after every move of a random legal game",
        token_names=TOKENS,
        class_names=_class_names(),
        labels=LABELS,
        parts=PARTS,
        pad_id=PAD,
        dense=True,
        judged_by="scaled_accuracy",
        chance=0.0,
        length_means="plies",
        train_lengths=TRAIN,
        eval_lengths=EVALUATE,
        shortest=1,
        fixed_length=True,
        num_tokens=_num_tokens,
        sampler=_sample,
        together=TOGETHER,
    )


def _class_names() -> tuple[str, ...]:
    """Label by label: `a8=.`, `a8=P`, ..., `number_low=255`."""
    board = [f"{_square(8 * rank + file)}" for rank in range(7, -1, -1) for file in range(8)]
    names = [f"{square}={piece}" for square in board for piece in PIECES]
    names += ["side=w", "side=b"]
    names += [f"castle_{letter}={yes}" for letter in "KQkq" for yes in (0, 1)]
    names += [f"ep_file={value}" for value in range(9)] + [f"ep_rank={value}" for value in range(3)]
    counters = ("clock_high", "clock_low", "number_high", "number_low")
    return (*names, *(f"{counter}={value}" for counter in counters for value in range(256)))


def _num_tokens(length: int) -> int:
    return length + 1


def _sample(batch: int, lengths: LengthRange, source: Source, device: torch.device) -> Batch:
    size = lengths_of(batch, lengths, source, device)
    chances = dice((lengths.max,), batch, source, device)
    at = Position.start(batch, device)
    going = torch.ones(batch, dtype=torch.bool, device=device)
    tokens, targets = [torch.full_like(size, START)], [labels(at)]
    tables = rules(at.pieces.device)
    step = _compiled_ply() if device.type == "cuda" else _ply
    for ply in range(lengths.max):
        at, going, token, target = step(
            at, going & (ply < size), chances[:, ply].contiguous(), tables
        )
        tokens.append(token)
        targets.append(target)
    words, answers = torch.stack(tokens, dim=1), torch.stack(targets, dim=1)
    width = int((words != PAD).sum(dim=1).max()) if device.type == "cpu" else words.shape[1]
    words, answers = words[:, :width].contiguous(), answers[:, :width].contiguous()
    return Batch(words, answers, words != PAD)


def _ply(
    at: Position,
    going: Bool[Tensor, "games"],
    chances: Float[Tensor, "games"],
    tables: Tables,
) -> tuple[Position, Tensor, Tensor, Tensor]:
    """One move of every game that goes on: the positions, which go on, tokens and labels."""
    until = legal(at, tables).cumsum(dim=1)
    count = until[:, -1]
    going = going & (count > 0) & ~drawn(at)
    which = (chances * count).long().minimum(count - 1)
    move = (until <= which[:, None]).sum(dim=1).clamp(max=len(MOVES) - 1)
    after = played(at, move, tables)
    at = Position(*(_if(going, new, old) for new, old in zip(after, at, strict=True)))
    token = torch.where(going, FIRST_MOVE + move, PAD)
    return at, going, token, torch.where(going[:, None], labels(at), IGNORE)


@functools.cache
def _compiled_ply() -> Any:
    """On a GPU a hundred small kernels a ply become a few."""
    return torch.compile(_ply, dynamic=False)


def _if(going: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(going.view(-1, *(1,) * (new.dim() - 1)), new, old)
