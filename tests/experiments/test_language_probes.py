"""State tracking in text: what is asked of the model is what Python and a reader would say."""

import re

import pytest
import torch

from statetrack import tasks
from statetrack.experiments import language_probes as probes
from statetrack.lm import Text
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig
from tests.lm import corpus


@pytest.fixture(scope="module")
def words() -> Text:
    """A tokenizer with more than a hundred words of one token."""
    names = [f"{a}{b}{a}{b}" for a in "bcdfghklmn" for b in "aeiouvwxyz"][:110]
    text = " ".join(names) + " Box 0 contains the nothing, Swap the contents of Box 1 and Box 2."
    return Text.train([text] * 20, vocab_size=900)


def model(size: int) -> CausalLM:
    backbone = BackboneConfig(mixers=[("DeltaNet", {"num_heads": 2})], d_model=16, mlp_dim=16)
    config = CausalLMConfig(vocab_size=size, backbone=backbone, projection_std=0.1)
    return CausalLM(config, generator=torch.Generator().manual_seed(0))


def drawn(found: probes.Probe, text: Text, length: int, count: int = 4) -> list[probes.Trace]:
    generator = tasks.generator(found.task.name, "train", seed=0)
    batch = found.task.sample(count, length, min_length=length, generator=generator)
    return probes.traces(found, batch, text)


@pytest.mark.parametrize("name", ["repl_1", "repl_1_silent"])
def test_python_agrees_with_the_trace(name: str) -> None:
    text = corpus.with_end()
    found = probes.probe(name, text)
    for trace in drawn(found, text, 12):
        said = text.decode(trace.tokens)
        starts = [0, *(place + 1 for place in trace.places)]
        variables: dict[str, int] = {}
        answers, lines = [], 0
        for line in said.splitlines():
            if not line.startswith(">>> "):  # an answer, shown or not
                if name == "repl_1":
                    assert line == str(answers[-1])
                else:
                    assert line == "?"
                continue
            lines += 1
            if line.startswith(">>> print"):
                answers.append(eval(line[9:], {}, variables))  # (x1)
            else:
                exec(line[4:], {}, variables)
        assert trace.answers == answers and lines == 13  # the header is one
        assert trace.statements[-1] == 12 and len(trace.places) == len(answers)
        for place in trace.places:
            assert text.decode(trace.tokens[: place + 1]).endswith(")\n")
        assert starts[-1] == len(trace.tokens)


def test_a_reader_agrees_with_the_boxes(words: Text) -> None:
    found = probes.probe("boxes_no_swap", words)
    swapping = probes.probe("boxes", words)
    inverse = {token: words.decode([token]).strip() for token in found.answers}
    for kind in (found, swapping):
        for trace in drawn(kind, words, 9):
            said = words.decode(trace.tokens)
            head, _, rest = said.partition(".")
            boxes = {int(n): name for n, name in re.findall(r"Box (\d) contains the (\w+)", head)}
            assert len(boxes) == 7
            answers = []
            pattern = (
                r"Swap the contents of Box (\d) and Box (\d)\.|Empty Box (\d)\."
                r"|Replace the contents of Box (\d) with the (\w+)\.|Box (\d) contains the( \?|$)"
            )
            for one in re.finditer(pattern, rest):
                i, j, empty, box, name, asked, _ = one.groups()
                if i is not None:
                    boxes[int(i)], boxes[int(j)] = boxes[int(j)], boxes[int(i)]
                elif empty is not None:
                    boxes[int(empty)] = "nothing"
                elif box is not None:
                    boxes[int(box)] = name
                else:
                    answers.append(boxes[int(asked)])
            assert [inverse[kind.answers[one]] for one in trace.answers] == answers
            assert trace.statements[-1] == 9


def test_a_tokenizer_without_words_is_told() -> None:
    with pytest.raises(ValueError, match="100 objects need names"):
        probes.probe("boxes", corpus.with_end())
    with pytest.raises(ValueError, match="there is no probe 'chess'"):
        probes.probe("chess", corpus.with_end())


def test_asking_leaves_the_model_alone_and_tuning_learns(words: Text) -> None:
    asked = model(900)
    before = {name: value.clone() for name, value in asked.state_dict().items()}
    settings = probes.ProbeSettings(steps=60, batch=8, lr=3e-2, sequences=4, times=2)
    found = probes.ask(asked, words, "boxes_no_swap", settings)
    assert all(torch.equal(value, before[name]) for name, value in asked.state_dict().items())
    for phase in ("zero_shot", "tuned"):
        by_length = found[phase]["by_length"]
        assert [end for end, _, _ in by_length] == [12, 24]
        assert sum(count for _, _, count in by_length) == found[phase]["count"]
        assert sum(count for _, _, count in found[phase]["by_operations"]) == found[phase]["count"]
        hits = sum(share * count for _, share, count in by_length)
        assert hits == pytest.approx(found[phase]["accuracy"] * found[phase]["count"])
    # of 101 answers "nothing" is right most often: that is learnt at once
    assert found["losses"][-1] < found["losses"][0] - 0.3
    assert found["zero_shot"]["accuracy"] < 0.1 < 0.2 < found["tuned"]["accuracy"]
    assert found == probes.ask(asked, words, "boxes_no_swap", settings)


def test_scores_are_those_of_the_answers() -> None:
    text = corpus.with_end()
    asked = model(257).eval()
    found = probes.probe("repl_1_silent", text)
    some = drawn(found, text, 8, count=2)
    scores, answers = probes._scores(asked, found, some)
    row = 0
    for trace in some:
        every = asked(torch.tensor(trace.tokens)[None])[0][0]
        for place, answer in zip(trace.places, trace.answers, strict=True):
            expected = every[place, [ord(str(value)) for value in range(5)]]
            torch.testing.assert_close(scores[row], expected)
            assert answers[row] == answer
            row += 1
    assert row == len(scores)


def test_choices_are_compared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    some = probes.examples("state_switch")[::5]
    monkeypatch.setattr(probes, "examples", lambda name: some)
    text = corpus.with_end()
    asked = model(257).eval()
    found = probes.ask_generated(asked, text, "state_switch")
    right = []
    for row in some:
        sums = []
        for choice in row["choices"]:
            asked_for = text.encode(row["text"])
            tokens = torch.tensor(asked_for + text.encode(f" {choice}"))
            logs = asked(tokens[None])[0][0].log_softmax(-1)
            sums.append(sum(logs[t - 1, tokens[t]] for t in range(len(asked_for), len(tokens))))
        right.append(int(torch.stack(sums).argmax()) == row["label"])
    assert found["zero_shot"]["accuracy"] == pytest.approx(sum(right) / len(right))
    assert [n for n, _, _ in found["zero_shot"]["by_length"]] == [2, 4, 8, 16, 32]
