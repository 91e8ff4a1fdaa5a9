"""Linear attention of short sequences with one gate per head, without a GPU: interpreted, and for
Hopper."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from statetrack import ops
from tests.helpers import mostly_slow
from tests.ops.cases import Case, normal, special
from tests.ops.interpreter import INTERPRETED, expect_interpreted

pytest.importorskip("triton")


def attention(key: int, value: int) -> Case:
    def make(time: int, g: torch.Generator) -> dict[str, Tensor]:
        return {
            "q": normal(g, 2, time, 2, key),
            "k": normal(g, 2, time, 2, key),
            "v": normal(g, 2, time, 2, value),
            "decay": special(g, [-1.0, 0.0, 1.0], 2, time, 2, 1),
        }

    return Case("linear_attention", make, ("q", "k", "v", "decay"), {"scale": 0.7})


if not INTERPRETED:
    from tests.ops.hopper import SHARED_MEMORY, for_hopper

    @pytest.mark.slow
    def test_in_the_interpreter() -> None:
        expect_interpreted("slow", __file__)

    @pytest.mark.parametrize("cut", mostly_slow(["-", "*i64"], fast=["*i64"]))
    @pytest.mark.parametrize(
        ("key", "value", "q", "k"),
        mostly_slow(
            [
                (64, 65, "bf16", "fp32"),  # mLSTM's
                (64, 65, "fp32", "fp32"),
                (64, 64, "bf16", "bf16"),
                (128, 64, "bf16", "bf16"),  # Mamba2's
                (256, 128, "bf16", "bf16"),
            ],
            fast=[(64, 65, "bf16", "fp32")],
        ),
    )
    def test_fits_on_hopper(
        key: int,
        value: int,
        q: str,
        k: str,
        cut: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """No more than a few registers are spilled, but for float32."""
        from statetrack.ops.linear_attention.triton import short

        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32}
        given = [
            torch.empty(1, 1, 1, size, dtype=dtypes[kind])
            for size, kind in ((key, q), (key, k), (value, q))
        ]
        inputs = f"*{q} *{k} *{q} *fp32"
        sizes = f"{cut} i32 i32 i32"
        split = {"SPLIT": k == "bf16"}
        for options in short._sizes(*given, 1.0, torch.zeros(1, 2), short.LONGEST):
            gates = {"GATES": short._gates_precision(options["PRECISION"])}
            types = f"{inputs} *{q} *fp32 {sizes}"
            kernels = [(short._forward_kernel, short._forward_tile(options), types, split)]
            types = f"{inputs} *{q} - *{q} *{k} *{q} *fp32 {sizes}"
            kernels += [(short._backward_kernel, short._backward_tile(options), types, gates)]
            for kernel, tile, types, rest in kernels:
                warps, stages = tile.pop("num_warps"), tile.pop("num_stages")
                stack, shared = for_hopper(kernel, types, warps, stages, **options, **tile, **rest)
                assert shared <= SHARED_MEMORY
                assert q == "fp32" or stack <= 384, (options["C"], stack)

else:
    from tests.helpers import relative_error
    from tests.ops.test_against_reference import (
        expect_match,
        expect_unused_state,
        single,
        with_grads,
    )
    from tests.ops.test_packing import expect_pieces, in_a_row

    Used = list[tuple[int, ...]]

    @pytest.fixture(autouse=True)
    def used(monkeypatch: pytest.MonkeyPatch) -> Used:
        """Taken at any size, for 16 and 32 tokens; the sizes of the programs that ran."""
        from statetrack.ops.linear_attention.triton import choose, short

        seen: Used = []
        run: Callable[..., None] = short.launch

        def launch(kernel: object, *args: object, **options: int) -> None:
            seen.append((options["C"], options["ABOVE"]))
            run(kernel, *args, **options)

        monkeypatch.setattr(short, "SIZES", (16, 32))
        monkeypatch.setattr(short, "launch", launch)
        monkeypatch.setattr(
            choose, "runs_whole", lambda inputs, dtype, longest: dtype == torch.float32
        )
        return seen

    SIZES = mostly_slow([(5, 3), (16, 17), (20, 33), (18, 20)], fast=[(5, 3), (20, 17)])

    @pytest.mark.parametrize(("key", "value"), SIZES)
    @pytest.mark.parametrize("time", mostly_slow([1, 16, 17, 32], fast=[17]))
    def test_rows(key: int, value: int, time: int, used: Used) -> None:
        """Values, final states and gradients of both, against float64."""
        case = attention(key, value)
        low = single(case.inputs(time))
        exact = {name: x.double() for name, x in low.items()}
        expect_match(case, low, "triton", exact=exact, tol=2e-6)
        assert used == 2 * [(16 if time <= 16 else 32, -1)]

    def test_half_precision() -> None:
        """q and v in bfloat16, as mLSTM's; the interpreter knows no product of two such tensors."""
        case = attention(20, 17)
        low = {name: x.to(torch.bfloat16) for name, x in case.inputs(20).items()}
        low |= {name: low[name].float() for name in ("k", "decay")}
        outputs, grads = with_grads(case, low, "triton")
        exact = {name: x.double() for name, x in low.items()}
        wanted, wanted_grads = with_grads(case, exact, "reference")
        assert outputs["y"].dtype == torch.bfloat16
        assert relative_error(outputs["y"], wanted["y"]) < 5e-3
        assert relative_error(outputs["state"], wanted["state"]) < 2e-6
        for name, grad in grads.items():
            assert grad.dtype == low[name].dtype
            assert relative_error(grad, wanted_grads[name]) < 5e-3, name

    @pytest.mark.parametrize(("key", "value"), SIZES)
    def test_pieces(key: int, value: int, used: Used) -> None:
        """Long and short ones, and two that are empty."""
        cuts = [[0, 17, 17, 18, 50], [0, 0, 16, 32, 50]]
        expect_pieces(attention(key, value), "triton", cuts=cuts, dtype=torch.float32, error=5e-6)
        assert used == 2 * [(16, -1), (32, 16)]

    def test_pieces_do_not_leak() -> None:
        """What is not a number in one sequence shows in no other one, nor in its gradients."""
        inputs, packing = in_a_row(attention(5, 17), cuts=[[0, 9, 20, 26], [0, 9, 20, 26]])
        leaves = single(inputs)
        for x in leaves.values():
            x[:, 9:20] = torch.nan
            x.requires_grad_()
        y, state = ops.linear_attention(**leaves, cu_seqlens=packing, backend="triton")
        for found in (y, *torch.autograd.grad(y.sum(), list(leaves.values()))):
            assert found[:, 9:20].isnan().any()
            assert found[:, :9].isfinite().all() and found[:, 20:].isfinite().all()
        assert state[1].isnan().any() and state[[0, 2]].isfinite().all()

    def test_the_final_state_nobody_uses() -> None:
        case = attention(20, 17)
        low = single(case.inputs(20))
        expect_unused_state(case, low, "triton", tol=2e-6)

    @pytest.mark.parametrize("value", [16, 17])
    @pytest.mark.parametrize("name", ["q", "k", "v", "decay"])
    def test_a_nan_shows_from_its_token_on(name: str, value: int) -> None:
        case = attention(8, value)
        inputs = single(case.inputs(20))
        inputs[name][0, 9] = torch.nan
        with torch.no_grad():
            y, state = case.run(inputs, "triton")
        assert not y[0, :9].isnan().any() and not y[1:].isnan().any()
        assert y[0, 9].isnan().all()
        assert name == "q" or (y[0, 10:].isnan().all() and state[0].isnan().all())
