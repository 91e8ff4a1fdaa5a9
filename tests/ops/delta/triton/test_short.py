"""The short delta rule in chunks of 16, in Triton's interpreter, in bfloat16.

The interpreter cuts bfloat16 off and multiplies its bits; here it rounds to nearest and multiplies
the numbers, as the hardware does.
"""

from typing import Any

import pytest
import torch

from tests.helpers import mostly_slow
from tests.ops.interpreter import INTERPRETED, expect_interpreted

pytest.importorskip("triton")

if not INTERPRETED:

    @pytest.mark.slow
    def test_in_the_interpreter() -> None:
        expect_interpreted("slow", __file__)

else:
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    from statetrack import ops
    from statetrack.ops.delta.triton import choose

    NARROW = {tl.float32, tl.bfloat16}

    @pytest.fixture(autouse=True)
    def mended(monkeypatch: pytest.MonkeyPatch) -> None:
        cast, convert = InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp

        def numbers(x: Any) -> Any:
            if x.dtype.scalar == tl.bfloat16:
                return (x.data.astype(np.uint32) << 16).view(np.float32)
            return x.data.astype(np.float32)

        def rounded(x: Any) -> Any:
            bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).reshape(x.shape)

        def between(src: Any, to: Any) -> Any:
            data = rounded(src.data) if to.scalar == tl.bfloat16 else numbers(src)
            return TensorHandle(data, to.scalar)

        def cast_impl(self: Any, src: Any, to: Any) -> Any:
            return (
                between(src, to) if {src.dtype.scalar, to.scalar} == NARROW else cast(self, src, to)
            )

        def fp_to_fp(self: Any, src: Any, to: Any, mode: Any) -> Any:
            known = {src.dtype.scalar, to.scalar} == NARROW
            return between(src, to) if known else convert(self, src, to, mode)

        def dot(self: Any, a: Any, b: Any, into: Any, *_: Any) -> Any:
            return TensorHandle(np.matmul(numbers(a), numbers(b)) + into.data, into.dtype.scalar)

        monkeypatch.setattr(InterpreterBuilder, "cast_impl", cast_impl)
        monkeypatch.setattr(InterpreterBuilder, "create_fp_to_fp", fp_to_fp)
        monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)
        for name in ("create_fp_ext", "create_fp_trunc"):
            monkeypatch.setattr(InterpreterBuilder, name, cast_impl)

    def errors(
        time: int,
        key: int,
        value: int,
        beta: float | None,
        *,
        few_keys: int = 0,
        use: str = "y",
        start: bool = False,
        packing: ops.Packing | None = None,
        normalize: bool = True,
    ) -> dict[str, float]:
        """The relative error of every gradient; of one that is 0 its size."""
        torch.manual_seed(time + key)
        batch, heads = 2, 1
        q, k = (torch.randn(batch, time, heads, key).bfloat16() for _ in range(2))
        if few_keys:
            k = k[:, torch.randint(0, min(few_keys, time), (time,))]
        if not normalize:
            k = k * key**-0.5
        x = {
            "q": q,
            "k": k,
            "v": torch.randn(batch, time, heads, value).bfloat16(),
            "beta": torch.full((batch, time, heads), beta)
            if beta is not None
            else 2 * torch.rand(batch, time, heads),
        }
        sequences = batch * (1 if packing is None else packing.offsets.shape[1] - 1)
        if start:
            x["initial_state"] = torch.randn(sequences, heads, key, value)
        x = {name: tensor.requires_grad_() for name, tensor in x.items()}
        dy, dstate = (
            torch.randn(batch, time, heads, value),
            torch.randn(sequences, heads, key, value),
        )
        found = []
        for backend in ("triton", "reference"):
            exact = backend == "reference"
            args = {n: t.double() if exact else t for n, t in x.items()}
            options = {"backend": backend, "cu_seqlens": packing, "normalize": normalize}
            y, state = ops.delta_rule(**args, **options)
            loss = 0.0
            if use != "state":
                loss = loss + (y * dy.bfloat16().to(y.dtype)).sum()
            if use != "y":
                loss = loss + (state * dstate.to(state.dtype)).sum()
            found.append(torch.autograd.grad(loss, list(x.values()), allow_unused=True))
        result = {}
        for name, got, want in zip(x, *found, strict=True):
            want = torch.zeros_like(got) if want is None else want.float()
            size = want.norm()
            result[name] = ((got.float() - want).norm() / (size if size > 0 else 1)).item()
        return result

    def small(found: dict[str, float]) -> bool:
        """Within a unit of the last place of bfloat16."""
        return all(error < 2**-7 for error in found.values())

    def test_it_is_the_kernel_under_test() -> None:
        x = torch.zeros(1, 5, 1, 2, 32, dtype=torch.bfloat16)
        assert choose.runs_in_short_chunks(x[:, :, 0], x, x, None, torch.float32, 5)

    @pytest.mark.parametrize("beta", mostly_slow([0.0, 1.0, 2.0, None], fast=[2.0, None]))
    @pytest.mark.parametrize(
        ("time", "key", "value"),
        mostly_slow([(1, 16, 16), (17, 32, 16), (40, 32, 32)], fast=[(17, 32, 16)]),
    )
    def test_gradients(time: int, key: int, value: int, beta: float | None) -> None:
        found = errors(time, key, value, beta)
        assert small(found), found

    @pytest.mark.slow
    @pytest.mark.parametrize("use", ["y", "state", "both"])
    @pytest.mark.parametrize("start", [False, True])
    def test_states(use: str, start: bool) -> None:
        found = errors(21, 16, 32, None, use=use, start=start)
        assert small(found), found

    @pytest.mark.slow
    @pytest.mark.parametrize("few_keys", [1, 2, 5])
    def test_reflections_on_few_keys(few_keys: int) -> None:
        found = errors(64, 32, 32, 2.0, few_keys=few_keys)
        assert small(found), found

    @pytest.mark.slow
    def test_keys_as_they_are() -> None:
        found = errors(33, 16, 16, 1.0, normalize=False)
        assert small(found), found

    def test_pieces() -> None:
        offsets = torch.tensor([[0, 3, 3, 20], [0, 16, 20, 20]])
        found = errors(20, 16, 16, None, use="both", packing=ops.Packing(offsets, 17))
        assert small(found), found

    # ------------------------------------------------------------------------------------ forward

    def values(
        time: int, size: int, beta: float | None, *, few_keys: int = 0, start: bool = False
    ) -> tuple[float, float]:
        """The relative errors of y and of the final state."""
        torch.manual_seed(time + size)
        q, k, v = (torch.randn(2, time, 1, size).bfloat16() for _ in range(3))
        if few_keys:
            k = k[:, torch.randint(0, few_keys, (time,))]
        b = 2 * torch.rand(2, time, 1) if beta is None else torch.full((2, time, 1), beta)
        state = torch.randn(2, 1, size, size) if start else None
        got = ops.delta_rule(q, k, v, b, initial_state=state, backend="triton")
        exact = (None if x is None else x.double() for x in (q, k, v, b, state))
        *args, state = exact
        want = ops.delta_rule(*args, initial_state=state, backend="reference")
        y, final = (
            ((a.double() - b).norm() / b.norm().clamp(min=1e-300)).item()
            for a, b in zip(got, want, strict=True)
        )
        return y, final

    @pytest.mark.parametrize("start", mostly_slow([False, True], fast=[True]))
    @pytest.mark.parametrize("beta", mostly_slow([0.0, 1.0, 2.0, None], fast=[2.0]))
    @pytest.mark.parametrize(
        ("time", "size"), mostly_slow([(1, 16), (16, 32), (40, 32)], fast=[(40, 32)])
    )
    def test_values(time: int, size: int, beta: float | None, start: bool) -> None:
        y, final = values(time, size, beta, start=start)
        assert y < 3e-3 and final < 3e-5, (y, final)

    @pytest.mark.slow
    @pytest.mark.parametrize("few_keys", [1, 5])
    def test_the_state_stays_right_among_few_keys(few_keys: int) -> None:
        _, final = values(256, 32, 2.0, few_keys=few_keys, start=True)
        assert final < 3e-4, final

    def test_two_reflections_are_none() -> None:
        torch.manual_seed(0)
        k = torch.randn(1, 1, 1, 32).bfloat16().expand(1, 64, 1, 32)
        state = torch.randn(1, 1, 32, 32)
        beta = torch.full((1, 64, 1), 2.0)
        _, got = ops.delta_rule(k, k, 0 * k, beta, initial_state=state, backend="triton")
        torch.testing.assert_close(got, state, rtol=0, atol=3e-5)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
    @pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
    @pytest.mark.parametrize("which", ["k", "v", "beta"])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_a_nan_shows_from_its_token_on(which: str, bad: float) -> None:
        torch.manual_seed(0)
        x = {n: torch.randn(2, 40, 1, 16).bfloat16() for n in "qkv"} | {
            "beta": torch.rand(2, 40, 1)
        }
        whole, _ = ops.delta_rule(**x, backend="triton")
        x[which][0, 21] = bad
        y, state = ops.delta_rule(**x, backend="triton")
        torch.testing.assert_close(y[0, :21], whole[0, :21], rtol=2e-2, atol=2e-2)
        assert not y[0, 21:].isfinite().any() and not state[0].isfinite().any()
        assert torch.equal(y[1], whole[1])

    def test_empty_pieces_end_in_zeros() -> None:
        x = torch.randn(1, 20, 1, 16).bfloat16()
        packing = ops.Packing(torch.tensor([[0, 3, 3, 20]]), 17)
        y, state = ops.delta_rule(
            x, x, x, torch.ones(1, 20, 1), cu_seqlens=packing, backend="triton"
        )
        assert y.isfinite().all() and torch.equal(state[1], torch.zeros_like(state[1]))
