"""Tasks of the harness on a tiny model, against the harness's own model class of transformers."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import PreTrainedTokenizerFast

from statetrack.hf import StatetrackForCausalLM
from statetrack.lm import Text, harness, task_data
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig

WORDS = "the old lamp is on and a red ball fell off one green table near Ann or Ben".split()
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "wikitext": [
        {"page": " = Lamps = \n A lamp , old @-@ fashioned , is 1 @,@ 000 hours on . \n" * n}
        for n in (1, 4)
    ],
    "lambada": [{"text": "The ball is red. One ball fell off the old table"}]
    + [{"text": " ".join(WORDS[i : i + 5])} for i in range(6)],
    "piqa": [
        {
            "goal": f"Turn {n} lamps on",
            "sol1": "press",
            "sol2": "the ball fell " * n,
            "label": n % 2,
        }
        for n in range(1, 6)
    ],
    "hellaswag": [
        {
            "activity_label": "Lamps",
            "ctx_a": "[header] Ann sees a lamp. [title]",
            "ctx_b": "it is",
            "endings": ["on.", "[step] off  again.", "a ball", "green " * n],
            "label": str(n % 4),
        }
        for n in range(1, 5)
    ],
    "winogrande": [
        {
            "sentence": f"Ann saw Ben, and _ fell {'off ' * n}the table.",
            "option1": "Ann",
            "option2": "Ben",
            "answer": str(1 + n % 2),
        }
        for n in range(4)
    ],
    "arc_easy": [
        {
            "question": f"What is {n}?",
            "choices": {"text": ["one ball", "two", "a lamp"], "label": ["A", "B", "C"]},
            "answerKey": "ABC"[n % 3],
        }
        for n in range(4)
    ],
    "swde": [
        {"text": "Colour: red\n" * n + "\nColour: ", "value": "e" * n + " "} for n in range(1, 5)
    ],
}
EXAMPLES["arc_challenge"] = EXAMPLES["arc_easy"][::-1]
EXAMPLES["squad_completion"] = EXAMPLES["fda"] = EXAMPLES["swde"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for task, rows in EXAMPLES.items():
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        task_data.file_of(task, folder).write_text(lines)
    return folder


@pytest.fixture(scope="module")
def text() -> Text:
    return Text.train([" ".join(WORDS)] * 3, 300)


@pytest.fixture(scope="module")
def model(text: Text) -> CausalLM:
    backbone = BackboneConfig(mixers=["DeltaNet", "Attention"], d_model=16, mlp_dim=16)
    config = CausalLMConfig(
        vocab_size=len(text), backbone=backbone, embedding_std=1.0, projection_std=0.3
    )
    return CausalLM(config, generator=torch.Generator().manual_seed(0)).eval()


def theirs(model: CausalLM, text: Text, data: Path, tasks: list[str], length: int) -> Any:
    """The same tasks through HFLM, the class that the harness has for models of transformers."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=text.tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    wrapped = HFLM(
        pretrained=StatetrackForCausalLM.of(model),
        tokenizer=tokenizer,
        batch_size=2,
        max_length=length,
    )
    manager = TaskManager(
        include_path=str(harness.FOLDER), include_defaults=False, metadata={"data": str(data)}
    )
    return evaluator.evaluate(wrapped, manager.load(tasks), bootstrap_iters=0)


def test_the_paper_has_ten_tasks() -> None:
    assert len(task_data.PAPER) == 10
    assert set(task_data.PAPER) == set(EXAMPLES)
    assert harness.known_tasks()[:10] == list(task_data.PAPER)


@pytest.mark.filterwarnings("ignore")  # of transformers and the harness
@pytest.mark.parametrize("length", [64, pytest.param(1024, marks=pytest.mark.slow)])
def test_every_task_is_as_with_the_model_class_of_the_harness(
    model: CausalLM, text: Text, data: Path, length: int
) -> None:
    """Windows of 64 cut the long page and some prompts; 1024 cuts nothing."""
    tasks = list(task_data.PAPER)
    wanted = theirs(model, text, data, tasks, length)["results"]
    results = list(harness.run_tasks(model, text, ["paper"], data, length=length, batch=3))
    assert [one.task for one in results] == tasks
    for one in results:
        assert one.examples == len(EXAMPLES[one.task])
        for metric, value in one.metrics.items():
            assert value == pytest.approx(wanted[one.task][f"{metric},none"], rel=1e-4), one.task


def test_without_a_length_nothing_is_cut(model: CausalLM, text: Text, data: Path) -> None:
    tasks = ["wikitext", "swde"]
    whole = list(harness.run_tasks(model, text, tasks, data))
    for length, same in ((1024, True), (64, False)):
        cut = list(harness.run_tasks(model, text, tasks, data, length=length))
        for one, other in zip(whole, cut, strict=True):
            if one.task == "wikitext":
                close = dict(one.metrics) == pytest.approx(dict(other.metrics), rel=1e-5)
                assert close == same
    with pytest.raises(ValueError, match="length=48 leaves no room for a prompt"):
        list(harness.run_tasks(model, text, ["swde"], data, length=48))


def test_texts_by_hand(model: CausalLM, text: Text, data: Path) -> None:
    """Perplexities and their errors from the losses of the model itself."""
    (found,) = harness.run_tasks(model, text, ["lambada"], data)
    logs, right = [], []
    for row in EXAMPLES["lambada"]:
        before, _, last = row["text"].rpartition(" ")
        tokens = text.encode(row["text"])
        new = len(tokens) - len(text.encode(before))
        scores = model(torch.tensor([tokens[:-1]]))[0][0, -new:].log_softmax(-1)
        asked = torch.tensor(tokens[-new:])
        logs.append(scores.gather(1, asked[:, None]).sum().item())
        right.append(bool((scores.argmax(-1) == asked).all()))
    spread = torch.tensor(logs).std().item() / math.sqrt(len(logs))
    perplexity = math.exp(-sum(logs) / len(logs))
    assert found.metrics["perplexity"] == pytest.approx(perplexity, rel=1e-4)
    assert found.errors["perplexity"] == pytest.approx(perplexity * spread, rel=1e-4)
    assert found.metrics["acc"] == sum(right) / len(right)


def test_the_error_of_a_perplexity_is_that_of_resampling() -> None:
    """Pages of different sizes, against many draws with replacement."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(20, 200, (400,), generator=generator).double()
    logs = -3.0 * words + words.sqrt() * torch.randn(400, generator=generator)
    drawn = torch.randint(400, (2000, 400), generator=generator)
    again = torch.exp(-logs[drawn].sum(1) / words[drawn].sum(1))
    value = math.exp(-(logs.sum() / words.sum()).item())
    pairs = list(zip(logs.tolist(), words.tolist(), strict=True))
    found = harness._standard_error("weighted_perplexity", pairs, value)
    assert found == pytest.approx(again.std().item(), rel=0.1)
    bits = harness._standard_error("bits_per_byte", pairs, math.log2(value))
    assert bits == pytest.approx(again.log2().std().item(), rel=0.1)


def test_progress_reaches_the_end(model: CausalLM, text: Text, data: Path) -> None:
    seen: list[tuple[int, int]] = []
    list(
        harness.run_tasks(
            model, text, ["piqa"], data, batch=4, progress=lambda done, of: seen.append((done, of))
        )
    )
    assert seen == [(4, 10), (8, 10), (10, 10)]


class Asked:
    """What the harness hands to a model."""

    def __init__(self, *args: Any) -> None:
        self.args = args


def test_answers_end_where_the_task_says(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model that counts: token t is followed by t + 1."""

    def count(prompts: Any, *, max_new_tokens: int, **options: Any) -> Any:
        for step in range(1, max_new_tokens + 1):
            yield torch.tensor([prompt[-1] + step for prompt in prompts])

    monkeypatch.setattr(model, "stream", count)
    wrapped = harness.HarnessModel(model, Text.of_bytes(), batch=2)
    options = {"until": ["f", "xy"], "max_gen_toks": 5}
    prompts = [Asked("zz a", options), Asked("t", options), Asked("0", options)]
    assert wrapped.generate_until(prompts) == ["bcde", "uvw", "12345"]
    with pytest.raises(ValueError, match="'num_beams' of generation_kwargs is not known"):
        wrapped.generate_until([Asked("a", {"num_beams": 2})])


def test_a_tokenizer_without_a_token_to_begin_with(data: Path) -> None:
    """Bytes: a newline stands before a text."""
    bytes_alone = Text.of_bytes()
    assert bytes_alone.begin is None and bytes_alone.end is None
    backbone = BackboneConfig(mixers=["DeltaNet"], d_model=16, mlp_dim=16)
    config = CausalLMConfig(vocab_size=256, backbone=backbone, embedding_std=1.0)
    model = CausalLM(config, generator=torch.Generator().manual_seed(0))
    wrapped = harness.HarnessModel(model, bytes_alone)
    (total,) = wrapped.loglikelihood_rolling([Asked("abc")])
    tokens = torch.tensor([[10, 97, 98, 99]])
    losses, _ = model.losses(tokens[:, :-1], tokens[:, 1:])
    assert total == pytest.approx(-losses.sum().item(), rel=1e-5)


# ------------------------------------------------------------------------------ generated tasks


def test_the_lamp_by_hand() -> None:
    rows = task_data.generated(task="state_switch")["test"]
    assert len(rows) == len(task_data.STEPS) * task_data.EACH
    for row in rows:
        presses = row["text"].count("presses the switch")
        began_on = row["text"].startswith("The lamp is on.")
        assert row["label"] == (presses + began_on) % 2
        assert row["text"].count(".") == row["steps"] + 1
    assert 0.4 < sum(rows["label"]) / len(rows) < 0.6


def test_the_balls_by_hand() -> None:
    rows = task_data.generated(task="state_swaps")["test"]
    for row in rows:
        holds: dict[str, str] = {}
        for sentence in row["text"].split(". "):
            words = sentence.split()
            if "swap" in sentence:
                holds[words[0]], holds[words[2]] = holds[words[2]], holds[words[0]]
            elif words[0] != "Now":
                holds[words[0]] = words[3]
        assert row["choices"][row["label"]] == f"{holds[words[1]]} ball"
    assert rows[:5] == task_data.generated(task="state_swaps")["test"][:5]


def test_accuracy_by_the_number_of_events(
    model: CausalLM, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_data, "EACH", 4)
    found = list(harness.run_tasks(model, text, ["state_switch", "state_swaps"], batch=32))
    for one in found:
        parts = [one.metrics[f"acc_{steps}"] for steps in task_data.STEPS]
        assert one.metrics["acc"] == pytest.approx(sum(parts) / len(parts))


# --------------------------------------------------------------------------------------- mistakes


def test_what_is_missing_is_named(model: CausalLM, text: Text, data: Path, tmp_path: Path) -> None:
    def refused(words: str, *tasks: str, folder: Path | None = tmp_path) -> None:
        with pytest.raises(ValueError, match=words) as caught:
            harness.run_tasks(model, text, tasks, folder)
        assert "\n" not in str(caught.value)

    refused("'pica' is unknown; did you mean 'piqa'?", "pica")
    refused("my.yaml does not exist", "my.yaml")
    refused(
        "piqa.jsonl, one JSON object a line with goal, sol1, sol2, label: give", "piqa", folder=None
    )
    refused(r"needs the file .*none/piqa.jsonl.*no such folder", "piqa", folder=tmp_path / "none")
    refused(r"needs the file .*/fda.jsonl, one JSON object a line with text, value", "fda")
    file = tmp_path / "piqa.jsonl"
    file.write_text("")
    refused("piqa.jsonl is empty", "piqa")
    file.write_text('{"goal": "a"}\n')
    refused("line 1: no 'sol1'; piqa has goal, sol1, sol2, label", "piqa")
    file.write_text(json.dumps(EXAMPLES["piqa"][0]) + "\n[1]\n")
    refused("line 2: no JSON object", "piqa")
    file.write_bytes(b"\xff")
    refused("not text in UTF-8", "piqa")
    with pytest.raises(ValueError, match="limit=0 must be at least 1"):
        harness.run_tasks(model, text, ["piqa"], data, limit=0)


def test_a_task_of_your_own(model: CausalLM, text: Text, tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(
        "from datasets import Dataset\n"
        "def rows(**metadata):\n"
        "    return {'test': Dataset.from_list([{'q': 'a', 'label': 0}] * 3)}\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "task: mine\ncustom_dataset: !function rows.rows\noutput_type: multiple_choice\n"
        "test_split: test\ndoc_to_text: '{{q}}'\ndoc_to_choice: ['b', 'c']\n"
        "doc_to_target: label\nmetadata:\n  version: 2.0\n"
    )
    (found,) = harness.run_tasks(model, text, [str(tmp_path / "mine.yaml")])
    assert (found.task, found.version, found.examples) == ("mine", 2.0, 3)
    assert found.metrics["acc"] in (0.0, 1.0)
