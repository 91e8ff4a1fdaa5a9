"""What holds for every layer: state, causality, padding, transitions, ranges, purity."""

import copy
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statetrack import ops
from statetrack.layers import registry
from statetrack.ops.dense import reference
from tests.helpers import relative_error, unhooked
from tests.layers.across import all_layers
from tests.layers.cases import (
    D_MODEL,
    NOT_LINEAR,
    SIZES,
    build,
    every_layer,
    linear_layer,
    sequence,
)
from tests.layers.foreign import Leaky
from tests.ops.processes import on_processes


@every_layer
@settings(max_examples=5, deadline=None)
@given(time=st.integers(2, 80), data=st.data())
def test_cut_anywhere_equals_whole(name: str, time: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, time - 1))
    layer, x = build(name), sequence(time)
    whole, end = layer(x)
    first, middle = layer(x[:, :cut])
    second, last = layer(x[:, cut:], middle)
    assert relative_error(torch.cat([first, second], dim=1), whole) < 1e-9
    assert last.keys() == end.keys()
    for key in end:
        assert relative_error(last[key], end[key]) < 1e-9


@every_layer
def test_step_equals_forward(name: str) -> None:
    layer, x = build(name), sequence(20)
    whole, _ = layer(x)
    state = None
    for t in range(20):
        y, state = layer.step(x[:, t], state)
        assert relative_error(y, whole[:, t]) < 1e-9


@every_layer
def test_some_times_are_those_of_all(name: str) -> None:
    """Outputs, states and gradients; every row has times of its own, and one of them twice."""
    layer, x = build(name), sequence(20).requires_grad_()
    with torch.no_grad():
        _, state = layer(sequence(3, seed=2))
    times = torch.tensor([[19, 4, 4], [0, 18, 7]])
    whole, end = layer(x, state)
    want = torch.stack([whole[row, at] for row, at in enumerate(times)])
    some, last = layer(x, state, read_at=times)
    assert relative_error(some, want) < 1e-12
    assert all(torch.equal(last[key], end[key]) for key in end)
    leaves = [x, *layer.parameters()]
    expected = torch.autograd.grad(want.cos().sum(), leaves)
    for got, wanted in zip(torch.autograd.grad(some.cos().sum(), leaves), expected, strict=True):
        assert relative_error(got, wanted) < 1e-9


@every_layer
def test_causal(name: str) -> None:
    layer, x = build(name), sequence(30)
    changed = torch.cat([x[:, :17], sequence(13, seed=5)], dim=1)
    before, after = layer(x)[0], layer(changed)[0]
    assert torch.allclose(before[:, :17], after[:, :17], rtol=0, atol=1e-12)
    assert (before[:, 17:] - after[:, 17:]).abs().amax() > 1e-6


@every_layer
def test_state_size_counts_the_state(name: str) -> None:
    layer = build(name)
    _, state = layer(sequence(7, batch=1))
    kept = sum(part.numel() for part in state.values() if part.is_floating_point())
    assert kept == layer.state_size * (7 if name == "Attention" else 1)


@every_layer
def test_backends_agree(name: str) -> None:
    if name in ("Attention", "ChannelMix", "LSTM"):
        assert "backend" not in registry.options(registry.get(name), {})
        return
    x = sequence(70)
    fast, _ = build(name)(x)
    slow, _ = build(name, backend="reference")(x)
    assert relative_error(fast, slow) < 1e-9


@linear_layer
def test_transitions_replay_the_recurrence(name: str) -> None:
    """H_t = A(x_t) H_{t-1} + B(x_t), A and B as `transitions` says, gives the layer's state."""
    layer, x = build(name), sequence(9)
    _, start = layer(sequence(4, seed=3))
    _, end = layer(x, start)
    recurrence = layer.transitions(x, start)
    matrices = recurrence.dense().transpose(1, 2).flatten(0, 1)
    writes = recurrence.writes().transpose(1, 2).flatten(0, 1)
    _, got = reference.matrix_scan(matrices, hidden(name, start).flatten(0, 1), writes)
    assert relative_error(got, hidden(name, end).flatten(0, 1)) < 1e-9


def hidden(name: str, state: dict[str, Tensor]) -> Tensor:
    """H as `transitions` means it; the mLSTM keeps it divided by e^m."""
    scale = state["m"].exp()[..., None, None] if name == "MLSTM" else 1.0
    return scale * state["recurrent"]


@linear_layer
@pytest.mark.parametrize("low", [-1.0, -0.4, 0.0])
def test_eigenvalues_are_those_of_the_matrices_and_stay_in_range(name: str, low: float) -> None:
    layer = build(name, eigen_range=(low, 1.0), stir=2.0)
    recurrence = layer.transitions(sequence(12))
    closed = recurrence.eigenvalues().to(torch.complex128)
    numeric = torch.linalg.eigvals(recurrence.dense())
    # symmetric functions compare two sets of numbers without pairing them up
    for power in (1, 2, 3):
        assert torch.allclose((closed**power).sum(-1), (numeric**power).sum(-1), atol=1e-8)
    assert torch.allclose(closed.prod(-1), numeric.prod(-1), atol=1e-8)
    if name in ("FullMatrix", "LRU"):  # a disc with [low, 1] as its diameter
        assert ((closed - (1 + low) / 2).abs() <= (1 - low) / 2 + 1e-9).all()
    elif (
        name == "DeltaProduct"
    ):  # three factors may have complex eigenvalues, none outside the disc
        assert (closed.abs() <= 1 + 1e-9).all()
    else:
        assert (closed.imag.abs() < 1e-9).all()
        assert closed.real.amin() >= low - 1e-9 and closed.real.amax() <= 1 + 1e-9


@linear_layer
def test_the_range_reaches_below_zero_only_when_asked(name: str) -> None:
    """The same weights: [-1, 1] has eigenvalues near -1, [0, 1] has none below 0."""

    def lowest(low: float) -> float:
        layer = build(name, eigen_range=(low, 1.0), stir=4.0)
        return layer.transitions(sequence(200)).eigenvalues().real.amin().item()

    less = ("FullMatrix", "GLA", "GatedDeltaNet", "LRU")  # the last has few, and fixed ones
    assert lowest(-1.0) < (-0.3 if name in less else -0.6)
    if name != "DeltaProduct":  # three projections can turn a vector round, so -1/8 is reachable
        assert lowest(0.0) > -1e-9


@every_layer
def test_vmap_over_parameters_equals_a_loop(name: str) -> None:
    """Stacked parameters, one functional call: outputs and gradients as if run one by one."""
    layers = [build(name, seed=seed) for seed in (0, 1)]
    x = sequence(11)
    names = [key for key, _ in layers[0].named_parameters()]
    stacked = {
        key: torch.stack([layer.get_parameter(key).detach() for layer in layers]).requires_grad_()
        for key in names
    }
    base = layers[0]

    def run(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(base, parameters, (x,))[0]

    y = torch.vmap(run)(stacked)
    weights = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape).sin()
    grads = torch.autograd.grad((y * weights).sum(), list(stacked.values()))
    for index, layer in enumerate(layers):
        alone = layer(x)[0]
        assert relative_error(y[index], alone) < 1e-10
        expected = torch.autograd.grad((alone * weights[index]).sum(), list(layer.parameters()))
        for key, got, want in zip(names, grads, expected, strict=True):
            assert torch.allclose(got[index], want, rtol=1e-7, atol=1e-10), key


@every_layer
def test_forward_changes_nothing_in_the_layer(name: str) -> None:
    layer = build(name)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    assert not list(layer.buffers())
    y, _ = layer(sequence(6))
    y.sum().backward()
    for key, value in layer.state_dict().items():
        assert torch.equal(value, before[key]), key


@every_layer
def test_every_parameter_gets_a_gradient(name: str) -> None:
    layer = build(name)
    y, _ = layer(sequence(12))
    (y * torch.randn_like(y)).sum().backward()
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, key


@every_layer
def test_same_generator_same_weights(name: str) -> None:
    layer = registry.get(name)(D_MODEL, **SIZES[name])
    global_state = torch.random.get_rng_state()
    draws = []
    for _ in range(2):
        layer.reset_parameters(torch.Generator().manual_seed(3))
        draws.append({key: value.clone() for key, value in layer.state_dict().items()})
    assert all(torch.equal(draws[0][key], draws[1][key]) for key in draws[0])
    assert torch.equal(torch.random.get_rng_state(), global_state)


@every_layer
def test_reset_draws_every_parameter(name: str) -> None:
    layer = registry.get(name)(D_MODEL, **SIZES[name])
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(torch.nan)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    for key, parameter in layer.named_parameters():
        assert parameter.isfinite().all(), key


@every_layer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_close(name: str, dtype: torch.dtype) -> None:
    """float32 throughout, and bfloat16 autocast around float32 weights."""
    layer, x = build(name), sequence(24)
    exact, _ = layer(x)
    layer = layer.float()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        y, _ = layer(x.float())
    assert relative_error(y, exact) < (1e-4 if dtype == torch.float32 else 0.1)


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_layers_without_transitions_refuse_a_range(name: str) -> None:
    with pytest.raises(ValueError, match="takes no eigen_range"):
        unhooked_build(name, eigen_range=(-1.0, 1.0))
    with pytest.raises(ValueError, match="no transitions"):
        build(name).transitions(sequence(3))


def unhooked_build(name: str, **options: object) -> object:
    kind = registry.get(name)
    layer = kind.__new__(kind)
    unhooked(kind.__init__)(layer, D_MODEL, **(SIZES[name] | options))
    return layer


@linear_layer
@pytest.mark.parametrize(
    "eigen_range", [(1.0, -1.0), (-1.5, 1.0), (0.0, 2.0), (0.5, 0.5), (-1.0, 0.5), 1.0, (0.0,)]
)
def test_impossible_ranges_are_refused(name: str, eigen_range: object) -> None:
    with pytest.raises(ValueError, match="eigen_range"):
        unhooked_build(name, eigen_range=eigen_range)


@every_layer
def test_wrong_input_is_named(name: str) -> None:
    layer = build(name)
    forward = unhooked(type(layer).forward)
    with pytest.raises(ValueError, match="x has shape .* d_model = 16"):
        forward(layer, torch.zeros(2, 3, D_MODEL + 1))
    with pytest.raises(ValueError, match="x has shape"):
        forward(layer, torch.zeros(2, D_MODEL))
    with pytest.raises(ValueError, match="cast it first"):
        forward(layer, torch.zeros(2, 3, D_MODEL, dtype=torch.int64))
    with pytest.raises(ValueError, match="time must be at least 1"):
        forward(layer, torch.zeros(2, 0, D_MODEL))
    for wrong in (torch.tensor([0, 1]), torch.tensor([[0]]), torch.zeros(2, 1)):
        with pytest.raises(ValueError, match="read_at has .* batch = 2"):
            forward(layer, torch.zeros(2, 3, D_MODEL), read_at=wrong)
    for time in (-1, 3):
        with pytest.raises(ValueError, match=f"read_at has the time {time}, .* within 0 to 2"):
            layer(sequence(3), read_at=torch.tensor([[0], [time]]))


SIZES_OF = {
    "Attention": ["num_heads", "head_dim", "num_kv_heads"],
    "ChannelMix": ["hidden_dim"],
    "DeltaNet": ["num_heads", "head_dim", "value_dim", "num_value_heads"],
    "DeltaProduct": ["num_householders", "head_dim"],
    "FullMatrix": ["state_dim"],
    "GLA": ["gate_rank", "expand_k"],
    "KDA": ["num_heads", "head_dim", "value_dim", "gate_rank"],
    "LRU": ["state_dim"],
    "Mamba": ["d_state", "expand", "dt_rank"],
    "Mamba2": ["d_state", "expand", "head_dim", "num_groups"],
    "MLSTM": ["expand", "block_size"],
    "RWKV7": ["gate_rank", "decay_rank", "removal_rank", "output_rank", "value_rank"],
}


@pytest.mark.parametrize(("name", "size"), [(n, size) for n in SIZES_OF for size in SIZES_OF[n]])
def test_no_size_is_below_one(name: str, size: str) -> None:
    for wrong in (0, -2):
        with pytest.raises(ValueError, match=f"{size}={wrong}"):
            unhooked_build(name, **{size: float(wrong) if size == "expand_k" else wrong})


@pytest.mark.parametrize(
    "name",
    ["Attention", "DeltaNet", "GatedDeltaNet", "DeltaProduct", "GLA", "MLSTM", "RWKV7", "SLSTM"],
)
def test_heads_must_divide_the_width(name: str) -> None:
    with pytest.raises(ValueError, match="num_heads=3 must divide"):
        unhooked_build(name, num_heads=3)


@pytest.mark.parametrize(
    "names", [["DeltaNet"], pytest.param([*SIZES], marks=pytest.mark.slow)], ids=["one", "all"]
)
def test_every_layer_compiles_into_one_graph(names: list[str]) -> None:
    """Outside the test run's shape hook, as users run it."""
    script = Path(__file__).with_name("compile_all.py")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(script), *names], capture_output=True, text=True, cwd=root, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("one graph") == len(names)


# ------------------------------------------------------------------------------------ the state


@every_layer
def test_a_misspelt_state_is_refused(name: str) -> None:
    layer, x = build(name), sequence(3)
    _, state = layer(x)
    assert set(state) == set(layer.state_keys)
    first = layer.state_keys[0]
    wrong = {("x" + key if key == first else key): part for key, part in state.items()}
    for bad in (wrong, {}, state | {"more": x}):
        with pytest.raises(ValueError, match=f"the state of {name} holds '{first}'"):
            layer(x, bad)
        with pytest.raises(ValueError, match=f"the state of {name} holds"):
            layer.step(x[:, 0], bad)
        with pytest.raises(ValueError, match=f"the state of {name} holds"):
            layer.transitions(x, bad)


@every_layer
def test_a_state_of_other_sequences_is_refused(name: str) -> None:
    layer, x = build(name), sequence(3)
    _, state = layer(x[:1])
    for run in (lambda: layer(x, state), lambda: layer.step(x[:, 0], state)):
        with pytest.raises(ValueError, match=rf"of {name} has shape \(1, .* must be \[2, \.\.\.\]"):
            run()
    nothing = dict.fromkeys(state)
    with pytest.raises(ValueError, match=f"of {name} must be a tensor, got NoneType"):
        unhooked(type(layer)._check_state)(layer, nothing, 1)


@every_layer
def test_a_state_of_another_dtype_is_taken(name: str) -> None:
    layer, x = build(name), sequence(9)
    whole, _ = layer(x)
    _, middle = copy.deepcopy(layer).float()(x[:, :4].float())
    rest, _ = layer(x[:, 4:], middle)
    assert rest.dtype == torch.float64 and relative_error(rest, whole[:, 4:]) < 1e-4


@every_layer
def test_shapes_alone(name: str) -> None:
    """On the meta device there are no numbers, and all shapes and dtypes are right."""
    layer, x = build(name), sequence(5)
    y, state = layer(x)
    step, after = layer.step(x[:, 0], state)
    layer, x = layer.to("meta"), x.to("meta")
    y_meta, state_meta = layer(x)
    step_meta, after_meta = layer.step(x[:, 0], state_meta)
    pairs = [(y, y_meta), (step, step_meta)]
    pairs += [(state[key], state_meta[key]) for key in state]
    pairs += [(after[key], after_meta[key]) for key in after]
    for real, meta in pairs:
        assert meta.is_meta and meta.shape == real.shape and meta.dtype == real.dtype


def test_a_layer_that_returns_another_state_than_it_declares_is_told() -> None:
    class Odd(Leaky):
        @property
        def state_keys(self) -> tuple[str, ...]:
            return ("h",)

    with pytest.raises(ValueError, match="the state of Odd holds 'h', but this one holds 'recurr"):
        Odd(4)(torch.zeros(1, 2, 4))


# -------------------------------------------------------------------------------------- padding

LEFT = [0, 3, 0, 5, 2, 3]
SIZE = [7, 4, 1, 2, 3, 4]  # two of a length; the others on the left, on the right and between
MASK = torch.tensor([[a <= t < a + n for t in range(7)] for a, n in zip(LEFT, SIZE, strict=True)])


def padded(name: str, dtype: torch.dtype = torch.float64) -> tuple[Any, Tensor]:
    """A layer, with all it may have, and rows whose padding is not a number."""
    layer = build(name).to(dtype)
    x = sequence(7, batch=len(MASK)).to(dtype)
    return layer, x.masked_fill(~MASK[..., None], torch.nan)


def alone(name: str, state: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """The state of one row of a batch, of Attention without what other rows have more of."""
    own = {key: part[row : row + 1] for key, part in state.items()}
    return {key: part[:, own["time"][0] > 0] for key, part in own.items()} if "time" in own else own


@every_layer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("with_state", [False, True], ids=["empty", "state"])
def test_padding_changes_nothing(name: str, with_state: bool, dtype: torch.dtype) -> None:
    layer, x = padded(name, dtype)
    before = layer(sequence(3, batch=len(MASK), seed=4).to(dtype))[1] if with_state else None
    y, after = layer(x, before, mask=MASK)
    error = 5e-6 if dtype == torch.float32 else 1e-12  # products of other shapes round otherwise
    assert torch.equal(y[~MASK], torch.zeros_like(y[~MASK]))
    for row, real in enumerate(MASK):
        start = None if before is None else {k: part[row : row + 1] for k, part in before.items()}
        want, end = layer(x[row : row + 1, real], start)
        torch.testing.assert_close(y[row : row + 1, real], want, rtol=error, atol=error)
        for key, part in alone(name, after, row).items():
            torch.testing.assert_close(part, end[key], rtol=error, atol=error)


@every_layer
def test_a_mask_of_no_rows(name: str) -> None:
    y, state = build(name)(sequence(7)[:0], mask=MASK[:0])
    assert y.shape == (0, 7, D_MODEL) and all(len(part) == 0 for part in state.values())


@every_layer
def test_the_state_after_padding_goes_on(name: str) -> None:
    """Also where rows have read different numbers of tokens, and are padded again."""
    layer, x = padded(name)
    more = sequence(7, batch=len(MASK), seed=6)
    again = MASK.flip(0)
    _, state = layer(x, mask=MASK)
    y, _ = layer(more, state, mask=again)
    next_y, _ = layer.step(more[:, 0], state)
    for row, (real, then) in enumerate(zip(MASK, again, strict=True)):
        whole = torch.cat([x[row, real], more[row, then]])[None]
        want = layer(whole)[0][0, real.sum() :]
        assert relative_error(y[row, then], want) < 1e-9
        one = torch.cat([x[row, real], more[row, :1]])[None]
        assert relative_error(next_y[row], layer(one)[0][0, -1]) < 1e-9


@every_layer
def test_padding_takes_and_gives_no_gradient(name: str) -> None:
    layer, x = padded(name)
    x = x.nan_to_num().requires_grad_()
    y, _ = layer(x, mask=MASK)
    leaves = [x, *layer.parameters()]
    got = torch.autograd.grad(y.cos().sum(), leaves)
    assert torch.equal(got[0][~MASK], torch.zeros_like(got[0][~MASK]))
    wanted = sum(layer(x[row : row + 1, real])[0].cos().sum() for row, real in enumerate(MASK))
    assert isinstance(wanted, Tensor)
    for have, want in zip(got, torch.autograd.grad(wanted, leaves), strict=True):
        assert relative_error(have, want) < 1e-9


@every_layer
def test_some_times_of_padded_rows(name: str) -> None:
    layer, x = padded(name)
    times = torch.tensor([[0, 6]] * len(MASK))
    whole, state = layer(x, mask=MASK)
    some, same = layer(x, mask=MASK, read_at=times)
    assert torch.equal(some, whole[:, [0, 6]])
    assert all(torch.equal(same[key], state[key]) for key in state)


def test_masks_that_make_no_sense_are_refused() -> None:
    layer, x = build("DeltaNet"), sequence(4)
    forward = unhooked(type(layer).forward)
    for wrong in (torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 4)):
        with pytest.raises(ValueError, match=r"mask has shape .* must be bool \[2, 4\]"):
            forward(layer, x, mask=wrong)
    empty = torch.tensor([[True] * 4, [False] * 4])
    with pytest.raises(ValueError, match="row 1 of the mask has no token"):
        layer(x, mask=empty)
    with pytest.raises(ValueError, match="leave out mask, or cu_seqlens"):
        packing = ops.Packing(torch.tensor([[0, 4], [0, 4]]), 4)
        layer(x, mask=torch.ones(2, 4, dtype=torch.bool), cu_seqlens=packing)


# ------------------------------------------------------------------------------ packed sequences


ROWS = [[0, 4, 4, 5, 20], [0, 0, 7, 19, 20]]
"""Two rows of 20 tokens as four sequences each, of which some are empty and some of one token."""


@every_layer
@pytest.mark.parametrize("with_state", [False, True], ids=["empty", "state"])
def test_packed_sequences_are_those_alone_or_refused(name: str, with_state: bool) -> None:
    layer, x = build(name), sequence(20)
    packing = ops.Packing(torch.tensor(ROWS), 15)
    if not layer.packs:
        with pytest.raises(ValueError, match=f"{name} does not take packed sequences"):
            layer(x, cu_seqlens=packing)
        return
    before = None
    if with_state:
        state = layer(sequence(3, batch=8, seed=5))[1]
        before = {key: part.detach().clone() for key, part in state.items()}
    parts = [x, *layer.parameters(), *(before or {}).values()]
    leaves = [part.requires_grad_() for part in parts if part.is_floating_point()]
    y, state = layer(x, before, cu_seqlens=packing)
    got = torch.autograd.grad(y.cos().sum(), leaves, allow_unused=True)

    loss = torch.zeros((), dtype=torch.float64)
    for b, row in enumerate(ROWS):
        for s, (first, last) in enumerate(itertools.pairwise(row)):
            own = alone(name, state, 4 * b + s)
            start = None if before is None else alone(name, before, 4 * b + s)
            if first == last:
                if start is not None:
                    assert all(torch.equal(own[key], part) for key, part in start.items())
                continue
            want, end = layer(x[b : b + 1, first:last], start)
            loss = loss + want.cos().sum()
            assert relative_error(y[b : b + 1, first:last], want) < 1e-12
            for key, part in end.items():
                assert relative_error(own[key], part) < 1e-12, key
    wanted = torch.autograd.grad(loss, leaves, allow_unused=True)
    for have, want in zip(got, wanted, strict=True):
        assert (have is None) == (want is None)
        assert have is None or relative_error(have, want) < 1e-9


@every_layer
def test_packed_sequences_go_on(name: str) -> None:
    """From the states after them, also those of empty sequences; read at some times alone."""
    layer, x = build(name), sequence(20)
    if not layer.packs:
        return
    packing = ops.Packing(torch.tensor(ROWS), 15)
    more = ops.Packing(torch.tensor([[0, 2, 6, 6, 9], [0, 1, 2, 8, 9]]), 6)
    _, state = layer(x, cu_seqlens=packing)
    tokens = sequence(9, seed=7)
    times = torch.tensor([[8, 0, 3], [1, 1, 5]])
    y, after = layer(tokens, state, cu_seqlens=more)
    some, same = layer(tokens, state, cu_seqlens=more, read_at=times)
    assert relative_error(some, torch.stack([y[b, t] for b, t in enumerate(times)])) < 1e-12
    assert all(relative_error(same[key], after[key]) < 1e-12 for key in after)
    for b in range(2):
        for s in range(4):
            cut, then = ROWS[b][s : s + 2], more.offsets[b, s : s + 2].tolist()
            whole = torch.cat([x[b, slice(*cut)], tokens[b, slice(*then)]])[None]
            if then[0] < then[1]:
                want, end = layer(whole)
                assert relative_error(y[b, slice(*then)], want[0, cut[1] - cut[0] :]) < 1e-9
                own = alone(name, after, 4 * b + s)
                for key, part in end.items():
                    assert relative_error(own[key], part) < 1e-9, key


def test_a_state_for_each_packed_sequence() -> None:
    layer, x = build("LSTM"), sequence(4)
    packing = ops.Packing(torch.tensor([[0, 2, 4], [0, 4, 4]]), 4)
    with pytest.raises(ValueError, match=r"state\['recurrent'\] .* must be \[4, \.\.\.\]"):
        layer(x, layer(x)[1], cu_seqlens=packing)


# ------------------------------------------------------------------------------ several processes


@pytest.fixture(scope="module")
def across() -> list[dict[str, dict[str, float] | str]]:
    return on_processes(2, all_layers)


@every_layer
def test_a_sequence_on_two_processes_is_one_or_refused(
    name: str, across: list[dict[str, dict[str, float] | str]]
) -> None:
    for found in (one[name] for one in across):
        if isinstance(found, str):
            assert not registry.get(name).splits
            assert found.startswith(f"{name} needs all tokens of a sequence in one process")
        else:
            assert {"y", "x", *build(name).state_keys} < found.keys()
            assert max(found.values()) < 1e-9, found


# ---------------------------------------------------------------------------- copies and printing


@every_layer
def test_a_layer_can_be_copied_and_printed(name: str) -> None:
    layer, x = build(name), sequence(5)
    assert torch.equal(copy.deepcopy(layer)(x)[0], layer(x)[0])
    text = repr(layer)
    assert text.startswith(f"{name}(") and "d_model=16" in text
    for option, value in SIZES[name].items():
        assert f"{option}={value!r}" in text or option == "forget_gate"
    assert ("eigen_range=(-1.0, 1.0)" in text) == (name not in NOT_LINEAR)


# -------------------------------------------------------------------------- other people's layers


def test_a_layer_needs_no_more_than_three_methods() -> None:
    layer, x = Leaky(4), torch.randn(2, 5, 4)
    y, state = layer(x)
    assert torch.allclose(layer(x[:, 2:], layer(x[:, :2])[1])[0], y[:, 2:])
    assert torch.equal(layer(x, read_at=torch.tensor([[4], [0]]))[0][:, 0], y[[0, 1], [4, 0]])
    assert torch.equal(state["recurrent"], y[:, -1])
    assert layer.folds() == [] and not layer.packs and not layer.splits
    with pytest.raises(ValueError, match=r"Leaky has no transitions .* _transitions\(x, state\)"):
        layer.transitions(x)
