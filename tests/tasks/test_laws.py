"""Lengths, widths, shares of tokens and of labels, against PROTOCOL's numbers and exact counts."""

import pytest
import torch

from statetrack import tasks
from statetrack.tasks import LengthRange

from .oracles import APPLIED, draw, looks_uniform, rows

NAMES = [*tasks.available(), "regex:(a|b)*ab", "machine:dyck_2_depth_2"]
PAPER = ["parity", "mod_arithmetic", "mod_arithmetic_brackets"]


def token_counts(name: str, longest: int, shortest: int | None, size: int = 20_000) -> torch.Tensor:
    """How often each number of input tokens occurs."""
    return torch.bincount(draw(name, size, longest, shortest=shortest).num_tokens)


@pytest.mark.parametrize(
    ("name", "train", "evaluation", "step"),
    [
        ("parity", (2, 39), (39, 255), 1),  # bits
        ("even_pairs", (2, 39), (39, 255), 1),
        ("cycle_navigation", (2, 39), (39, 255), 1),
        ("mod_arithmetic", (2, 38), (38, 254), 2),  # operands, operators and =
        ("mod_arithmetic_brackets", (3, 38), (38, 254), 1),  # the expression and =
        ("regex:(a|b)*ab", (3, 40), (40, 256), 1),
    ],
)
def test_lengths(name: str, train: tuple[int, int], evaluation: tuple[int, int], step: int) -> None:
    task = tasks.get(name)
    assert task.train_lengths == LengthRange(3, 40) and task.eval_lengths == LengthRange(40, 256)
    for lengths, (low, high) in ((task.train_lengths, train), (task.eval_lengths, evaluation)):
        size = 20_000 if high < 100 else 4_000
        counts = token_counts(name, lengths.max, lengths.min, size)
        assert len(counts) == high + 1
        assert counts[low::step].sum() == size  # nothing below, nothing in between
        if name == "mod_arithmetic_brackets" and low == 3:
            # 3 and 4 count as 5, so the shortest expression has three times its share.
            assert 2.4 < counts[low] / counts[low + 1 :].float().mean() < 3.6
            low += 1
        assert looks_uniform(counts[low::step])


@pytest.mark.parametrize("name", NAMES)
def test_tokens_and_classes_have_names_of_their_own(name: str) -> None:
    task = tasks.get(name)
    assert len(set(task.token_names)) == task.vocab_size
    assert len(set(task.class_names)) == task.num_classes or task.labels is not None


@pytest.mark.parametrize("name", [name for name in NAMES if name not in APPLIED])
@pytest.mark.parametrize(("batch", "longest", "shortest"), [(3, 40, 5), (1, 30, 30), (50, 70, 40)])
def test_a_batch_is_as_wide_as_its_longest_sequence(
    name: str, batch: int, longest: int, shortest: int
) -> None:
    task = tasks.get(name)
    drawn = draw(task, batch, longest, shortest=shortest)
    assert drawn.tokens.shape == drawn.targets.shape == drawn.mask.shape
    assert drawn.tokens.dtype == drawn.targets.dtype == torch.long
    assert drawn.tokens.shape == (batch, int(drawn.num_tokens.max()))
    assert task.num_tokens(shortest) <= int(drawn.num_tokens.min())
    assert int(drawn.num_tokens.max()) <= task.num_tokens(longest)
    if longest == shortest:
        assert (drawn.num_tokens == task.num_tokens(longest)).all()


@pytest.mark.parametrize("name", [*PAPER, "even_pairs", "cycle_navigation"])
def test_one_answer_for_each_sequence(name: str) -> None:
    batch = draw(name, 500, 40)
    assert (batch.mask.sum(dim=1) == 1).all()
    rows_, last = batch.mask.nonzero(as_tuple=True)
    assert torch.equal(last + 1, batch.num_tokens[rows_])


def test_paper_vocabularies() -> None:
    tokens = {name: tasks.get(name).token_names for name in PAPER}
    assert tokens["parity"] == ("PAD", "0", "1")
    assert tokens["mod_arithmetic"] == ("PAD", *"+-*=", *"01234")
    assert tokens["mod_arithmetic_brackets"] == (*"01234", *"+-*()=", "PAD")
    assert [tasks.get(name).pad_id for name in PAPER] == [0, 0, 11]
    assert [tasks.get(name).chance for name in PAPER] == [0.5, 0.2, 0.2]
    assert all(task.num_classes == task.vocab_size for task in map(tasks.get, PAPER))


@pytest.mark.parametrize(
    ("name", "elements", "vocabulary"),
    [
        *(("s5", 120, 127), ("s5_swaps", 120, 127), ("s5_3perms", 120, 127)),
        *(("s5_4tokens", 120, 128), ("z60", 60, 67), ("z60_2tokens", 60, 68)),
        *(("s3", 6, 13), ("a5", 60, 67), ("d10", 20, 27), ("a4_x_z5", 60, 67)),
    ],
)
def test_group_vocabularies(name: str, elements: int, vocabulary: int) -> None:
    task = tasks.get(name)
    assert task.vocab_size == task.num_classes == vocabulary
    special = task.token_names[-7:]
    assert special == ("[PAD]", "[BOS]", "[UNK]", "[EOS]", "[SEP]", "[CLS]", "[MASK]")
    assert task.pad_id == vocabulary - 7
    assert task.chance == 1 / elements
    assert task.train_lengths.max == (64 if "tokens" in name else 32)
    assert task.eval_lengths == (500, 500)


@pytest.mark.parametrize(("name", "letters"), [("s5", 120), ("s5_swaps", 11), ("s5_3perms", 31)])
def test_group_letters_are_uniform(name: str, letters: int) -> None:
    tokens = draw(name, 1000, 40).tokens[:, 1:]
    counts = torch.bincount(tokens.flatten(), minlength=120)
    assert (counts > 0).sum() == letters
    assert looks_uniform(counts[counts > 0])


def test_group_sequences_of_several_lengths() -> None:
    batch = draw("s3", 2000, 10, shortest=2)
    assert batch.num_tokens.min() == 3 and batch.num_tokens.max() == 11
    assert (batch.mask.sum(dim=1) == batch.num_tokens).all()


def test_bits_are_fair_and_independent() -> None:
    batch = draw("parity", 20_000, 9, shortest=9)
    words = ((batch.tokens - 1) * 2 ** torch.arange(8)).sum(dim=1)
    assert looks_uniform(torch.bincount(words, minlength=256))


@pytest.mark.parametrize(("operands", "zero"), [(1, 1 / 5), (2, 19 / 75), (3, 0.232), (10, 0.2)])
def test_label_law_of_mod_arithmetic(operands: int, zero: float) -> None:
    length = 2 * operands + 1
    batch = draw("mod_arithmetic", 40_000, length, shortest=length)
    assert (batch.num_tokens == 2 * operands).all()
    zeros = (batch.targets[batch.mask] == 5).float().mean()
    assert abs(zeros - zero) < 0.008  # four standard deviations


@pytest.mark.parametrize("name", PAPER)
def test_labels_are_even_at_evaluation(name: str) -> None:
    task = tasks.get(name)
    batch = tasks.evaluation_set(task, 4096)
    counts = torch.bincount(batch.targets[batch.mask])
    assert looks_uniform(counts[counts > 0])
    assert (counts > 0).sum() == round(1 / task.chance)


def test_token_shares_of_brackets_at_evaluation() -> None:
    task = tasks.get("mod_arithmetic_brackets")
    counts = torch.bincount(tasks.evaluation_set(task, 2048).tokens.flatten(), minlength=12)
    shares = dict(zip(task.token_names, (counts[:10] / counts[:10].sum()).tolist(), strict=False))
    for token, share in {"(": 0.26, ")": 0.26, "-": 0.175, "+": 0.098}.items():
        assert abs(shares[token] - share) < 0.004
    assert all(abs(shares[digit] - 0.041) < 0.002 for digit in "01234")
    assert shares["*"] == 0


def parse(text: str, start: int, splits: dict[int, list[int]], operators: list[str]) -> int:
    """The end of the expression at `start`; notes how each node of five or more was split."""
    if text[start] == "-":
        assert text[start + 1] in "01234"
        return start + 2
    if text[start] in "01234":
        return start + 1
    assert text[start] == "("
    middle = parse(text, start + 1, splits, operators)
    if text[middle] == ")":
        assert middle - start in (2, 3), "only a digit or its negative stands alone in brackets"
        return middle + 1
    operators.append(text[middle])
    end = parse(text, middle + 1, splits, operators)
    assert text[end] == ")"
    splits.setdefault(end + 1 - start, []).append(middle - start - 1)
    return end + 1


def test_grammar_of_brackets() -> None:
    """Every node is split uniformly, whatever its depth, with an even choice of operator."""
    task = tasks.get("mod_arithmetic_brackets")
    splits: dict[int, list[int]] = {}
    operators: list[str] = []
    for words, _ in rows(task, draw(task, 6000, 40)):
        assert parse("".join(words), 0, splits, operators) == len(words) - 1
    for size in (5, 6, 8, 11, 14, 17):
        lefts = torch.tensor(splits[size])
        assert lefts.min() >= 1 and lefts.max() <= size - 4
        if size > 5:
            assert looks_uniform(torch.bincount(lefts - 1, minlength=size - 4))
    assert looks_uniform(torch.tensor([operators.count("+"), operators.count("-")]))


def test_short_brackets_have_the_forms_of_the_grammar() -> None:
    task = tasks.get("mod_arithmetic_brackets")
    for length, forms in ((5, "-d"), (6, "(d)"), (7, "(-d)")):
        batch = draw(task, 50, length, shortest=length)
        for words, _ in rows(task, batch):
            text = "".join("d" if word in "01234" else word for word in words)
            assert text == forms + "="
