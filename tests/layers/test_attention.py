"""Attention against the softmax written out, its cache, its window, its packed sequences."""

import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrack import ops
from statetrack.layers import Attention, attention
from tests.helpers import relative_error, unhooked
from tests.layers.cases import D_MODEL, build, sequence

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no positions": {"rotary": False},
    "shared heads": {"num_heads": 4, "num_kv_heads": 2},
    "one for all": {"num_heads": 4, "num_kv_heads": 1, "head_dim": 6},
    "window 1": {"window": 1},
    "window 3": {"window": 3, "num_heads": 4, "num_kv_heads": 2},
    "window 70": {"window": 70},
    "Qwen3-Next": {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rotary_dim": 2,
        "rotary_base": 1e7,
        "qk_norm": "head",
        "output_gate": True,
    },
    "OLMo-Hybrid": {"num_heads": 4, "num_kv_heads": 2, "rotary": False, "qk_norm": "all_heads"},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
LENGTHS = [5, 1, 0, 9, 2]


def make(options: dict[str, Any]) -> Attention:
    layer = build("Attention", **({"qk_norm": "none"} | options))
    assert isinstance(layer, Attention)
    return layer


def written_out(layer: Attention, x: Tensor) -> Tensor:
    """The definition, head by head and token by token, for one sequence [time, d_model]."""
    heads, shared, dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
    projected = layer.qkv_proj(x).split([heads * dim, shared * dim, shared * dim], dim=-1)

    def norm(part: Tensor, module: Any, count: int) -> Tensor:
        if layer.qk_norm == "none":
            return part.unflatten(-1, (count, dim))
        whole = part if layer.qk_norm == "all_heads" else part.unflatten(-1, (count, dim))
        size = (whole.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return (whole / size * module.weight).reshape(-1, count, dim)

    q, k = norm(projected[0], layer.q_norm, heads), norm(projected[1], layer.k_norm, shared)
    v = projected[2].unflatten(-1, (shared, dim))

    def turned(part: Tensor) -> Tensor:
        if not layer.rotary:
            return part
        half = layer.rotary_dim // 2
        pairs = torch.complex(part[..., :half], part[..., half : 2 * half])
        rate = layer.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(len(part), dtype=torch.float64)[:, None, None] * rate
        pairs = pairs * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([pairs.real, pairs.imag, part[..., 2 * half :]], dim=-1)

    q, k = turned(q), turned(k)
    rows = []
    for t in range(len(x)):
        first = 0 if layer.window is None else max(0, t - layer.window + 1)
        outputs = []
        for head in range(heads):
            group = head // (heads // shared)
            scores = k[first : t + 1, group] @ q[t, head] / math.sqrt(dim)
            outputs.append(scores.softmax(0) @ v[first : t + 1, group])
        rows.append(torch.cat(outputs))
    y = torch.stack(rows)
    if layer.gate_proj is not None:
        y = y * torch.sigmoid(layer.gate_proj(x))
    return layer.out_proj(y)


def same_state(got: dict[str, Tensor], want: dict[str, Tensor], error: float = 1e-9) -> None:
    """The same tokens in every row, wherever they are."""
    for row, (mine, theirs) in enumerate(zip(got["time"], want["time"], strict=True)):
        here, there = mine.argsort()[(mine == 0).sum() :], theirs.argsort()[(theirs == 0).sum() :]
        assert torch.equal(mine[here], theirs[there])
        for name in ("k", "v"):
            assert relative_error(got[name][row, here], want[name][row, there]) < error


# ------------------------------------------------------------------------------- the definition


@every_option
@pytest.mark.parametrize("time", [1, 2, 3, 17])
def test_it_is_the_softmax_written_out(options: dict[str, Any], time: int) -> None:
    layer, x = make(options), sequence(time).requires_grad_()
    y, _ = layer(x)
    want = torch.stack([written_out(layer, row) for row in x])
    assert relative_error(y, want) < 1e-12
    leaves = [x, *layer.parameters()]
    got = torch.autograd.grad(y.cos().sum(), leaves, allow_unused=True)
    for have, wanted in zip(got, torch.autograd.grad(want.cos().sum(), leaves), strict=True):
        assert (have - wanted).abs().max() < 1e-10


@pytest.mark.parametrize("window", [1, 3, 64, 65, 70, 129])
@pytest.mark.parametrize("time", [63, 64, 65, 130, 200])
def test_windows_are_cut_into_blocks(window: int, time: int) -> None:
    layer, x = make({"window": window}), sequence(time, batch=1)
    assert relative_error(layer(x)[0][0], written_out(layer, x[0])) < 1e-12


@pytest.mark.parametrize("window", [None, 3])
def test_vmap_over_runs_keeps_shared_heads_windows_and_packed_rows(window: int | None) -> None:
    options = {"num_heads": 4, "num_kv_heads": 2, "window": window}
    layers = [
        build("Attention", seed=seed, **options)  # warnings are errors: no kernel runs in a loop
        for seed in (0, 1)
    ]
    x = torch.stack([sequence(9), sequence(9, seed=3)])
    offsets = torch.tensor([[[0, 4, 9], [0, 0, 9]], [[0, 7, 9], [0, 9, 9]]])
    names = [key for key, _ in layers[0].named_parameters()]
    weights = {key: torch.stack([one.get_parameter(key) for one in layers]) for key in names}

    def run(weights: dict[str, Tensor], x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        packed = {"cu_seqlens": ops.Packing(offsets, 9)}
        y = torch.func.functional_call(layers[0], weights, (x,), packed)[0]
        return y, torch.func.functional_call(layers[0], weights, (x,))[0]

    together, plain = torch.vmap(run)(weights, x, offsets)
    for index, layer in enumerate(layers):
        want = layer(x[index], cu_seqlens=ops.Packing(offsets[index], 9))[0]
        assert relative_error(together[index], want) < 1e-12
        assert relative_error(plain[index], layer(x[index])[0]) < 1e-12


def test_compiled_it_is_still_one_kernel() -> None:
    """Written out, the scores of all pairs of tokens would be kept for the backward pass."""
    script = Path(__file__).with_name("compile_attention.py")  # without the hook on shapes
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["alone:", "fused", "mapped:", "written", "out"]


# ------------------------------------------------------------------------------------- the cache


@every_option
@pytest.mark.parametrize("grad", [False, True], ids=["decoding", "with gradients"])
def test_cut_into_pieces_equals_whole(options: dict[str, Any], grad: bool) -> None:
    layer, x = make(options), sequence(100)
    whole, end = layer(x)
    outputs, state = [], None
    with torch.set_grad_enabled(grad):
        for first, last in pairwise([0, 3, 4, 5, 6, 40, 41, 42, 90, 99, 100]):
            y, state = layer(x[:, first:last], state)
            outputs.append(y)
    assert state is not None
    assert relative_error(torch.cat(outputs, dim=1), whole) < 1e-12
    assert state["time"].shape[1] == min(100, layer.window or 100)
    same_state(state, end)


def test_decoding_writes_into_spare_room() -> None:
    layer, x = make({}), sequence(200)
    with torch.no_grad():
        _, state = layer(x[:, :1])
        places = []
        for t in range(1, 200):
            _, state = layer.step(x[:, t], state)
            places.append(state["k"].data_ptr())
    assert len(set(places)) == 3, "room for 64, 130 and 262 tokens"


@torch.no_grad()
def test_the_memory_of_a_window_is_bounded() -> None:
    layer, x = make({"window": 5}), sequence(300)
    state = None
    for t in range(300):
        _, state = layer.step(x[:, t], state)
    assert state is not None and state["k"].shape[1] == 5
    assert state["k"].untyped_storage().nbytes() <= 64 * 2 * D_MODEL * 8
    assert layer.state_size == 2 * D_MODEL * 5


@pytest.mark.parametrize("window", [None, 3])
@torch.no_grad()
def test_two_branches_of_one_state_do_not_meet(window: int | None) -> None:
    layer, x, other = make({"window": window}), sequence(30), sequence(10, seed=7)
    _, state = layer(x[:, :10])
    _, state = layer.step(x[:, 10], state)  # has room behind it
    kept = {key: part.clone() for key, part in state.items()}
    first = second = state
    for t in range(10):
        a, first = layer.step(x[:, 11 + t], first)
        b, second = layer.step(other[:, t], second)
        assert relative_error(a, layer(x[:, : 12 + t])[0][:, -1]) < 1e-12
        branch = torch.cat([x[:, :11], other[:, : t + 1]], dim=1)
        assert relative_error(b, layer(branch)[0][:, -1]) < 1e-12
        assert all(torch.equal(state[key], part) for key, part in kept.items())
    again, _ = layer.step(x[:, 11], state)
    assert relative_error(again, layer(x[:, :12])[0][:, -1]) < 1e-12


@torch.no_grad()
def test_rows_can_be_chosen_in_place() -> None:
    """As beam search does it, on the state itself."""
    layer, x = make({}), sequence(6, batch=3)
    _, state = layer(x[:, :3])
    _, state = layer.step(x[:, 3], state)
    beams = torch.tensor([2, 0, 0])
    for key in state:
        state[key] = state[key][beams]
    y, state = layer.step(x[:, 4], state)
    chosen = torch.cat([x[beams, :4], x[:, 4:5]], dim=1)
    assert relative_error(y, layer(chosen)[0][:, -1]) < 1e-12
    y, _ = layer.step(x[:, 5], state)
    assert relative_error(y, layer(torch.cat([chosen, x[:, 5:]], dim=1))[0][:, -1]) < 1e-12


def test_a_state_crosses_modes_and_dtypes() -> None:
    """Inference mode, gradients, and back; a cache in float64 read in float32."""
    layer, x = make({}), sequence(9)
    whole = layer(x)[0]
    with torch.inference_mode():
        _, state = layer(x[:, :3])
        _, state = layer.step(x[:, 3], state)
    with torch.no_grad():
        y, state = layer.step(x[:, 4], state)
        assert relative_error(y, whole[:, 4]) < 1e-12
    y, state = layer(x[:, 5:7], {key: part.clone() for key, part in state.items()})
    y.sum().backward()
    assert relative_error(y, whole[:, 5:7]) < 1e-12
    with torch.no_grad():
        layer = layer.float()
        y, state = layer.step(x[:, 7].float(), state)
        assert state["k"].dtype == torch.float32
        assert relative_error(y, whole[:, 7]) < 1e-5
        y, _ = layer.step(x[:, 8].float(), state)
        assert relative_error(y, whole[:, 8]) < 1e-5


def test_gradients_reach_through_a_state() -> None:
    layer, x = make({"window": 4}), sequence(9).requires_grad_()
    want = torch.autograd.grad(layer(x)[0][:, 4:].cos().sum(), x)[0]
    _, state = layer(x[:, :4])
    outputs = []
    for t in range(4, 9):
        y, state = layer.step(x[:, t], state)
        outputs.append(y)
    got = torch.autograd.grad(torch.stack(outputs, dim=1).cos().sum(), x)[0]
    assert relative_error(got, want) < 1e-12


# ------------------------------------------------------------------------------------ fixed room


@every_option
@torch.no_grad()
def test_a_state_of_a_fixed_size(options: dict[str, Any]) -> None:
    layer, x = make(options), sequence(40)
    whole, _ = layer(x)
    state = layer.empty_state(2, 40)
    place, shape = state["k"].data_ptr(), state["k"].shape
    assert shape[1] == min(40, layer.window or 40)
    first, state = layer(x[:, :30], state)
    assert relative_error(first, whole[:, :30]) < 1e-12
    for t in range(30, 40):
        y, state = layer.step(x[:, t], state)
        assert relative_error(y, whole[:, t]) < 1e-12
        assert (state["k"].data_ptr(), state["k"].shape) == (place, shape)
    same_state(state, layer(x)[1])


@pytest.mark.parametrize("window", [None, 2, 4])
@torch.no_grad()
def test_room_behind_a_ragged_prefill(window: int | None) -> None:
    layer, x = make({"window": window}), sequence(20, batch=3)
    mask = torch.tensor([[True] * 7, [False] * 5 + [True] * 2, [True] * 4 + [False] * 3])
    _, state = layer(x[:, :7], mask=mask)
    state = layer.with_room(state, 20)
    for t in range(7, 20):
        y, state = layer.step(x[:, t], state)
        for row in range(3):
            own = torch.cat([x[row, :7][mask[row]], x[row, 7 : t + 1]])
            assert relative_error(y[row], written_out(layer, own)[-1]) < 1e-12


@torch.no_grad()
def test_a_step_as_a_graph_repeats_it() -> None:
    """One call on static tensors, its results copied back; the state that went in is as it was."""
    layer, x = make({}), sequence(12)
    whole, _ = layer(x)
    static = layer.with_room(layer(x[:, :4])[1], 12)
    for _ in range(3):  # a warm-up writes behind the tokens alone
        layer.step(x[:, 11], static)
    for t in range(4, 12):
        y, after = layer.step(x[:, t], static)
        assert after["k"] is static["k"] and after["v"] is static["v"]
        static["time"].copy_(after["time"])
        assert relative_error(y, whole[:, t]) < 1e-12


def test_room_that_does_not_do_is_named() -> None:
    layer, x = make({}), sequence(5)
    with torch.no_grad():
        _, state = layer(x)
        with pytest.raises(ValueError, match="room=4 must be at least 1 and hold the 5 tokens"):
            layer.with_room(state, 4)
        state = layer.with_room(state, 6)
        _, state = layer.step(x[:, 0], state)
        with pytest.raises(ValueError, match="room for 6 tokens, but 7 are to be kept"):
            layer.step(x[:, 0], state)


def test_with_gradients_a_fixed_size_is_given_up() -> None:
    layer, x = make({}), sequence(6)
    state = layer.with_room(layer(x[:, :3])[1], 4)
    before = {key: part.clone() for key, part in state.items()}
    y, _ = layer(x[:, 3:], state)
    assert relative_error(y, layer(x)[0][:, 3:]) < 1e-12
    assert all(torch.equal(state[key], part) for key, part in before.items())


# -------------------------------------------------------------------------------- packed, ragged


def packing() -> ops.Packing:
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    return ops.Packing(torch.stack([offsets, offsets.flip(0).neg() + offsets[-1]]), max(LENGTHS))


@every_option
def test_packed_sequences_are_those_alone(options: dict[str, Any]) -> None:
    layer, x = make(options), sequence(sum(LENGTHS)).requires_grad_()
    y, state = layer(x, cu_seqlens=packing())
    asked = torch.tensor([[16, 0, 5, 5], [3, 4, 15, 1]])
    some, _ = layer(x, cu_seqlens=packing(), read_at=asked)
    assert relative_error(some, y.gather(1, asked[..., None].expand(-1, -1, D_MODEL))) < 1e-12
    pieces = [
        (x[row : row + 1, first:last], 5 * row + number)
        for row, ends in enumerate(packing().offsets.tolist())
        for number, (first, last) in enumerate(pairwise(ends))
        if last > first
    ]
    want = [layer(piece) for piece, _ in pieces]
    whole = torch.cat([one for one, _ in want], dim=1).reshape(y.shape)
    assert relative_error(y, whole) < 1e-12
    for (_, number), (_, end) in zip(pieces, want, strict=True):
        same_state({key: part[number : number + 1] for key, part in state.items()}, end)
    empty = {2, 7}
    assert all(not state["time"][number].any() for number in empty)
    leaves = [x, *layer.parameters()]
    got = torch.autograd.grad(y.cos().sum(), leaves)
    for have, wanted in zip(got, torch.autograd.grad(whole.cos().sum(), leaves), strict=True):
        assert (have - wanted).abs().max() < 1e-10


@every_option
def test_packed_sequences_go_on_from_states(options: dict[str, Any]) -> None:
    """Below the check of the base class: a state for each sequence, of different lengths."""
    layer, x = make(options), sequence(sum(LENGTHS))
    before_x = sequence(6, batch=10, seed=3)
    read = torch.arange(10) % 6 + 1
    mask = torch.arange(6) < read[:, None]
    _, before = layer(before_x, mask=mask)
    y, after = layer._mix(x, before, None, packing())
    for row, ends in enumerate(packing().offsets.tolist()):
        for number, (first, last) in enumerate(pairwise(ends)):
            at = 5 * row + number
            own = torch.cat([before_x[at, mask[at]], x[row, first:last]])[None]
            want, end = layer(own)
            same_state({key: part[at : at + 1] for key, part in after.items()}, end)
            if last > first:
                assert relative_error(y[row, first:last], want[0, read[at] :]) < 1e-12


@every_option
@pytest.mark.parametrize("grad", [False, True], ids=["decoding", "with gradients"])
def test_ragged_rows_step_on_as_alone(options: dict[str, Any], grad: bool) -> None:
    layer, x = make(options), sequence(10, batch=3)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[0, :4], mask[1, 3:] = False, False
    with torch.set_grad_enabled(grad):
        _, state = layer(x[:, :7], mask=mask)
        outputs = []
        for t in range(7, 10):
            y, state = layer.step(x[:, t], state)
            outputs.append(y)
    for row in range(3):
        own = torch.cat([x[row, :7][mask[row]], x[row, 7:]])
        want = written_out(layer, own)[-3:]
        assert relative_error(torch.stack(outputs, dim=1)[row], want) < 1e-12


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads=3 must divide num_heads=4"),
        ({"num_kv_heads": 0}, "num_kv_heads=0 must divide"),
        ({"window": 0}, "window=0 must be at least 1"),
        ({"head_dim": 5}, "even rotary_dim within the head size 5, but it is 5"),
        ({"rotary_dim": 6}, "within the head size 4, but it is 6"),
        ({"rotary_dim": 0}, "but it is 0"),
        ({"qk_norm": "both"}, "qk_norm='both' must be"),
    ],
)
def test_impossible_options_are_named(options: dict[str, Any], message: str) -> None:
    layer = Attention.__new__(Attention)
    with pytest.raises(ValueError, match=message):
        unhooked(Attention.__init__)(layer, D_MODEL, **options)


def test_options_are_printed() -> None:
    text = repr(make({"window": 3, "num_kv_heads": 1, "output_gate": True}))
    for part in ("window=3", "num_kv_heads=1", "output_gate=True", "rotary_base=10000.0"):
        assert part in text


def test_the_kernel_for_packed_sequences_is_for_gpus() -> None:
    assert not attention._varlen_takes(torch.zeros(1, 2, 2, 8, dtype=torch.bfloat16))
