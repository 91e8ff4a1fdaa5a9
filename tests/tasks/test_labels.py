"""The labels of every task against an evaluator that shares no code with it."""

import re

import pytest

from statetrack import tasks

from .oracles import arithmetic, compose, draw, group_elements, rows

LENGTHS = [(300, 40, None), (60, 256, 40)]  # batch, longest, shortest: training and evaluation


def parity(word: str) -> str:
    return str(word.count("1") % 2)


def even_pairs(word: str) -> str:
    return str(sum(pair in ("01", "10") for pair in zip_pairs(word)) % 2)


def zip_pairs(word: str) -> list[str]:
    return [a + b for a, b in zip(word, word[1:], strict=False)]


def cycle_navigation(word: str) -> str:
    return str((word.count(">") - word.count("<")) % 5)


WORDS = {"parity": parity, "even_pairs": even_pairs, "cycle_navigation": cycle_navigation}


@pytest.mark.parametrize(("batch", "longest", "shortest"), LENGTHS)
@pytest.mark.parametrize("name", WORDS)
def test_words(name: str, batch: int, longest: int, shortest: int | None) -> None:
    task = tasks.get(name)
    for word, asked in rows(task, draw(task, batch, longest, shortest=shortest)):
        assert asked == {len(word) - 1: WORDS[name]("".join(word))}


@pytest.mark.parametrize("name", WORDS)
def test_dense_words(name: str) -> None:
    task = tasks.get(f"{name}_dense")
    for word, asked in rows(task, draw(task, 200, 40)):
        text = "".join(word)
        assert asked == {t: WORDS[name](text[: t + 1]) for t in range(len(text))}


@pytest.mark.parametrize(("batch", "longest", "shortest"), LENGTHS)
@pytest.mark.parametrize("name", ["mod_arithmetic", "mod_arithmetic_brackets"])
def test_arithmetic(name: str, batch: int, longest: int, shortest: int | None) -> None:
    task = tasks.get(name)
    for words, asked in rows(task, draw(task, batch, longest, shortest=shortest)):
        assert words[-1] == "=" and words.count("=") == 1
        assert asked == {len(words) - 1: arithmetic("".join(words[:-1]))}


def test_mod_arithmetic_alternates_digits_and_operators() -> None:
    task = tasks.get("mod_arithmetic")
    for words, _ in rows(task, draw(task, 300, 40)):
        assert re.fullmatch(r"[0-4]([-+*][0-4])*=", "".join(words))


def test_precedence() -> None:
    assert arithmetic("2+3*4") == "4"  # the oracle itself: left to right it would be 0


def test_dense_arithmetic_answers_after_every_operand() -> None:
    task = tasks.get("mod_arithmetic_dense")
    for words, asked in rows(task, draw(task, 200, 40)):
        text = "".join(words)
        expected = {t: arithmetic(text[: t + 1]) for t in range(0, len(text), 2)}
        assert asked == expected | {len(text) - 1: arithmetic(text[:-1])}


@pytest.mark.parametrize(("batch", "longest", "shortest"), LENGTHS)
def test_dense_brackets_close_what_is_open(batch: int, longest: int, shortest: int | None) -> None:
    task = tasks.get("mod_arithmetic_brackets_dense")
    for words, asked in rows(task, draw(task, batch, longest, shortest=shortest)):
        text = "".join(words)
        assert set(asked) == {t for t, token in enumerate(text) if token in "01234)="}
        for t, answer in asked.items():
            read = text[: t + 1].rstrip("=")
            assert answer == arithmetic(read + ")" * (read.count("(") - read.count(")")))


GROUPS = ["s5", "s5_swaps", "s5_3perms", "z60", "s3", "s4", "a5", "d10", "a4_x_z5", "s4_swaps"]


@pytest.mark.parametrize("name", GROUPS)
def test_products(name: str) -> None:
    task = tasks.get(name)
    elements = group_elements(re.sub("_(swaps|3perms)$", "", name))
    read: set[int] = set()
    for words, asked in rows(task, draw(task, 60, 50)):
        assert words[0] == asked[0] == "[BOS]" and len(words) == len(asked) == 51
        product = elements[0]
        for t, word in enumerate(words[1:], 1):
            product = compose(product, elements[int(word)])
            assert elements[int(asked[t])] == product
            read.add(int(word))
    moved = {"swaps": 2, "3perms": 3}.get(name.rsplit("_", 1)[-1], len(elements[0]))
    displaced = [sum(i != j for i, j in enumerate(element)) for element in elements]
    assert read == {i for i, count in enumerate(displaced) if count <= moved}


def test_the_new_element_is_on_the_right() -> None:
    elements = group_elements("s3")
    assert compose(elements[1], elements[2]) != compose(elements[2], elements[1])
    batch = draw("s3", 500, 2)
    for _, first, second in batch.tokens.tolist():
        expected = elements.index(compose(elements[first], elements[second]))
        found = (batch.tokens[:, 1] == first) & (batch.tokens[:, 2] == second)
        assert (batch.targets[found, 2] == expected).all()


@pytest.mark.parametrize(
    ("name", "base", "each"), [("s5_4tokens", "s5", 4), ("z60_2tokens", "z60", 2)]
)
@pytest.mark.parametrize("length", [64, 61])
def test_fillers(name: str, base: str, each: int, length: int) -> None:
    """Targets: the product, held over its fillers and shifted right by their number."""
    task = tasks.get(name)
    elements = group_elements(base)
    batch = draw(task, 30, length)
    assert batch.tokens.shape == (30, length + 1) and batch.mask.all()
    assert task.token_names[len(elements)] == "filler"
    for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        assert tokens[0] == targets[0] == task.token_names.index("[BOS]")
        read = tokens[1:]
        assert all((token == len(elements)) == (t % each > 0) for t, token in enumerate(read))
        product, held = elements[0], []
        for element in read[::each]:
            product = compose(product, elements[element])
            held += [elements.index(product)] * each
        assert targets[1:] == ([0] * (each - 1) + held)[:length]


REGEXES = ["(a|b)*ab", "(ab)*", "(aa)*", "a*b*", "(a|b)*a(a|b)(a|b)", "(ab|ba)*c?", "((a|b){3})*"]


@pytest.mark.parametrize("regex", REGEXES)
def test_regex(regex: str) -> None:
    task = tasks.get(f"regex:{regex}")
    says = {True: "accept", False: "reject"}
    seen = set()
    for word, asked in rows(task, draw(task, 150, 40)):
        text = "".join(word)
        expected = {t: says[bool(re.fullmatch(regex, text[: t + 1]))] for t in range(len(text))}
        assert asked == expected
        seen |= set(expected.values())
    assert seen == set(says.values())
