"""The kernels of `dplr` in chunks, without a GPU: their formulas, interpreted, and for Hopper."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import mostly_slow, relative_error
from tests.ops.cases import CASES, Case, normal, special
from tests.ops.interpreter import INTERPRETED, expect_interpreted
from tests.ops.test_against_reference import expect_match, single

pytest.importorskip("triton")
DPLR = next(case for case in CASES if case.op == "dplr")


def of_sizes(key: int, value: int) -> Case:
    """Kimi's transitions, with gates of -1, 0 and 1 and β of 0, 1 and 2 among them."""

    def make(time: int, g: torch.Generator) -> dict[str, Tensor]:
        decay = special(g, [-1.0, 0.0, 1.0], 1, time, 2, key)
        beta = special(g, [0.0, 1.0, 2.0], 1, time, 2, 1)
        unit = torch.nn.functional.normalize(normal(g, 1, time, 2, key), dim=-1)
        return {
            "q": normal(g, 1, time, 2, key),
            "k": beta * unit,
            "v": normal(g, 1, time, 2, value),
            "decay": decay,
            "left": unit,
            "right": -beta * decay * unit,
            "initial_state": normal(g, 1, 2, key, value),
        }

    return Case("dplr", make, DPLR.seq, {"scale": 0.7})


if not INTERPRETED:
    from tests.ops.hopper import SHARED_MEMORY, for_hopper

    @pytest.mark.slow
    def test_in_the_interpreter() -> None:
        expect_interpreted("slow", __file__)

    def test_the_formulas() -> None:
        """Those at the top of the file, in float64, with every product of gates written out."""
        scale, time = 0.7, 9
        x = of_sizes(6, 4).inputs(time, state=False)
        x = {name: part[0, :, 0] for name, part in x.items()}
        given = {name: part[None, :, None].requires_grad_() for name, part in x.items()}
        given["initial_state"] = normal(torch.Generator().manual_seed(1), 1, 1, 6, 4)
        given["initial_state"].requires_grad_()
        y, state = DPLR.run(given, "reference")
        g = torch.Generator().manual_seed(2)
        dy, after = normal(g, time, 4), normal(g, 6, 4)
        wanted = torch.autograd.grad(
            [y, state], list(given.values()), [dy[None, :, None], after[None, None]]
        )
        dv, dstart = wanted[2][0, :, 0], wanted[6][0, 0]

        q, k, v, a, left, right = (x[n].detach() for n in DPLR.seq)
        start = given["initial_state"][0, 0].detach()
        gates = lambda first, last: a[first:last].prod(0)  # noqa: E731, of tokens first to last - 1
        pairs = [[(i, j) for j in range(time)] for i in range(time)]

        def score(reader: Tensor, writer: Tensor, *, own: bool) -> Tensor:
            def entry(i: int, j: int) -> Tensor:
                if j > i or (j == i and not own):
                    return torch.zeros((), dtype=a.dtype)
                return (reader[i] * gates(j + 1, i + own) * writer[j]).sum()

            return torch.stack([torch.stack([entry(i, j) for i, j in row]) for row in pairs])

        reads = torch.stack([q[i] * gates(0, i + 1) for i in range(time)])
        before = torch.stack([right[i] * gates(0, i) for i in range(time)])
        keys, lefts = (
            torch.stack([w[j] * gates(j + 1, time) for j in range(time)]) for w in (k, left)
        )
        by_key, by_left = score(q, k, own=True), score(q, left, own=True)
        e, f = score(right, left, own=False), score(right, k, own=False)
        inverse = torch.linalg.inv(torch.eye(time, dtype=a.dtype) - e)
        seen = inverse @ (f @ v + before @ start)
        assert relative_error(scale * (by_key @ v + by_left @ seen + reads @ start), y[0, :, 0]) < (
            1e-12
        )
        end = gates(0, time)[:, None] * start + lefts.T @ seen + keys.T @ v
        assert relative_error(end, state[0, 0]) < 1e-12

        dseen = scale * by_left.T @ dy + lefts @ after
        got = scale * by_key.T @ dy + (inverse @ f).T @ dseen + keys @ after
        assert relative_error(got, dv) < 1e-12
        got = gates(0, time)[:, None] * after + (inverse @ before).T @ dseen + scale * reads.T @ dy
        assert relative_error(got, dstart) < 1e-12

    @pytest.mark.parametrize("size", mostly_slow([64, 128], fast=[64]))
    @pytest.mark.parametrize("cut", mostly_slow(["-", "*i64"], fast=["-"]), ids=["rows", "packed"])
    def test_fits_on_hopper(
        size: int, cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """bfloat16 values: shared memory, and no more than a few spilled registers."""
        import triton.language as tl

        from statetrack.ops.dplr.triton import chunked

        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        tree = {"K": size, "C": chunked.CHUNK, "LEVELS": 5}
        sizes = {"K": size, "V": size, "C": chunked.CHUNK, "SCALE": 0.5}
        element, parts = {"ELEMENT": tl.bfloat16}, {"PARTS": 2}
        where = f"{cut} i32 i32 i32"

        def check(kernel: Any, types: str, tile: dict[str, Any], **constants: Any) -> None:
            tile = dict(tile)
            warps, stages = tile.pop("num_warps"), tile.pop("num_stages")
            given = {"registers": tile.pop("maxnreg", None)} | tile | constants
            stack, shared = for_hopper(kernel, types, warps, stages, **given)
            assert stack <= 256 and shared <= SHARED_MEMORY, (kernel, stack)

        check(chunked._totals_kernel, f"*fp32 *fp32 {where}", chunked._totals_tile(size), **tree)
        inputs = "*bf16 *bf16 *fp32 *fp32 *fp32"
        types = f"{inputs} *bf16 *bf16 *fp32 *bf16 *bf16 *bf16 *bf16 *fp32 {where}"
        check(chunked._scores_kernel, types, chunked._scores_tile(size), **tree, **element, **parts)
        types = f"*fp32 *bf16 *bf16 *bf16 {where}"
        check(chunked._solve_kernel, types, chunked._solve_tile(size), **tree, **parts)
        types = "*bf16 *bf16 *bf16 *bf16 *bf16 *fp32 *fp32 *bf16 *bf16 *fp32"
        for heads, reverse in ((4096, False), (4096, True), (1, False)):
            tile = chunked._carry_tile(heads, size, size)
            own = {"NV": size // tile["BV"], "REVERSE": reverse}
            check(chunked._carry_kernel, f"{types} {where} i32", tile, **sizes, **own, **parts)
        types = "*bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16"
        tile = chunked._outputs_tile(size, size)
        own = {"REVERSE": True}
        check(
            chunked._outputs_kernel,
            f"{types} {where} i32",
            tile,
            **sizes,
            **own,
            **element,
            **parts,
        )
        types = f"*bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *fp32 {where} i32"
        tile = chunked._ends_tile(size, size)
        check(chunked._ends_kernel, types, tile, **sizes, **element)
        del sizes["K"]
        types = f"*bf16 *bf16 *bf16 *bf16 *bf16 *bf16 {where}"
        check(chunked._pairs_kernel, types, chunked._pairs_tile(size), **sizes, **element)
        types = f"{inputs} *bf16 *bf16 *fp32 *fp32 *bf16 *bf16 *fp32 *fp32 *fp32 {where} i32"
        check(chunked._gates_kernel, types, chunked._gates_tile(size), **tree, **element)

else:
    from statetrack.ops.dplr.triton import choose, chunked
    from tests.ops.test_packing import expect_pieces

    @pytest.fixture(autouse=True)
    def always_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(choose, "runs_in_chunks", lambda k, v, dtype, longest: True)

    def expect_close(case: Case, inputs: dict[str, Tensor], tol: float) -> None:
        exact = {name: x.double() for name, x in inputs.items()}
        expect_match(case, inputs, "triton", exact=exact, tol=tol)

    LARGE = of_sizes(20, 18)

    @pytest.mark.parametrize(
        "case", mostly_slow([DPLR, LARGE], fast=[LARGE]), ids=["small", "large"]
    )
    @pytest.mark.parametrize(
        ("time", "state"), mostly_slow([(1, True), (32, False), (70, True)], fast=[(70, True)])
    )
    def test_equals_reference(
        case: Case, time: int, state: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In float32; at most 16 keys and values at a time."""
        for name in ("scores", "solve", "outputs", "ends", "gates"):
            wide = getattr(chunked, f"_{name}_tile")
            own = lambda *sizes, wide=wide: wide(*sizes) | {"BK": 16}  # noqa: E731
            monkeypatch.setattr(chunked, f"_{name}_tile", own)
        for name in ("carry", "outputs", "ends", "pairs"):
            wide = getattr(chunked, f"_{name}_tile")
            own = lambda *sizes, wide=wide: wide(*sizes) | {"BV": 16}  # noqa: E731
            monkeypatch.setattr(chunked, f"_{name}_tile", own)
        expect_close(case, single(case.inputs(time, state=state)), 5e-6)

    @pytest.mark.parametrize("state", mostly_slow([True, False], fast=[True]))
    def test_pieces(state: bool) -> None:
        """Some places for chunks stay empty, and so do some sequences."""
        cuts = [[0, 34, 34, 35, 40], [0, 0, 5, 7, 40]]
        expect_pieces(DPLR, "triton", state=state, cuts=cuts, dtype=torch.float32, error=5e-6)

    def test_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
        """Half-precision values, whose products with the state are made of a high and a low part.

        On a GPU they are bfloat16, with which the interpreter cannot compute.
        """
        import triton.language as tl

        monkeypatch.setitem(chunked._ELEMENTS, torch.float16, tl.float16)
        case = of_sizes(20, 18)
        low = single(case.inputs(40))
        low |= {name: low[name].half() for name in ("q", "k", "v")}
        expect_close(case, low, 2e-3)
        with torch.no_grad():
            state = case.run(low, "triton")[1]
            wanted = case.run({n: x.double() for n, x in low.items()}, "reference")[1]
        assert relative_error(state, wanted) < 2e-6

    @pytest.mark.parametrize("name", mostly_slow(["v", "k", "left", "decay"], fast=["v"]))
    def test_nan_is_not_seen_before_it_came(name: str) -> None:
        inputs = single(of_sizes(16, 16).inputs(40))
        inputs[name][0, 35] = torch.nan
        y, _ = DPLR.run(inputs, "triton")
        assert y[0, 35:].isnan().all() and not y[0, :35].isnan().any()

    def test_only_large_heads_of_long_bfloat16_sequences_take_chunks(
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(choose, "SHORTEST", 64)
        half = lambda size: torch.empty(1, 1, 1, size, dtype=torch.bfloat16)  # noqa: E731
        runs = choose.runs_in_chunks
        assert runs(half(128), half(256), torch.float32, 64) and runs(
            half(33), half(33), torch.float32, 64
        )
        assert not runs(half(128), half(128), torch.float32, 63)
        assert not runs(half(256), half(128), torch.float32, 64)
        assert not runs(half(128), half(32), torch.float32, 64)
        assert not runs(half(128), half(128).float(), torch.float32, 64)
        assert not runs(half(128), half(128), torch.float64, 64)
