"""Compiled machines as ordinary taggers: right to the length they say, and trainable."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from statetrack import tasks
from statetrack.analysis.probes import every_word
from statetrack.automata import Machine, read
from statetrack.compiler import compile
from statetrack.compiler.to_tagger import to_tagger
from statetrack.models import Tagger, TaggerConfig
from statetrack.tasks import LengthRange
from tests.automata.cases import lively_word

LENGTH = 1000
NAMES = [
    "parity",  # compiles to a diagonal layer
    "z3",
    "s3",
    "s3_swaps",
    "s5_swaps",
    "(aa)*",
    "(a|b)*ab",  # resets
    "(a|b)*a(a|b)",  # a shift register
    "(ab)*",  # a sink
    "dyck_2_depth_3",  # compiles to four layers
    "counter_5",
]


def classes(machine: Machine, words: np.ndarray) -> np.ndarray:
    """By the machine itself: the class after every letter."""
    output = np.unique(machine.outputs, return_inverse=True)[1].reshape(-1)
    return np.asarray(output[machine.run(words)])


def words_of(machine: Machine, length: int) -> np.ndarray:
    """Random words, and every short word again and again."""
    rng = np.random.default_rng(0)
    short = [every_word(machine.num_letters, size, 2**10) for size in (1, 2, 3)]
    powers = [np.resize(word, length) for group in short for word in group]
    chosen = [powers[i] for i in rng.permutation(len(powers))[:24]]
    return np.concatenate([rng.integers(0, machine.num_letters, (8, length)), np.stack(chosen)])


@pytest.mark.parametrize("name", NAMES)
def test_it_is_right_to_the_length_it_says(name: str) -> None:
    machine = read(name)
    tagger = compile(machine).to_tagger(LENGTH)
    for words in (words_of(machine, LENGTH), every_word(machine.num_letters, 9, 2**12)):
        with torch.no_grad():
            scores, _ = tagger(torch.from_numpy(words))
        assert scores.isfinite().all() and scores.abs().max() < 50
        assert (scores.argmax(-1).numpy() == classes(machine, words)).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_has_a_gradient(name: str) -> None:
    machine = read(name)
    task = tasks.from_machine(
        machine,
        balance=machine.num_states < 60,
        train_lengths=LengthRange(3, 16),
        eval_lengths=LengthRange(16, 32),
    )
    tagger = compile(machine).to_tagger(LENGTH)
    assert isinstance(tagger, Tagger) and tagger.config.vocab_size == task.vocab_size
    assert TaggerConfig.from_json(tagger.config.to_json()) == tagger.config
    batch = task.sample(32, 16, min_length=3, generator=torch.Generator().manual_seed(0))
    scores, _ = tagger(batch.tokens)
    assert (scores.argmax(-1) == batch.targets)[batch.mask].all()
    cross_entropy(scores[batch.mask], batch.targets[batch.mask]).backward()
    for parameter in tagger.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0


def test_noise_is_trained_away() -> None:
    """Each weight is off by a twentieth of the largest of its tensor: fine-tuning mends it."""
    machine = read("s3_swaps")
    task = tasks.from_machine(machine)
    tagger = compile(machine).to_tagger(256)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in tagger.parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            parameter += 0.05 * parameter.abs().max() * noise
    optimizer = torch.optim.Adam(tagger.parameters(), lr=3e-3)
    batch = task.sample(64, 40, min_length=40, generator=draw)

    def accuracy() -> float:
        with torch.no_grad():
            right = tagger(batch.tokens)[0].argmax(-1) == batch.targets
        return float(right[batch.mask].float().mean())

    before = accuracy()
    for _ in range(60):
        fresh = task.sample(64, 40, min_length=3, generator=draw)
        scores, _ = tagger(fresh.tokens)
        loss = cross_entropy(scores[fresh.mask], fresh.targets[fresh.mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert before < 0.95 < 0.99 < accuracy()


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("a*b*", 3),  # resets alone
        ("cerny_4", 3),  # permutations and resets
        pytest.param("t_4", 3, marks=pytest.mark.slow),
        pytest.param("mod_arithmetic_3", 3, marks=pytest.mark.slow),
        pytest.param("(aab|bba)*", 1, marks=pytest.mark.slow),  # has a form with one layer
    ],
)
def test_cascades_become_taggers_of_several_layers(name: str, layers: int) -> None:
    machine = read(name)
    tagger = compile(machine).to_tagger(LENGTH)
    assert len(tagger.config.backbone.mixers) == layers
    assert TaggerConfig.from_json(tagger.config.to_json()) == tagger.config
    lively = lively_word(np.random.default_rng(0), machine, 8 * LENGTH).reshape(8, LENGTH)
    for words in (lively, words_of(machine, LENGTH), every_word(machine.num_letters, 9, 2**12)):
        scores, _ = tagger(torch.from_numpy(words))
        assert scores.isfinite().all() and scores.abs().max() < 50
        assert (scores.argmax(-1).numpy() == classes(machine, words)).all()
    cross_entropy(
        scores.flatten(0, 1), torch.from_numpy(classes(machine, words)).flatten()
    ).backward()
    for parameter in tagger.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0


def test_a_cascade_that_is_wrong_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what a reset leaves were too little to be told from nothing."""
    monkeypatch.setattr("statetrack.compiler.cascade_to_tagger.FADE", 1e-9)
    with pytest.raises(ValueError, match=r"as a cascade: it is wrong after \d+ letters"):
        to_tagger(read("cerny_4"), 100)


@pytest.mark.parametrize(
    ("name", "max_length", "message"),
    [
        ("cerny_8", 256, "no tagger is made of .* as a cascade: too large: weights of a tagger"),
        ("parity", 0, "max_length=0 must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(name: str, max_length: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        to_tagger(read(name), max_length)


def test_a_machine_with_one_answer_is_refused() -> None:
    machine = Machine.from_table([[1, 0], [0, 1]], outputs=[7, 7])
    with pytest.raises(ValueError, match="the same after every word"):
        compile(machine).to_tagger()
