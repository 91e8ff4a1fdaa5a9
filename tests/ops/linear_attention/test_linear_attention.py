"""Gates of either sign in `linear_attention`: resets, tiny gates, long products, memory, NaN."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from statetrack import ops
from statetrack.ops.linear_attention import torch as chunked
from statetrack.ops.linear_attention.spec import Inputs
from tests.helpers import relative_error, unhooked
from tests.ops.cases import cpu_backends

BACKENDS = cpu_backends("linear_attention")[1:]
NAMES = ("q", "k", "v", "decay", "initial_state")
KEY, VALUE = 6, 3

backends = pytest.mark.parametrize("backend", BACKENDS)
gate_kinds = pytest.mark.parametrize("gate", [1, KEY], ids=["scalar", "vector"])


def make(time: int, gate: int, *, seed: int = 0, batch: int = 2, heads: int = 2) -> list[Tensor]:
    """q, k, v, decay (all in ±[0.5, 1]) and the initial state, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lead = (batch, time, heads)
    size = 0.5 + 0.5 * torch.rand(*lead, gate, generator=generator, dtype=torch.float64)
    decay = normal(*lead, gate).sign() * size
    return [
        normal(*lead, KEY),
        normal(*lead, KEY),
        normal(*lead, VALUE),
        decay,
        normal(batch, heads, KEY, VALUE),
    ]


def evaluate(inputs: list[Tensor], backend: str) -> dict[str, Tensor]:
    """Outputs and gradients, in the dtype of the inputs."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    q, k, v, decay, initial_state = leaves
    y, state = ops.linear_attention(
        q, k, v, decay, scale=0.7, initial_state=initial_state, backend=backend
    )
    generator = torch.Generator().manual_seed(7)
    loss = sum(
        (x.double() * torch.randn(x.shape, generator=generator, dtype=torch.float64)).sum()
        for x in (y, state)
    )
    grads = torch.autograd.grad(loss, leaves)
    return {"y": y, "state": state} | dict(zip(NAMES, grads, strict=True))


def expect_reference(
    inputs: list[Tensor], backend: str, *, dtype: torch.dtype = torch.float64
) -> None:
    """`backend` in `dtype` equals the reference on the same numbers in float64."""
    low = [x.to(dtype) for x in inputs]
    got = evaluate(low, backend)
    expected = evaluate([x.double() for x in low], "reference")
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    for name, want in expected.items():
        assert got[name].dtype == dtype
        assert got[name].isfinite().all(), name
        error = relative_error(got[name], want)
        assert error < tolerance, f"{name}: relative error {error:.2e}"


def with_gates(inputs: list[Tensor], gates: Tensor) -> list[Tensor]:
    return [*inputs[:3], gates.expand_as(inputs[3]).clone(), inputs[4]]


@backends
@gate_kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-30, -1e-30, 1e-40, -1.0, 1.0, 0.5, -0.5])
def test_constant_gates(backend: str, gate: int, dtype: torch.dtype, value: float) -> None:
    """Nothing divides by a gate or by a product of gates: small ones do not overflow."""
    inputs = make(100, gate)
    expect_reference(with_gates(inputs, torch.full_like(inputs[3], value)), backend, dtype=dtype)


@backends
@gate_kinds
@pytest.mark.parametrize("first", range(3))
def test_alternating_signs(backend: str, gate: int, first: int) -> None:
    inputs = make(70, gate)
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)[first]
    expect_reference(with_gates(inputs, signs.repeat(35)[None, :, None, None]), backend)


@backends
@gate_kinds
@pytest.mark.parametrize("at", [0, 1, 7, 8, 9, 31, 32, 33, 63, 64, 65, 129])
def test_one_reset(backend: str, gate: int, at: int) -> None:
    """A gate of exactly 0 anywhere in a block: nothing from before is seen after."""
    inputs = make(130, gate)
    inputs[3][:, at] = 0
    expect_reference(inputs, backend)
    expect_reference(inputs, backend, dtype=torch.float32)
    after = [x[:, at:] for x in inputs[:3]]
    cut, _ = ops.linear_attention(*after, inputs[3][:, at:], scale=0.7, backend=backend)
    assert relative_error(evaluate(inputs, backend)["y"][:, at:], cut) < 1e-12


@backends
@gate_kinds
def test_resets_at_every_block_boundary(backend: str, gate: int) -> None:
    for every in (2, 8, 16, 32, 64):
        inputs = make(130, gate, seed=every)
        inputs[3][:, ::every] = 0
        expect_reference(inputs, backend)
        inputs[3][:, every - 1 :: every] = 0
        expect_reference(inputs, backend)


@backends
@gate_kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_gradient_of_a_zero_gate(backend: str, gate: int, dtype: torch.dtype) -> None:
    """da_t = Σ_value G_t ∘ H_{t-1} has no factor a_t: it is as large at 0 as anywhere."""
    inputs = make(60, gate)
    zeros = [0, 13, 14, 31, 32, 59]
    inputs[3][:, zeros] = 0
    got = evaluate([x.to(dtype) for x in inputs], backend)["decay"][:, zeros]
    expected = evaluate([x.to(dtype).double() for x in inputs], "reference")["decay"][:, zeros]
    assert expected.abs().amin() > 1e-4
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


@backends
@settings(max_examples=25, deadline=None)
@given(
    time=st.integers(1, 200),
    gate=st.sampled_from([1, KEY]),
    values=st.lists(
        st.sampled_from([-1.0, -0.5, -1e-20, 0.0, 1e-20, 0.5, 1.0]), min_size=1, unique=True
    ),
    seed=st.integers(0, 2**16),
)
def test_any_mix_of_special_gates(
    backend: str, time: int, gate: int, values: list[float], seed: int
) -> None:
    inputs = make(time, gate, seed=seed, batch=1)
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(len(values), inputs[3].shape, generator=generator)
    inputs[3] = torch.tensor(values, dtype=torch.float64)[which]
    expect_reference(inputs, backend)
    expect_reference(inputs, backend, dtype=torch.float32)


@backends
@gate_kinds
@pytest.mark.parametrize("time", [65_536, 65_535])
def test_reflections_keep_the_state_exactly(backend: str, gate: int, time: int) -> None:
    """a = -1 and no writes: after 65,536 tokens every bit of the state is where it was."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1, 1, KEY, VALUE, generator=generator)
    q, v = torch.randn(1, time, 1, KEY, generator=generator), torch.zeros(1, time, 1, VALUE)
    decay = torch.full((1, time, 1, gate), -1.0)
    _, state = ops.linear_attention(
        q, torch.zeros_like(q), v, decay, initial_state=start, backend=backend
    )
    assert torch.equal(state, start * (-1.0) ** time)


@backends
def test_scalar_gate_is_a_vector_gate_with_equal_entries(backend: str) -> None:
    inputs = make(90, 1)
    inputs[3][:, ::11] = 0
    scalar = evaluate(inputs, backend)
    vector = evaluate([*inputs[:3], inputs[3].expand(-1, -1, -1, KEY), inputs[4]], backend)
    vector["decay"] = vector["decay"].sum(-1, keepdim=True)
    for name, want in vector.items():
        assert relative_error(scalar[name], want) < 1e-13, name


@backends
@gate_kinds
@pytest.mark.parametrize("name", NAMES[:4])
def test_nan_reaches_only_what_depends_on_it(backend: str, gate: int, name: str) -> None:
    """Where the reference has NaN there is NaN, in outputs and gradients, and nowhere else."""
    inputs = make(80, gate)
    inputs[NAMES.index(name)][0, 50, 1, 0] = torch.nan
    got, expected = evaluate(inputs, backend), evaluate(inputs, "reference")
    assert got["y"][0, :50].isfinite().all() and not got["y"][0, 50].isfinite().all()
    for result, want in expected.items():
        assert torch.equal(got[result].isnan(), want.isnan()), result


@backends
def test_nan_in_the_first_gate_is_not_lost_without_a_state(backend: str) -> None:
    q, k, v, decay, _ = make(5, KEY)
    decay[0, 0] = torch.nan
    y, _ = ops.linear_attention(q, k, v, decay, backend=backend)
    assert y[0].isnan().all() and y[1].isfinite().all()


@gate_kinds
@pytest.mark.parametrize("numbers", [1, 1200, 4000])
def test_slabs_change_nothing(gate: int, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut in time and batch into pieces of any size, the chunked form gives the same."""
    inputs = make(150, gate, batch=5)
    inputs[3][:, 63:66] = 0
    whole = evaluate(inputs, "torch")
    monkeypatch.setattr(chunked, "SLAB_NUMBERS", numbers)
    rows, times = chunked._slabs(inputs[0], inputs[2])
    assert len(rows) > 1 and (len(times) > 1) == (numbers < 2000)
    for name, got in evaluate(inputs, "torch").items():
        assert relative_error(got, whole[name]) < 1e-12, name
    expect_reference(inputs, "torch")


@pytest.mark.parametrize("gate", [1, KEY], ids=["scalar", "vector"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_neighbouring_heads_share_q_and_k(backend: str, groups: int, gate: int) -> None:
    """As if q and k had been given for each head of a group; their gradients are the sums."""
    q, k, v, decay, start = make(70, gate, heads=4)
    q, k = q[:, :, :groups], k[:, :, :groups]
    by_head = [torch.cat([x[:, :, h * groups // 4, None] for h in range(4)], 2) for x in (q, k)]
    shared = evaluate([q, k, v, decay, start], backend)
    expected = evaluate([*by_head, v, decay, start], "reference")
    for name in ("q", "k"):
        expected[name] = expected[name].unflatten(2, (groups, -1)).sum(3)
    for name, want in expected.items():
        assert shared[name].shape == want.shape
        assert relative_error(shared[name], want) < 1e-12, name


@pytest.mark.parametrize("groups", [3, 8, 0])
def test_groups_divide_the_heads(groups: int) -> None:
    _, _, v, decay, _ = make(5, 1, heads=4)
    q = torch.zeros(2, 5, groups, KEY)
    with pytest.raises(ValueError, match=f"4 heads must be a multiple of the {groups} groups of q"):
        unhooked(ops.linear_attention)(q, q, v, decay)


def test_q_and_k_have_as_many_groups() -> None:
    q, k, v, decay, _ = make(5, 1, heads=4)
    with pytest.raises(ValueError, match=r"k has shape .* with groups = 2 \(it has groups = 4\)"):
        unhooked(ops.linear_attention)(q[:, :, :2], k, v, decay)


@backends
def test_mixed_precision(backend: str) -> None:
    """Maths and state in the widest dtype; y as v; each gradient as its input."""
    dtypes = [torch.bfloat16, torch.float16, torch.float32, torch.float32, torch.float64]
    inputs = [x.to(dtype) for x, dtype in zip(make(40, KEY), dtypes, strict=True)]
    got = evaluate(inputs, backend)
    expected = evaluate([x.double() for x in inputs], "reference")
    assert got["y"].dtype == torch.float32 and got["state"].dtype == torch.float64
    assert relative_error(got["state"], expected["state"]) < 1e-13
    for name, dtype in zip(NAMES, dtypes, strict=True):
        assert got[name].dtype == dtype
        # the gradient of y arrives rounded to float32
        allowed = max(torch.finfo(x).eps for x in (dtype, torch.float32))
        assert relative_error(got[name], expected[name]) < allowed


@backends
@gate_kinds
def test_keeps_only_inputs_and_outputs(backend: str, gate: int) -> None:
    def kept(time: int) -> int:
        sizes = []
        leaves = [x.requires_grad_() for x in make(time, gate)]
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: sizes.append(x.numel()) or x, lambda x: x
        ):
            ops.linear_attention(*leaves[:4], initial_state=leaves[4], backend=backend)
        return sum(sizes)

    for time in (256, 512):
        inputs = make(time, gate)
        outputs = inputs[2].numel() + inputs[4].numel()
        assert 0 < kept(time) <= sum(x.numel() for x in inputs) + outputs


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numel = max(self.numel, result.untyped_storage().nbytes() // 8)
        return result


@gate_kinds
def test_chunked_form_needs_no_square_tensor(gate: int) -> None:
    """The largest tensor of a forward and backward pass grows no faster than time."""

    def largest(time: int) -> int:
        q, k, v, decay, start = make(time, gate)
        with Largest() as seen:
            given = Inputs(q, k, v, decay, 1.0, start)
            y, state, between = chunked._forward(given)
            chunked._backward(given, y, state, between, y, state)
        return seen.numel

    assert largest(512) <= 2 * largest(256)
    assert largest(512) <= 512 * 4 * KEY * VALUE  # far below time² · rows


@pytest.mark.parametrize("time", [1, 2, 3, 40, 63, 64, 65, 1000, 10**6])
@pytest.mark.parametrize("dim", [1, 32, 64, 256])
def test_chunk_size_wastes_little(time: int, dim: int) -> None:
    chunk = chunked._chunk_size(time, dim, dim)
    padded = math.ceil(time / chunk) * chunk
    assert padded < 2 * time
    assert chunk >= 16 or time < 64
