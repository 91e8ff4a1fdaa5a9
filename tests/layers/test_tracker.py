"""The machine inside a model: against the machine itself, however the tokens come."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from statetrack import ops
from statetrack.automata import Machine, named, over_tokens
from statetrack.compiler import compile
from statetrack.layers import DeltaNet, Shared, Tracker, registry
from statetrack.layers.tracker import follow
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig
from tests.automata.cases import random_machine

PIECES = ["(", ")", "()", "((", None]
DEPTH = [[1, None], [2, 0], [3, 1], [None, 2]]


def brackets() -> Machine:
    return Machine.from_table(DEPTH, accepting=[0], alphabet="()")


def build(*mixers: Any) -> CausalLM:
    options = over_tokens(brackets(), PIECES).options
    backbone = BackboneConfig(mixers=[("Tracker", options), *mixers], d_model=16, mlp_dim=16)
    config = CausalLMConfig(vocab_size=len(PIECES), backbone=backbone)
    return CausalLM(config, generator=torch.Generator().manual_seed(0))


def tokens(batch: int, time: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 5, (batch, time), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("time", [1, 2, 31, 32, 33, 200])
def test_states_are_the_machine_s(time: int) -> None:
    rng = np.random.default_rng(time)
    machine = random_machine(rng, 9, 3)
    words = rng.integers(0, machine.num_letters, (3, time))
    delta = torch.from_numpy(machine.delta.copy())
    states, last = follow(delta, torch.from_numpy(words), torch.zeros(3, dtype=torch.long))
    assert (states.numpy() == machine.run(words)).all()
    assert torch.equal(last, states[:, -1])


def test_states_are_those_of_the_compiled_network() -> None:
    machine = named("mod_arithmetic_3")
    words = np.random.default_rng(0).integers(0, machine.num_letters, (2, 150))
    delta = torch.from_numpy(machine.delta.copy())
    states, _ = follow(delta, torch.from_numpy(words), torch.zeros(2, dtype=torch.long))
    for method in ("dense", "cascade"):
        assert torch.equal(compile(machine, method)(torch.from_numpy(words)), states)


def test_long_words_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statetrack.layers.tracker.MAX_MAPS", 500)
    test_states_are_the_machine_s(200)


def test_packed_sequences_from_states_of_their_own() -> None:
    rng = np.random.default_rng(0)
    machine = random_machine(rng, 7, 2)
    delta = torch.from_numpy(machine.delta.copy())
    sizes = [[5, 0, 40, 1], [0, 46, 0, 0], [3, 3, 0, 40]]
    offsets = torch.tensor([list(itertools.accumulate(row, initial=0)) for row in sizes])
    words = torch.from_numpy(rng.integers(0, 2, (3, 46)))
    start = torch.from_numpy(rng.integers(0, machine.num_states, 12))
    states, last = follow(delta, words, start, ops.Packing(offsets, 46))
    for row, column in itertools.product(range(3), range(4)):
        state = int(start[4 * row + column])
        for time in range(int(offsets[row, column]), int(offsets[row, column + 1])):
            state = int(machine.delta[state, int(words[row, time])])
            assert int(states[row, time]) == state
        assert int(last[4 * row + column]) == state


@pytest.mark.parametrize("mixers", [("DeltaNet",), ("RWKV7", "Attention")])
def test_whole_cut_step_by_step_packed_and_padded_are_one(mixers: tuple[str, ...]) -> None:
    model = build(*mixers).double()
    given = tokens(2, 20)
    whole, last = model(given)
    first, state = model(given[:, :7])
    second, _ = model(given[:, 7:], state)
    assert torch.allclose(torch.cat([first, second], 1), whole)
    state = None
    for time in range(20):
        scores, state = model.step(given[:, time], state)
        assert torch.allclose(scores, whole[:, time])
    assert state is not None and torch.equal(state[0]["machine"], last[0]["machine"])
    packed, after = model(given.reshape(1, -1), cu_seqlens=torch.tensor([0, 20, 40]))
    assert torch.allclose(packed.view_as(whole), whole)
    assert torch.equal(after[0]["machine"], last[0]["machine"])
    padded = torch.cat([torch.full((2, 3), 4), given], 1)
    mask = torch.arange(23).expand(2, 23) >= 3
    scores, after = model(padded, mask=mask)
    assert torch.allclose(scores[:, 3:], whole)
    assert torch.equal(after[0]["machine"], last[0]["machine"])
    asked = model(given, read_at=torch.tensor([[3, 19], [0, 4]]))[0]
    assert torch.allclose(asked[1, 0], whole[1, 0])


def test_folders_and_generation(tmp_path: Path) -> None:
    model = build("DeltaNet")
    model.save(tmp_path)
    again = CausalLM.load(tmp_path)
    assert again.config == model.config
    prompts = [[0, 0], [2, 1, 0], [3]]
    texts = model.generate(prompts, max_new_tokens=8)
    assert all(
        torch.equal(a, b)
        for a, b in zip(texts, again.generate(prompts, max_new_tokens=8), strict=True)
    )
    half = CausalLM.load(tmp_path, dtype=torch.bfloat16)
    given = tokens(1, 5000)
    assert torch.equal(half(given)[1][0]["machine"], model(given)[1][0]["machine"])


def test_only_the_vectors_of_states_are_trained() -> None:
    model = build()
    layer = model.backbone.blocks[0].mixer  # type: ignore[union-attr]
    assert [name for name, _ in layer.named_parameters()] == ["out_proj.weight"]  # type: ignore[operator]
    model(tokens(2, 30))[0].logsumexp(-1).sum().backward()
    gradient = layer.out_proj.weight.grad  # type: ignore[union-attr]
    assert gradient is not None and bool((gradient != 0).any())


@pytest.mark.slow
def test_transformers_reads_the_same_tokens() -> None:
    pytest.importorskip("transformers")
    from statetrack.hf import StatetrackConfig, StatetrackForCausalLM

    model = build("DeltaNet")
    theirs = StatetrackForCausalLM(StatetrackConfig(model=model.config.to_dict()))
    theirs.model.load_state_dict(model.state_dict())
    given = tokens(2, 12)
    assert torch.allclose(theirs(given).logits, model(given)[0])


def test_what_does_not_fit_is_refused() -> None:
    layer = Tracker(4, delta=((0, 1), (1, 0)), letter=(0, 1))
    with pytest.raises(ValueError, match="a Tracker reads tokens, and there are none"):
        layer(torch.zeros(1, 2, 4))
    y, state, _ = layer(torch.zeros(1, 3, 4), shared=Shared(tokens=torch.tensor([[1, 1, 1]])))
    assert y.shape == (1, 3, 4) and state["machine"].tolist() == [1]
    with pytest.raises(ValueError, match="delta must be within 0 to 1"):
        Tracker(4, delta=((0, 2), (1, 0)), letter=(0,))
    with pytest.raises(ValueError, match="letter must be within 0 to 1"):
        Tracker(4, delta=((0, 1), (1, 0)), letter=(2,))
    with pytest.raises(ValueError, match="a row for each state"):
        Tracker(4, delta=((0, 1), (1,)), letter=(0,))
    with pytest.raises(ValueError, match="needs the option delta, letter"):
        BackboneConfig(mixers=["Tracker"], d_model=4)
    with pytest.raises(ValueError, match="there already is a layer 'Tracker'"):
        registry.register(type("Tracker", (DeltaNet,), {}))
    assert registry.register(Tracker) is Tracker and "Tracker" not in registry.LAYERS
