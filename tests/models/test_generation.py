"""Generation: what sampling keeps, ragged prompts, stops, streams."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from statetrack.models import Constraint, Sampling
from statetrack.models.generation import GREEDY, _Rules, _Writer, choose, in_a_batch, stream
from tests.helpers import unhooked
from tests.layers.cases import every_layer
from tests.models.test_causal_lm import TOKENS, build

PROMPTS = [[1, 2, 3, 4, 5], [6], [7, 8]]


@every_layer
def test_greedy_is_the_most_likely_token_each_time(name: str) -> None:
    model = build(name, "DeltaNet")
    tokens = TOKENS[:1, :6]
    for new in model.generate(tokens, max_new_tokens=5)[0]:
        assert new == model(tokens)[0][0, -1].argmax()
        tokens = torch.cat([tokens, new[None, None]], dim=1)


@every_layer
def test_ragged_prompts_as_if_alone(name: str) -> None:
    model = build(name, name)
    together = model.generate(PROMPTS, max_new_tokens=6)
    for prompt, got in zip(PROMPTS, together, strict=True):
        assert torch.equal(got, model.generate([prompt], max_new_tokens=6)[0])


def test_stops_with_the_stop_token() -> None:
    model = build("DeltaNet")
    free = model.generate(PROMPTS, max_new_tokens=8)
    stop = int(free[0][2])
    stopped = model.generate(PROMPTS, max_new_tokens=8, stop=[stop])
    for whole, cut in zip(free, stopped, strict=True):
        ends = (whole == stop).nonzero().flatten()
        wanted = whole if len(ends) == 0 else whole[: ends[0] + 1]
        assert torch.equal(cut, wanted)
    assert len(stopped[0]) < 8


def test_stream_gives_a_token_at_a_time() -> None:
    model = build("Mamba")
    columns = torch.stack(list(model.stream(PROMPTS, max_new_tokens=4)), dim=1)
    assert torch.equal(columns, torch.stack(model.generate(PROMPTS, max_new_tokens=4)))
    first = next(model.stream(PROMPTS, max_new_tokens=10**9))
    assert torch.equal(first, columns[:, 0])
    assert model.generate(PROMPTS, max_new_tokens=0)[0].shape == (0,)


def test_seed_decides_what_is_drawn() -> None:
    model = build("DeltaNet")
    hot = Sampling(temperature=2.0)

    def drawn(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        found = model.generate(PROMPTS, max_new_tokens=20, sampling=hot, generator=generator)
        return torch.stack(found)

    assert torch.equal(drawn(0), drawn(0)) and not torch.equal(drawn(0), drawn(1))


def test_model_is_left_as_it_was() -> None:
    model = build("DeltaNet", "SLSTM")
    model.train()
    model.generate(PROMPTS, max_new_tokens=2)
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15]])
    scores = probabilities.log().expand(4000, -1)
    generator = torch.Generator().manual_seed(0)

    def kept(**options: float) -> dict[int, float]:
        found = choose(scores, Sampling(**options), generator=generator)  # type: ignore[arg-type]
        values, counts = found.unique(return_counts=True)
        return dict(zip(values.tolist(), (counts / len(found)).tolist(), strict=True))

    assert kept() == pytest.approx({0: 0.1, 1: 0.4, 2: 0.05, 3: 0.3, 4: 0.15}, abs=0.03)
    assert kept(top_k=2) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.03)
    assert kept(top_p=0.7) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.03)
    assert set(kept(top_p=0.71)) == {1, 3, 4}
    assert set(kept(top_p=1e-9)) == {1}
    assert kept(temperature=0.5)[1] == pytest.approx(0.16 / 0.285, abs=0.03)
    assert set(kept(temperature=0.0)) == {1}


def test_repetition_penalty_pushes_scores_down() -> None:
    scores = torch.tensor([[3.0, 2.0, -1.0]])
    seen = torch.tensor([[True, False, True]])
    hard = Sampling(temperature=0.0, repetition_penalty=2.0)
    assert choose(scores, hard, seen).item() == 1
    assert choose(scores, hard, ~seen).item() == 0
    assert choose(-scores, hard, seen).item() == 2
    assert choose(-scores, hard, torch.tensor([[True, True, True]])).item() == 2
    assert choose(torch.tensor([[-3.0, -2.0]]), hard, torch.tensor([[False, True]])).item() == 0


def test_penalty_counts_prompt_and_new_tokens() -> None:
    model = build("DeltaNet")
    sampling = Sampling(temperature=0.0, repetition_penalty=1.5)
    prompts = [[1, 2], [3]]
    found = model.generate(prompts, max_new_tokens=12, sampling=sampling)
    free = model.generate(prompts, max_new_tokens=12)
    assert not all(torch.equal(one, other) for one, other in zip(found, free, strict=True))
    for prompt, new in zip(prompts, found, strict=True):
        words = list(prompt)
        for token in new.tolist():
            scores = model(torch.tensor([words]))[0][0, -1].detach()
            for word in set(words):
                scores[word] *= 1.5 if scores[word] < 0 else 1 / 1.5
            assert token == scores.argmax()
            words.append(token)


def test_bad_prompts_are_named() -> None:
    model = build("DeltaNet")
    with pytest.raises(ValueError, match="prompt 1 has no token"):
        model.generate([[1], []], max_new_tokens=1)
    for prompts, message in (
        ([[1.5, 2.0]], "prompt 0 has dtype torch.float32, but tokens are integers"),
        (["one two"], "prompt 0 is the text 'one two': encode it"),
    ):
        with pytest.raises(ValueError, match=message):
            unhooked(in_a_batch)(prompts)
    for many in (-1, 2.5, "5"):
        with pytest.raises(ValueError, match=f"max_new_tokens={many!r} must be a whole number"):
            next(unhooked(stream)(model, [[1]], many))
    with pytest.raises(ValueError, match=r"stop=3 must be a list of tokens: write \[3\]"):
        next(unhooked(stream)(model, [[1]], 2, stop=3))
    with pytest.raises(ValueError, match="there is no prompt"):
        model.generate([], max_new_tokens=1)
    with pytest.raises(ValueError, match="token 99 is not in the vocabulary"):
        model.generate([[99]], max_new_tokens=1)
    with pytest.raises(ValueError, match="top_p"):
        Sampling(top_p=0.0)


def test_batch_of_prompts() -> None:
    tokens, mask = in_a_batch(PROMPTS)
    assert tokens[mask].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert mask.sum(1).tolist() == [5, 1, 2] and mask[:, -1].all()


class NoWaiting(TorchDispatchMode):
    """Refuses what would make a host wait for its GPU."""

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_unique2", "multinomial")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = function.overloadpacket.__name__
        assert name not in self.WAITS, f"{name} waits"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Sampling(temperature=0.7, top_k=5, top_p=0.8, repetition_penalty=1.2)],
    ids=["greedy", "drawn"],
)
def test_the_choice_of_a_token_waits_for_nothing(sampling: Sampling, constrained: bool) -> None:
    letters = [token % 2 for token in range(20)]
    even = Constraint([[0, 1], [1, 0]], letters, [True, False], end=3) if constrained else None
    rules = _Rules(sampling, torch.tensor([3]), even, torch.Generator().manual_seed(0))
    tokens, mask = in_a_batch(PROMPTS)
    place = rules.begin(tokens, mask, 20, 9)
    scores = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    with NoWaiting():
        for _ in range(4):
            column, place = rules.pick(scores, place)
    assert column.shape == (3,) and place.left == 5


def test_one_draw_is_that_of_multinomial() -> None:
    scores = torch.randn(50, 30, generator=torch.Generator().manual_seed(0))
    ours, theirs = (torch.Generator().manual_seed(1) for _ in range(2))
    found = choose(scores, Sampling(temperature=0.8), generator=ours)
    wanted = torch.multinomial((scores / 0.8).softmax(-1), 1, generator=theirs)
    assert torch.equal(found, wanted[:, 0])


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 70])
@pytest.mark.parametrize("stops", [False, True])
def test_bursts_write_what_steps_write(
    count: int, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of tokens, and where in a burst the last sequence ends."""
    model = build("DeltaNet", "Attention")
    free = model.generate(PROMPTS, max_new_tokens=count)
    stop = sorted({int(row[min(len(row) - 1, 40)]) for row in free}) if stops else []
    expected = list(model.stream(PROMPTS, max_new_tokens=count, stop=stop))
    bursts = []

    @torch.no_grad()
    def burst(self):  # type: ignore[no-untyped-def]
        """As a captured graph: always as many steps, on a state of a fixed size."""
        if not bursts:
            self.state = self.model.backbone.with_room(self.state, self.room)
        columns, ended, self.place, self.state = self._steps(self.place, self.state, self.burst)
        bursts.append(self.burst)
        return columns, ended

    monkeypatch.setattr(_Writer, "__call__", burst)
    found = list(model.stream(PROMPTS, max_new_tokens=count, stop=stop))
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    if count > 1 and not stops:
        assert set(bursts) == {8 if count >= 64 else 1}
        assert sum(bursts) - (count - 1) in range(8)


class Casts(TorchDispatchMode):
    """Counts conversions of tensors of some shapes."""

    def __init__(self, shapes: set[torch.Size]) -> None:
        super().__init__()
        self.shapes, self.count = shapes, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function is torch.ops.aten._to_copy.default:
            self.count += args[0].shape in self.shapes
        return function(*args, **(kwargs or {}))


def test_autocast_narrows_weights_once() -> None:
    model = build("Mamba", "GLA").float()
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    prompt = torch.tensor([[1, 2, 3]])
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        expected, _ = model(prompt)
        new = [expected[0, -1].argmax()]
        _, state = model(prompt)
        with torch.no_grad():
            for _ in range(3):
                scores, state = model.step(new[-1][None], state)
                new.append(scores[0].argmax())
        writing = model.stream(prompt, max_new_tokens=4)
        found = [next(writing), next(writing)]
        with Casts({module.weight.shape for module in linear}) as casts:
            found += list(writing)
        with Casts(casts.shapes) as otherwise, torch.no_grad():
            model.step(new[-1][None], state)
    assert torch.equal(torch.cat(found), torch.stack(new))
    assert casts.count == 0 < otherwise.count
