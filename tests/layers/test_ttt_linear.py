"""TTT-Linear against its paper's formulas, with and without its norm, for chunks of any size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, normalize

from statetrack import ops
from statetrack.layers import TTTLinear
from statetrack.ops.delta import reference
from tests.helpers import relative_error
from tests.layers import test_base
from tests.layers.cases import D_MODEL, SIZES, build, sequence

FORMS = [
    {"num_heads": 2, "chunk": 1, "inner_norm": True},
    {"num_heads": 2, "chunk": 3, "inner_norm": True},
    {"num_heads": 2, "chunk": 4, "inner_norm": False},
]
form = pytest.mark.parametrize("options", FORMS, ids=["online", "chunks", "linear chunks"])


def by_hand(layer: TTTLinear, x: Tensor) -> Tensor:
    """One sequence; the gradients are autograd's, of the loss as the paper writes it."""
    heads, dim, low = layer.num_heads, layer.head_dim, layer.eigen_range.low
    q, k, v = layer.qkv_proj(x).view(len(x), 3, heads, dim).unbind(1)
    rate = (1 - low) * layer.rate_proj(x).sigmoid() / layer.chunk

    def f(x: Tensor, weights: Tensor, head: int) -> Tensor:
        z = x @ weights
        if layer.inner_norm:
            scale, shift = layer.norm_weight[head, 0], layer.norm_bias[head, 0]
            z = layer_norm(z, (dim,), scale, shift, 1e-6)
        return x + z

    rows = []
    for head in range(heads):
        weights = at_start = layer.start[head].detach()
        outputs = []
        for t in range(len(x)):
            if t % layer.chunk == 0:
                at_start = weights
            leaf = at_start.clone().requires_grad_()
            key = normalize(k[t, head], dim=0)
            loss = (f(key, leaf, head) - v[t, head]).square().sum() / 2
            (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
            weights = weights - rate[t, head] * gradient
            outputs.append(f(normalize(q[t, head], dim=0), weights, head))
        rows.append(torch.stack(outputs))
    return layer.out_proj(torch.cat(rows, dim=-1))


@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("chunk", [1, 2, 3, 16])
@pytest.mark.parametrize("inner_norm", [True, False])
def test_the_papers_equations(inner_norm: bool, chunk: int, low: float) -> None:
    layer = build("TTTLinear", inner_norm=inner_norm, chunk=chunk, eigen_range=(low, 1.0))
    assert isinstance(layer, TTTLinear)
    x = sequence(7)
    y, _ = layer(x)
    for row in range(2):
        assert relative_error(y[row], by_hand(layer, x[row])) < 1e-12


CHECKS: list[Callable[[str], None]] = [
    test_base.test_cut_anywhere_equals_whole,
    test_base.test_step_equals_forward,
    test_base.test_some_times_are_those_of_all,
    test_base.test_causal,
    test_base.test_state_size_counts_the_state,
    test_base.test_vmap_over_parameters_equals_a_loop,
    test_base.test_every_parameter_gets_a_gradient,
    test_base.test_reset_draws_every_parameter,
    test_base.test_a_misspelt_state_is_refused,
    test_base.test_the_state_after_padding_goes_on,
    test_base.test_padding_takes_and_gives_no_gradient,
    test_base.test_some_times_of_padded_rows,
    test_base.test_a_layer_can_be_copied_and_printed,
]


@form
@pytest.mark.parametrize("expect", CHECKS, ids=lambda check: check.__name__[5:])
def test_what_holds_for_every_layer(
    expect: Callable[..., None], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "TTTLinear", options)
    expect(name="TTTLinear")


@form
@pytest.mark.parametrize("with_state", [False, True])
def test_padding_changes_nothing(
    options: dict[str, Any], with_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "TTTLinear", options)
    test_base.test_padding_changes_nothing("TTTLinear", with_state, torch.float64)


@form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_close(
    options: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "TTTLinear", options)
    test_base.test_lower_precision_is_close("TTTLinear", dtype)


@form
def test_packed_sequences_are_those_alone(options: dict[str, Any]) -> None:
    layer, x = build("TTTLinear", **options), sequence(9)
    packing = ops.Packing(torch.tensor([[0, 4, 9], [0, 7, 9]]), 7)
    times = torch.tensor([[8, 1], [6, 7]])
    y, state = layer(x, cu_seqlens=packing)
    some, _ = layer(x, cu_seqlens=packing, read_at=times)
    alone = [layer(part) for part in (x[:1, :4], x[:1, 4:], x[1:, :7], x[1:, 7:])]
    want = torch.cat([out[0] for out, _ in alone]).view_as(y)
    assert relative_error(y, want) < 1e-12
    assert relative_error(some, torch.stack([want[0, [8, 1]], want[1, [6, 7]]])) < 1e-12
    for key, part in state.items():
        assert relative_error(part, torch.cat([end[key] for _, end in alone])) < 1e-12


@form
def test_an_empty_packed_sequence_keeps_the_start(options: dict[str, Any]) -> None:
    layer, x = build("TTTLinear", **options), sequence(5, batch=1)
    y, state = layer(x, cu_seqlens=torch.tensor([0, 2, 2, 5]))
    assert relative_error(y, torch.cat([layer(x[:, :2])[0], layer(x[:, 2:])[0]], dim=1)) < 1e-12
    assert all(not part[1].any() for part in state.values())


def test_without_norm_the_online_rule_is_the_delta_rule() -> None:
    layer: Any = build("TTTLinear", chunk=1, inner_norm=False)
    x = sequence(9)
    q, k, v = layer.qkv_proj(x).view(2, 9, 3, 2, D_MODEL // 2).unbind(2)
    q, k = ops.unit_vector(q), ops.unit_vector(k)
    beta = 2 * layer.rate_proj(x).sigmoid()
    start = layer.start.expand(2, -1, -1, -1)
    y, end = reference.delta_product(
        q, k[:, :, None], (v - k)[:, :, None], beta[:, :, None], None, False, 1.0, start
    )
    got, state = layer(x)
    assert relative_error(got, layer.out_proj((q + y).flatten(2))) < 1e-12
    assert relative_error(layer.start + state["recurrent"], end) < 1e-12


def test_at_learning_rate_two_a_step_reflects() -> None:
    layer: Any = build("TTTLinear", chunk=1, inner_norm=False)
    with torch.no_grad():
        layer.rate_proj.weight.copy_(1e6 * torch.ones(2, 1) * torch.eye(D_MODEL)[0])
    x = sequence(3)
    x[..., 0] = 1.0
    lowest = layer.transitions(x).eigenvalues().amin(-1)
    torch.testing.assert_close(lowest, -torch.ones_like(lowest), rtol=0, atol=1e-12)


@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_the_steps_of_a_chunk_keep_to_the_range_together(low: float) -> None:
    """The same key at every place at the highest rate: what is wrong shrinks by the factor low."""
    layer: Any = build("TTTLinear", chunk=4, inner_norm=False, eigen_range=(low, 1.0))
    with torch.no_grad():
        layer.rate_proj.weight.copy_(1e6 * torch.ones(2, 1) * torch.eye(D_MODEL)[0])
    x = sequence(1)
    x[..., 0] = 1.0
    _, end = layer(x.expand(-1, 4, -1))
    inputs = layer._inputs(x)
    k, target = inputs.k[:, 0], inputs.target[:, 0]

    def error(gained: Tensor) -> Tensor:
        return target - torch.einsum("bhk,bhkv->bhv", k, layer.start + gained)

    before = error(torch.zeros_like(end["recurrent"]))
    assert relative_error(error(end["recurrent"]), low * before) < 1e-12


def test_only_the_delta_rule_has_transitions_and_backends() -> None:
    x = sequence(3)
    with pytest.raises(ValueError, match="inner_norm=True has no transitions: its next state is n"):
        build("TTTLinear", inner_norm=True).transitions(x)
    with pytest.raises(ValueError, match="chunk=3 has no transitions: .*chunk=1 has them"):
        build("TTTLinear", chunk=3).transitions(x)
    with pytest.raises(ValueError, match="backend='reference' is for chunk=1 with inner_norm=Fal"):
        build("TTTLinear", chunk=3, backend="reference")


def test_bad_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match="chunk=0 must be at least 1"):
        TTTLinear(8, chunk=0)


def test_its_defaults_are_the_papers() -> None:
    assert "num_heads=4, eigen_range=(-1.0, 1.0), chunk=16, inner_norm=True" in repr(TTTLinear(8))
