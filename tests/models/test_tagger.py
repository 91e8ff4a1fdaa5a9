"""The tagger: cut anywhere, seeded, stacked, padded, copied."""

import copy
import pickle

import pytest
import torch

from statetrack.models import Tagger
from tests.helpers import relative_error
from tests.layers.cases import every_layer
from tests.layers.foreign import Leaky
from tests.models.cases import TOKENS, build, small

HYBRID = ("DeltaNet", "Attention", "Mamba", "SLSTM")


@every_layer
def test_tagger_runs_cut_and_step(name: str) -> None:
    model = build(small(name)).double()
    scores, state = model(TOKENS)
    assert scores.shape == (2, 17, 4)
    first, middle = model(TOKENS[:, :9])
    second, _ = model(TOKENS[:, 9:], middle)
    assert relative_error(torch.cat([first, second], dim=1), scores) < 1e-9
    state = None
    for t in range(17):
        step, state = model.step(TOKENS[:, t], state)
        assert relative_error(step, scores[:, t]) < 1e-9


def test_seed_decides_the_weights() -> None:
    config = small("DeltaNet")
    state = torch.random.get_rng_state()
    first, again, other = build(config, 1), build(config, 1), build(config, 2)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was used"
    assert all(
        torch.equal(p, q) for p, q in zip(first.parameters(), again.parameters(), strict=True)
    )
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_vmap_over_stacked_taggers_equals_a_loop() -> None:
    models = [build(small("DeltaNet"), seed).double() for seed in (0, 1, 2)]
    parameters, _ = torch.func.stack_module_state(models)

    def run(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(models[0], values, (TOKENS,))[0]

    together = torch.vmap(run)(parameters)
    for index, model in enumerate(models):
        assert relative_error(together[index], model(TOKENS)[0]) < 1e-10


def test_a_hybrid_runs_cut_and_step() -> None:
    model = build(small(*HYBRID)).double()
    scores, state = model(TOKENS)
    assert [set(part) for part in state] == [
        {"recurrent", "conv"},
        {"k", "v", "time"},
        {"recurrent", "conv"},
        {"recurrent"},
    ]
    first, middle = model(TOKENS[:, :9])
    second, _ = model(TOKENS[:, 9:], middle)
    assert relative_error(torch.cat([first, second], dim=1), scores) < 1e-9
    with pytest.raises(ValueError, match="3 states for 4 blocks"):
        model(TOKENS, state[:3])
    with pytest.raises(ValueError, match="the state of DeltaNet holds"):
        model(TOKENS, state[::-1])


@pytest.mark.parametrize("names", [("DeltaNet", "DeltaNet"), ("GLA",), HYBRID], ids="-".join)
@pytest.mark.parametrize("with_state", [False, True], ids=["empty", "state"])
def test_padding_changes_no_score(names: tuple[str, ...], with_state: bool) -> None:
    """Logits of padded rows, on the left and on the right, are those of each sequence alone."""
    model = build(small(*names))
    sizes, left = [17, 5, 1, 9], [0, 0, 16, 8]
    mask = torch.tensor(
        [[a <= t < a + n for t in range(17)] for a, n in zip(left, sizes, strict=True)]
    )
    tokens = torch.randint(3, mask.shape, generator=torch.Generator().manual_seed(1))
    before = model(tokens[:, :4])[1] if with_state else None
    padded = tokens.masked_fill(~mask, -100)  # no token at all
    scores, state = model(padded, before, mask=mask)
    last = torch.tensor([[a + n - 1] for a, n in zip(left, sizes, strict=True)])
    asked, _ = model(padded, before, mask=mask, read_at=last)
    assert torch.equal(scores[~mask], torch.zeros_like(scores[~mask]))
    for row, real in enumerate(mask):
        start = None
        if before is not None:
            start = tuple({k: v[row : row + 1] for k, v in part.items()} for part in before)
        alone, _ = model(tokens[row : row + 1, real], start)
        torch.testing.assert_close(scores[row : row + 1, real], alone, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(asked[row], alone[0, -1:], rtol=1e-6, atol=1e-6)
    after, _ = model.step(tokens[:, 0], state)
    for row, real in enumerate(mask):
        whole = torch.cat([tokens[row, real], tokens[row, :1]])[None]
        if before is not None:
            whole = torch.cat([tokens[row : row + 1, :4], whole], dim=1)
        torch.testing.assert_close(after[row], model(whole)[0][0, -1], rtol=1e-5, atol=1e-5)


def test_a_model_can_be_copied_and_its_config_sent_away() -> None:
    model = build(small("DeltaNet", "Attention"))
    twin = copy.deepcopy(model)
    assert twin.config == model.config
    assert torch.equal(twin(TOKENS)[0], model(TOKENS)[0])
    assert pickle.loads(pickle.dumps(model.config)) == model.config


def test_a_layer_of_your_own_in_a_hybrid() -> None:
    config = small("DeltaNet", mixers=["DeltaNet", (Leaky, {"rate": 1})])
    model = build(config).double()
    scores, _ = model(TOKENS)
    first, middle = model(TOKENS[:, :9])
    second, _ = model(TOKENS[:, 9:], middle)
    assert relative_error(torch.cat([first, second], dim=1), scores) < 1e-9
    loss = scores.square().sum()
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    again = Tagger(type(config).from_json(config.to_json())).double()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(TOKENS)[0], scores)
