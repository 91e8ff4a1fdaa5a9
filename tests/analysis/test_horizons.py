"""Accuracy far beyond training, read in pieces."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack import tasks
from statetrack.analysis import horizons as module
from statetrack.analysis.horizons import exact_to, horizon
from statetrack.layers import registry
from statetrack.layers.registry import LAYERS
from statetrack.models import BackboneConfig, Tagger
from tests.training import tiny


class Counter(Tagger):
    """Says the parity of its bits, and nothing that is a number after `limit` of them."""

    def __init__(self, limit: int) -> None:
        super().__init__(tiny.model())
        self.limit = limit
        self.widths: list[int] = []

    def forward(self, tokens: Tensor, state: Any = None, *, read_at: Tensor | None = None) -> Any:
        self.widths.append(tokens.shape[1])
        ones, read = (0, 0) if state is None else (state[0]["ones"], state[0]["read"])
        total = ones + (tokens == 2).cumsum(dim=1)
        position = read + torch.arange(1, tokens.shape[1] + 1).expand(tokens.shape)
        scores = torch.nn.functional.one_hot(1 + total % 2, 3).float()
        scores[position > self.limit] = torch.nan
        if read_at is not None:
            scores = scores.gather(1, read_at[..., None].expand(-1, -1, 3))
        return scores, ({"ones": total[:, -1:], "read": position[:, -1:]},)


@pytest.mark.parametrize("task", ["parity", "parity_dense"])
def test_an_exact_model_is_exact_as_far_as_it_counts(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 8 * 10)
    model = Counter(limit=31)
    found = horizon(model, task, (33, 32, 16, 64), sequences=8)
    assert found == {16: 1.0, 32: 1.0, 33: 0.0, 64: 0.0}  # length 32 is 31 bits
    assert max(model.widths) == 10 and sum(model.widths) == 15 + 31 + 32 + 63
    assert exact_to(found, 0.99) == 32


def test_one_mistake_spoils_a_dense_sequence_and_only_the_end_counts_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slip(Counter):
        """Wrong after the second bit, in the first piece."""

        def forward(
            self, tokens: Tensor, state: Any = None, *, read_at: Tensor | None = None
        ) -> Any:
            scores, after = super().forward(tokens, state)
            if state is None:
                scores[:, 1] = scores[:, 1].roll(1, dims=-1)
            if read_at is not None:
                scores = scores.gather(1, read_at[..., None].expand(-1, -1, 3))
            return scores, after

    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 4 * 8)
    assert horizon(Slip(100), "parity", (20,), sequences=4) == {20: 1.0}
    assert horizon(Slip(100), "parity_dense", (20,), sequences=4) == {20: 0.0}


@pytest.mark.parametrize("mixer", ["DeltaNet", "Mamba", "SLSTM", "GLA"])
def test_pieces_give_the_answers_of_one_pass(mixer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that guesses is right on about half: both readings must agree on which."""
    options = {"num_heads": 2} if mixer in ("SLSTM", "GLA") else {}
    model = Tagger(tiny.model(mixer, **options), generator=torch.Generator().manual_seed(1))
    model = model.double()
    task = tasks.get("parity")
    words = task.sample(64, 40, min_length=40, generator=tasks.generator(task, "test", 40))
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 64 * 7)
    found = horizon(model, task, (40,), sequences=64)
    with torch.no_grad():
        answers = model(words.tokens)[0].argmax(dim=-1)
    right = (answers == words.targets)[words.mask]
    assert len(right) == 64 and found == {40: int(right.sum()) / 64}
    assert 0 < found[40] < 1


def test_the_words_are_fixed_and_not_those_of_the_test_set() -> None:
    seen: list[Tensor] = []

    class Spy(Counter):
        def forward(self, tokens: Tensor, *rest: Any, **more: Any) -> Any:
            seen.append(tokens)
            return super().forward(tokens, *rest, **more)

    for seed in (0, 0, 1):
        horizon(Spy(100), "parity", (12,), sequences=16, seed=seed)
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    lengths = tasks.LengthRange(12, 12)
    for split in ("train", "validation", "test"):
        words = tasks.evaluation_set("parity", 16, 0, lengths=lengths, split=split).tokens  # type: ignore[arg-type]
        assert not torch.equal(words, seen[0])


@pytest.mark.parametrize("mixer", [name for name in LAYERS if name != "Attention"])
def test_every_layer_hands_its_state_on_under_bf16(
    mixer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"num_heads": 2} if "num_heads" in registry.options(LAYERS[mixer], {}) else {}
    options |= {"head_dim": 4, "d_state": 4} if mixer == "Mamba2" else {}
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 4 * 5)
    model = Tagger(tiny.model(mixer, **options))
    found = horizon(model, "parity", (12,), sequences=4, precision="bf16")
    assert 0 <= found[12] <= 1


def test_what_has_no_horizon_is_refused() -> None:
    attention = Tagger(tiny.model("Attention", num_heads=2))
    mixers = [("DeltaNet", {"num_heads": 2}), ("Attention", {"num_heads": 2})]
    hybrid = BackboneConfig(mixers=mixers, d_model=8)
    for model in (attention, Tagger(replace(tiny.model(), backbone=hybrid))):
        with pytest.raises(ValueError, match="Attention keeps every token"):
            horizon(model, "parity", (8,))
    with pytest.raises(ValueError, match="out of range"):
        horizon(Tagger(tiny.model()), "parity", (1, 8))


def test_exact_to_stops_at_the_first_length_that_fails() -> None:
    assert exact_to({4: 1.0, 16: 1.0, 8: 0.5}) == 4
    assert exact_to({4: 0.99, 8: 0.98}, 0.99) == 4
    assert exact_to({4: 0.5}) is None and exact_to({}) is None
