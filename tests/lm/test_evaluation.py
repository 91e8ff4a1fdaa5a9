"""Loss by position: against one long pass, whatever the chunks and the batch."""

import math

import pytest
import torch

from statetrack import lm
from statetrack.models import CausalLM
from tests.layers.cases import every_layer
from tests.models.test_causal_lm import VOCAB, build

GENERATOR = torch.Generator().manual_seed(5)
SEQUENCES = [torch.randint(VOCAB, (size,), generator=GENERATOR) for size in (40, 2, 33, 17, 40)]


def losses(model: CausalLM, sequence: torch.Tensor) -> torch.Tensor:
    """The definition: all scores at once."""
    scores, _ = model(sequence[None, :-1])
    return -scores[0].log_softmax(-1).gather(1, sequence[1:, None])[:, 0].detach()


@every_layer
def test_chunks_and_batches_do_not_matter(name: str) -> None:
    model = build(name, "DeltaNet")
    wanted = [losses(model, one) for one in SEQUENCES]
    found = lm.evaluate(model, SEQUENCES, bin_size=1, chunk=7, batch=2)
    assert found.ends == tuple(range(1, 40)) and found.tokens == 39 + 1 + 32 + 16 + 39
    assert found.sequences[0] == 5 and found.sequences[-1] == 2
    for t in range(39):
        there = torch.stack([one[t] for one in wanted if len(one) > t])
        assert found.loss[t] == pytest.approx(there.mean().item(), rel=1e-5)
        error = there.std().item() / math.sqrt(len(there))
        assert found.loss_error[t] == pytest.approx(error, rel=1e-4)
        so_far = torch.stack([one[: t + 1].mean() for one in wanted if len(one) > t])
        assert found.running[t] == pytest.approx(so_far.mean().item(), rel=1e-5)
    total = sum(one.sum().item() for one in wanted)
    assert found.total == pytest.approx(total, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(total / found.tokens), rel=1e-5)


def test_bins_and_length() -> None:
    model = build("Mamba")
    found = lm.evaluate(model, SEQUENCES, bin_size=10, length=25)
    assert found.ends == (10, 20, 25)
    first = torch.stack([losses(model, one)[:10].mean() for one in SEQUENCES])
    assert found.loss[0] == pytest.approx(first.mean().item(), rel=1e-5)
    low, high = found.interval(0) or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(found.loss[0]) and low < high


def test_bits_per_byte() -> None:
    model = build("DeltaNet")
    found = lm.evaluate(model, SEQUENCES, num_bytes=300)
    assert found.bits_per_byte == pytest.approx(found.total / math.log(2) / 300)
    assert lm.evaluate(model, SEQUENCES).bits_per_byte is None


def test_one_sequence_has_no_error() -> None:
    found = lm.evaluate(build("DeltaNet"), SEQUENCES[:1])
    assert found.loss_error == (None,) and found.interval(0) is None


def test_there_and_back_through_json() -> None:
    found = lm.evaluate(build("DeltaNet"), SEQUENCES, bin_size=16)
    assert lm.Evaluation.from_dict(found.to_dict()) == found


def test_model_is_left_as_it_was_and_progress_told() -> None:
    model = build("DeltaNet")
    model.train()
    told: list[tuple[int, int]] = []
    lm.evaluate(model, SEQUENCES, batch=2, progress=lambda *count: told.append(count))
    assert model.training and told == [(2, 5), (4, 5), (5, 5)]


def test_nothing_to_predict_is_named() -> None:
    model = build("DeltaNet")
    with pytest.raises(ValueError, match="there is no sequence"):
        lm.evaluate(model, [])
    with pytest.raises(ValueError, match="sequence 1 has no second token"):
        lm.evaluate(model, [[1, 2], [3]])
    with pytest.raises(ValueError, match="at least 1"):
        lm.evaluate(model, SEQUENCES, chunk=0)
