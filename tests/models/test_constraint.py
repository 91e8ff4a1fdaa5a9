"""Generation that keeps to a machine: whole texts only, in batches, whatever is drawn."""

import pytest
import torch

from statetrack.automata import Machine, over_tokens, read
from statetrack.models import Constraint, Sampling
from tests.models.test_causal_lm import build

PIECES = ["(", ")", "()", "((", "))", ")(", "x", None]
END = 7
DEPTH = 3


def brackets() -> Machine:
    """Brackets of depth 3 with any number of x between them."""
    rows = [[d + 1 if d < DEPTH else None, d - 1 if d else None, d] for d in range(DEPTH + 1)]
    return Machine.from_table(rows, accepting=[0], alphabet="()x")


def made(machine: Machine) -> Constraint:
    tokens = over_tokens(machine, PIECES)
    return Constraint(tokens.machine.delta, tokens.letter, tokens.machine.outputs, end=END)


@pytest.mark.parametrize("left", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("sampling", [None, Sampling(temperature=3.0), Sampling(top_k=2)])
def test_every_text_is_whole(left: int, sampling: Sampling | None) -> None:
    model = build("DeltaNet")
    prompts = [[1, 2, 3], [4], [5, 6]] * 4
    generator = torch.Generator().manual_seed(0)
    found = model.generate(
        prompts,
        max_new_tokens=left,
        sampling=sampling,
        generator=generator,
        constraint=made(brackets()),
    )
    for row in found:
        assert int(row[-1]) == END and len(row) <= left
        assert brackets().accepts("".join(PIECES[token] or "?" for token in row[:-1].tolist()))
    assert left < 5 or len({tuple(row.tolist()) for row in found}) > 1 or sampling is None


def test_tokens_are_allowed_as_long_as_the_text_can_be_finished() -> None:
    constraint = made(brackets())
    start = constraint.start(2)
    opened = constraint.step(start, torch.tensor([3, 6]))  # "((" and "x"
    assert constraint.allowed(opened, 12)[:, END].tolist() == [False, True]
    # two levels deep, "))" and the end take two tokens, and ")" leaves one more to close
    assert constraint.allowed(opened, 2)[0].tolist() == [i == 4 for i in range(8)]
    assert constraint.allowed(opened, 3)[0].tolist() == [i in (1, 4, 5, 6, 2) for i in range(8)]


def test_a_batch_is_as_if_alone_and_the_model_s_choice_is_kept() -> None:
    model = build("DeltaNet")
    prompts = [[1, 2, 3], [4], [5, 6]]
    together = model.generate(prompts, max_new_tokens=9, constraint=made(brackets()))
    for prompt, got in zip(prompts, together, strict=True):
        alone = model.generate([prompt], max_new_tokens=9, constraint=made(brackets()))[0]
        assert torch.equal(got, alone)
    scores = model(torch.tensor([[4]]))[0][0, -1]
    allowed = made(brackets()).allowed(torch.zeros(1, dtype=torch.long), 9)[0]
    best = int(scores[:8].masked_fill(~allowed, -torch.inf).argmax())
    assert int(together[1][0]) == best


def test_what_does_not_fit_is_refused() -> None:
    model = build("DeltaNet")
    long = made(read("xxxxx", "()x"))
    with pytest.raises(ValueError, match="max_new_tokens=3.*takes 6 tokens with its end"):
        model.generate([[1]], max_new_tokens=3, constraint=long)
    nothing = Constraint([[0]], [0, 0], [False], end=1)
    with pytest.raises(ValueError, match="no text of these tokens"):
        model.generate([[1]], max_new_tokens=3, constraint=nothing)
    wide = Constraint([[0]], [0] * 10_000, [True], end=1)
    with pytest.raises(ValueError, match="10000 tokens, and the model knows"):
        model.generate([[1]], max_new_tokens=3, constraint=wide)
    with pytest.raises(ValueError, match="end=5 is not a token"):
        Constraint([[0]], [0, 0], [True], end=5)
    with pytest.raises(ValueError, match="delta has 3 to 3, but must be within 0 to 0"):
        Constraint([[3]], [0, 0], [True], end=1)
