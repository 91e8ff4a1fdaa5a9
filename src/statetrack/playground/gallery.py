"""The machines that the page offers: what each is called, what it does, and a word to try."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GALLERY", "Specimen", "found"]


@dataclass(frozen=True)
class Specimen:
    """A machine of the gallery.

    Attributes:
        text: what `automata.read` makes it of.
        title, about: its name and one sentence, for people.
        kind: the heading it stands under.
        word: letters to begin with, one character each, or names with blanks between them.
    """

    text: str
    title: str
    about: str
    kind: str
    word: str


COUNT, STAR, GROUP, MIXED = "Counting", "Star-free", "Groups", "Groups and resets"

GALLERY: tuple[Specimen, ...] = (
    Specimen("parity", "Parity", "Is the number of ones odd?", COUNT, "1011011101"),
    Specimen("(aa)*", "(aa)*", "Words of even length.", COUNT, "aaaaaaaa"),
    Specimen("z3", "Sum modulo 3", "Adds digits modulo 3.", COUNT, "1121022110"),
    Specimen("z5", "Sum modulo 5", "Adds digits modulo 5.", COUNT, "1432014213"),
    Specimen("z7", "Sum modulo 7", "Adds digits modulo 7.", COUNT, "1111111326"),
    Specimen("z6", "Sum modulo 6", "Modulo 2 and modulo 3 at once.", COUNT, "1111115234"),
    Specimen(
        "(0|1(01*0)*1)*",
        "Multiples of 3",
        "Binary numbers that 3 divides, highest bit first.",
        COUNT,
        "1001110110",
    ),
    Specimen("(a|b)*ab", "Ends in ab", "Words over a and b that end in ab.", STAR, "aababbabab"),
    Specimen("(ab)*", "(ab)*", "a and b in turn, from a to b.", STAR, "abababab"),
    Specimen("a*b*", "a*b*", "First a's, then b's.", STAR, "aaabbbab"),
    Specimen("(b|ab)*a?", "No two a's in a row", "An a is followed by b.", STAR, "abbabababaab"),
    Specimen("(a|b)*aba", "Ends in aba", "A search for aba.", STAR, "ababaabbaba"),
    Specimen(
        "(a|b)*a(a|b){2}",
        "Third letter from the end",
        "Is the third letter from the end an a? A shift register.",
        STAR,
        "abbaabbaba",
    ),
    Specimen(
        "dyck_1_depth_3", "Brackets", "Well matched, nested at most three deep.", STAR, "(()(()))()"
    ),
    Specimen(
        "dyck_2_depth_2", "Two kinds of brackets", "Nested at most two deep.", STAR, "([])[()]([)]"
    ),
    Specimen("s3", "S3", "All orders of three things, multiplied.", GROUP, "1 2 3 5 1 4 2 2"),
    Specimen("d4", "Symmetries of a square", "Four turns, four mirrors.", GROUP, "1 1 4 6 3 5 2 7"),
    Specimen("q8", "Quaternions", "The group of order 8 with i² = -1.", GROUP, "1 2 3 4 5 6 7 1"),
    Specimen(
        "s5_points",
        "S5 on five points",
        "Where a point is after swaps (s) and five-cycles (c). Not solvable.",
        GROUP,
        "csccsccscs",
    ),
    Specimen(
        "a5_points",
        "A5 on five points",
        "A three-cycle (t) and a five-cycle (c). The smallest group that is not solvable.",
        GROUP,
        "ctccttctct",
    ),
    Specimen("z60", "Sum modulo 60", "On 3 + 4 + 5 points.", GROUP, "1 59 20 15 12 7 30 45"),
    Specimen(
        "s5_swaps", "S5 by swaps", "120 states; a letter is one swap.", GROUP, "1 2 5 24 1 14"
    ),
    Specimen(
        "even_a_ends_b", "Even a's, ends in b", "A counter and a register.", MIXED, "aabababbab"
    ),
    Specimen("(a|bb)*", "(a|bb)*", "Every b has a partner.", MIXED, "abbabbbbaab"),
    Specimen(
        "counter_5", "Counter with reset", "a counts modulo 5, r resets.", MIXED, "aaaaaaraara"
    ),
    Specimen(
        "s5_reset", "S5 with reset", "Swaps, cycles, and back to the start.", MIXED, "sccrscscrc"
    ),
    Specimen(
        "cerny_4",
        "Černý's automaton",
        "Its shortest resetting word has 9 letters.",
        MIXED,
        "baaabaaab",
    ),
    Specimen("t_3", "All maps of 3 points", "A cycle, a swap and a merge.", MIXED, "cstcscttsc"),
    Specimen(
        "mod_arithmetic_3",
        "Arithmetic modulo 3",
        "The value of a sum of products, without brackets.",
        MIXED,
        "2+1*2-1*2+2",
    ),
    Specimen(
        "mod_arithmetic",
        "Arithmetic modulo 5",
        "A task of the paper: 61 states, three layers.",
        MIXED,
        "2+3*4-1*2",
    ),
)


def found(text: str) -> Specimen | None:
    """The machine of the gallery that a text asks for.

    >>> found("s3").title, found("(ab)*a") is None
    ('S3', True)
    """
    return next((one for one in GALLERY if one.text == text.strip()), None)
