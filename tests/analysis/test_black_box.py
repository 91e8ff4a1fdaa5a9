"""Models, runs, tasks and functions as functions from words to answers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from statetrack import tasks
from statetrack.analysis.black_box import NOT_A_NUMBER, black_box
from statetrack.automata import Machine, groups, read
from statetrack.compiler import compile
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig, Tagger, paper_config
from statetrack.training import run
from tests.training import tiny

WORDS = np.array([[0, 1, 1, 0], [1, 1, 1, 1]])


def tagger(task: str, **options: object) -> Tagger:
    found = tasks.get(task)
    config = paper_config(
        "DeltaNet",
        vocab_size=found.vocab_size,
        num_classes=found.num_classes,
        d_model=8,
        num_heads=2,
        **options,
    )
    return Tagger(config, generator=torch.Generator().manual_seed(0))


def test_a_tagger_on_a_task_reads_the_tokens_of_the_letters() -> None:
    model = tagger("parity")
    box = black_box(model, "parity")
    assert (box.alphabet, box.tokens, box.before) == ((0, 1), (1, 2), ())
    assert box.target == tasks.get("parity").machine
    with torch.no_grad():
        scores, _ = model(torch.tensor(WORDS + 1))
    assert (box.ask(WORDS) == scores.argmax(-1).numpy()).all()
    assert box.outputs([1, 2, 0, NOT_A_NUMBER]).tolist() == [0, 1, -2, -1]  # 0 is padding


def test_a_word_problem_begins_with_bos() -> None:
    model, task = tagger("s3"), tasks.get("s3")
    box = black_box(model, "s3")
    bos = task.token_names.index("[BOS]")
    assert box.before == (bos,) and box.alphabet == read("s3").alphabet
    with torch.no_grad():
        scores, _ = model(torch.tensor([[bos, 0, 5, 2]]))
    assert (box.ask(np.array([[0, 5, 2]])) == scores.argmax(-1).numpy()[:, 1:]).all()
    swaps = black_box(tagger("s3_swaps"), "s3_swaps")
    names = tasks.get("s3_swaps").token_names
    assert [names[token] for token in swaps.tokens] == [str(letter) for letter in swaps.alphabet]


def test_a_language_says_true_and_false() -> None:
    box = black_box(tagger("regex:(ab)*"), "regex:(ab)*")
    assert box.alphabet == ("a", "b")
    assert box.outputs([0, 1]).tolist() == [False, True] and box.outputs([0]).dtype == bool


def test_a_task_without_a_machine_has_the_letters_of_its_sequences() -> None:
    box = black_box(tagger("s3_2tokens"), "s3_2tokens")
    assert box.alphabet == ("0", "1", "2", "3", "4", "5", "filler") and len(box.before) == 1
    assert box.target is None and box.outputs([3]).tolist() == [3]


@pytest.mark.parametrize("task", ["mod_arithmetic", "mod_arithmetic_dense"])
def test_tasks_that_ask_after_some_words_only_are_refused(task: str) -> None:
    with pytest.raises(ValueError, match="answer after every word of its letters"):
        black_box(tagger(task), task)


def test_a_run_and_its_folder(tmp_path: Path) -> None:
    member = run(tiny.config(), tmp_path)
    from_run, from_folder = black_box(member), black_box(member.folder)
    assert from_run.target == from_folder.target == tasks.get("parity").machine
    assert (from_run.ask(WORDS) == from_folder.ask(WORDS)).all()
    assert (from_run.ask(WORDS) == black_box(member.model(), "parity").ask(WORDS)).all()


def test_a_compiled_network_says_its_states() -> None:
    machine = groups.symmetric(3)
    box = black_box(compile(machine))
    assert box.alphabet == machine.alphabet
    assert (box.ask(WORDS) == machine.run(WORDS)).all()


def test_a_language_model_says_its_likeliest_token() -> None:
    backbone = BackboneConfig(mixers=[("DeltaNet", {"num_heads": 2})] * 2, d_model=16)
    model = CausalLM(CausalLMConfig(vocab_size=50, backbone=backbone)).eval()
    box = black_box(model, alphabet={"yes": 17, "no": 42}, before=(1,))
    with torch.no_grad():
        scores, _ = model(torch.tensor([[1, 42, 17, 17, 42]]))
    assert (box.ask(WORDS[:1]) == scores.argmax(-1).numpy()[:, 1:]).all()


def test_functions_and_letters_in_any_order() -> None:
    box = black_box(lambda tokens: tokens, alphabet="ba")
    assert (box.alphabet, box.tokens) == (("a", "b"), (1, 0))
    assert (box.ask(WORDS) == 1 - WORDS).all()
    named = black_box(lambda tokens: tokens, alphabet={"x": 7, "a": 9}, before=(3, 3))
    assert named.ask(WORDS[:1]).tolist() == [[9, 7, 7, 9]]


def test_scores_that_are_not_numbers_are_no_answer() -> None:
    def scores(tokens: Tensor) -> Tensor:
        found = torch.nn.functional.one_hot(tokens, 2).double()
        found[:, 2:] = torch.nan
        return found

    assert black_box(scores, alphabet=2).ask(WORDS).tolist() == [[0, 1, -1, -1], [1, 1, -1, -1]]


def test_large_batches_are_asked_in_parts() -> None:
    shapes, ticks = [], []

    def answers(tokens: Tensor) -> Tensor:
        shapes.append(tokens.shape)
        return tokens

    words = np.zeros((300, 1024), dtype=np.int64)
    found = black_box(answers, alphabet=1).ask(words, lambda: ticks.append(None))
    assert found.shape == words.shape and len(shapes) == len(ticks) == 5
    assert all(rows * width <= 2**16 for rows, width in shapes)


def test_models_are_asked_in_evaluation_mode_and_put_back() -> None:
    class Mode(nn.Module):
        def forward(self, tokens: Tensor) -> Tensor:
            return torch.full_like(tokens, int(self.training))

    model = Mode().train()
    assert black_box(model, alphabet=2).ask(WORDS).max() == 0 and model.training


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not say what it reads"):
        black_box(lambda tokens: tokens)
    with pytest.raises(ValueError, match="not both"):
        black_box(lambda tokens: tokens, "parity", alphabet=2)
    with pytest.raises(ValueError, match="not the folder of a run"):
        black_box(tmp_path)
    with pytest.raises(ValueError, match="has no letter"):
        black_box(lambda tokens: tokens, alphabet="")
    with pytest.raises(ValueError, match=r"answers of shape \[2\]"):
        black_box(lambda tokens: tokens[:, 0], alphabet=2).ask(WORDS)


def test_machines_of_integers_keep_their_outputs() -> None:
    machine = Machine.from_table([[1, 0], [0, 1]], outputs=[7, 3])
    task = tasks.from_machine(machine)
    config = paper_config("DeltaNet", vocab_size=3, num_classes=2, d_model=8, num_heads=2)
    box = black_box(Tagger(config), task)
    assert box.outputs([0, 1]).tolist() == [3, 7]
