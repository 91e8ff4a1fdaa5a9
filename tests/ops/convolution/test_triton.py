"""The convolution's kernels without a GPU: segments, packed sequences, parts of the channels."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from statetrack import ops
from tests.helpers import mostly_slow
from tests.ops.convolution.test_convolution import draw
from tests.ops.interpreter import INTERPRETED, expect_interpreted

pytest.importorskip("triton")

if not INTERPRETED:

    @pytest.mark.slow
    def test_in_the_interpreter() -> None:
        expect_interpreted("slow", __file__)

    @pytest.mark.parametrize("x_token", ["-", "i32"], ids=["rows", "parts of wider rows"])
    def test_parts_fit_on_hopper(
        x_token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import triton.language as tl

        from statetrack.ops.convolution import triton as convolution
        from tests.ops.hopper import for_hopper

        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        tile = {"W": 4, "SEGMENT": convolution.SHORTEST, "BC": convolution._block(384)}
        rest = {"SILU": True, "COMPUTE": tl.float32, "ASM": True}
        others = " *bf16 *bf16 i32 i32"
        types = f"*bf16 *fp32 - - *bf16 *fp32 *i64 i32 i32 {x_token} i32 i32" + others
        stack, _ = for_hopper(convolution._forward_kernel, types, 1, **tile, **rest)
        assert stack == 0
        types = "*bf16 *fp32 - - *bf16 - *bf16 *fp32 *fp32 *i64 i32 i32"
        types += f" {x_token} i32 i32 i32" + others
        stack, _ = for_hopper(convolution._backward_kernel, types, 1, **tile, **rest)
        assert stack == 0

    def test_segments_are_shorter_where_programs_are_few() -> None:
        from statetrack.ops.convolution.triton import PACKED, SEGMENT, SHORTEST, _segment

        assert _segment(12, 22_000, 3, False) == SEGMENT
        assert _segment(12, 22_000, 3, True) == PACKED < SEGMENT
        assert SHORTEST < _segment(2, 22_000, 3, False) < SEGMENT
        assert _segment(1, 22_000, 3, False) == _segment(1, 1, 1, True) == SHORTEST

else:
    LENGTH = 8  # of a segment
    CUTS = {
        "at the ends of segments": [[0, 8, 16, 21]],
        "around them": [[0, 7, 9, 15, 17, 21], [0, 6, 10, 14, 18, 21], [0, 5, 11, 13, 19, 21]],
        "a token each": [list(range(22))],
        "empty ones": [
            [0, 0, 0, 3, 3, 8, 8, 8, 16, 21, 21],
            [0, 2, 2, 2, 2, 13, 21, 21, 21, 21, 21],
        ],
        "longer than a segment": [[0, 21, 21, 21], [0, 1, 20, 21], [0, 0, 0, 21]],
        "to the end of a segment": [[0, 8, 16, 16, 16], [0, 4, 5, 12, 16], [0, 0, 0, 0, 16]],
        "less than a segment": [[0, 1, 3], [0, 3, 3], [0, 2, 3]],
    }

    @pytest.fixture(autouse=True)
    def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
        """Several segments, and blocks of channels of which the last is not full."""
        from statetrack.ops.convolution import triton as convolution

        for name in ("SEGMENT", "PACKED"):
            monkeypatch.setattr(convolution, name, LENGTH)
        monkeypatch.setattr(convolution, "_block", lambda channels: 4)

    def results(
        backend: ops.Backend,
        inputs: dict[str, Tensor],
        change_dy: Callable[[Tensor], object] = lambda dy: None,
        *,
        cuts: list[list[int]] | None = None,
        use_states: bool = True,
        activation: str | None = "silu",
    ) -> dict[str, Tensor]:
        """Outputs, and the gradients for random gradients of them, by name."""
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        packing = None if cuts is None else ops.Packing(torch.tensor(cuts), cuts[0][-1])
        options = {"activation": activation, "cu_seqlens": packing, "backend": backend}
        y, states = ops.short_convolution(**leaves, **options)
        dy, dstates = draw(*y.shape, seed=5), draw(*states.shape, seed=6)
        change_dy(dy)
        outputs, given = ((y, states), (dy, dstates)) if use_states else ((y,), (dy,))
        grads = torch.autograd.grad(outputs, leaves.values(), given)
        named = {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
        return {"y": y.detach(), "states": states.detach()} | named

    def made(batch: int, time: int, width: int, *, state: bool = False) -> dict[str, Tensor]:
        inputs = {"x": draw(batch, time, 5), "weight": draw(5, width, seed=1)}
        inputs["bias"] = draw(5, seed=2)
        if state:
            inputs["initial_state"] = draw(batch, width - 1, 5, seed=3)
        return inputs

    def expect_same(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
        for name, want in wanted.items():
            message = lambda text, name=name: f"{name}: {text}"  # noqa: E731
            torch.testing.assert_close(
                got[name], want, rtol=1e-10, atol=1e-12, equal_nan=True, msg=message
            )

    @pytest.mark.parametrize("count", mostly_slow([127, 128, 300], fast=[128]))
    def test_pieces_are_found_among_many(count: int) -> None:
        """More offsets than the search for a program's first piece looks at in one step."""
        lengths = torch.randint(3, (count,), generator=torch.Generator().manual_seed(count))
        cuts = [[0, *lengths.cumsum(0).tolist()]]
        inputs = {"x": draw(1, cuts[0][-1], 1), "weight": draw(1, 3, seed=1)}
        options = {"cuts": cuts, "activation": None}
        expect_same(results("triton", inputs, **options), results("reference", inputs, **options))

    @pytest.mark.parametrize(
        ("width", "use_states"),
        mostly_slow([(1, False), (2, True), (4, False), (4, True), (6, True)], fast=[(4, True)]),
    )
    @pytest.mark.parametrize("name", mostly_slow(CUTS, fast=["around them", "empty ones"]))
    def test_segments_across_pieces(name: str, width: int, use_states: bool) -> None:
        """With 2 and 6 taps the last token read behind a segment begins a group of four."""
        cuts = CUTS[name]
        inputs = made(len(cuts), cuts[0][-1], width)
        options = {"cuts": cuts, "use_states": use_states}
        expect_same(results("triton", inputs, **options), results("reference", inputs, **options))

    @pytest.mark.parametrize("width", mostly_slow([2, 4, 6], fast=[4]))
    @pytest.mark.parametrize("time", mostly_slow([1, 3, 8, 9, 19], fast=[9]))
    def test_segments_of_a_row(time: int, width: int) -> None:
        for state in (False, True):
            inputs = made(2, time, width, state=state)
            expect_same(results("triton", inputs), results("reference", inputs))

    @pytest.mark.parametrize("cuts", [None, CUTS["around them"]], ids=["rows", "packed"])
    def test_parts_of_wider_rows_are_taken_as_they_lie(cuts: list[list[int]] | None) -> None:
        from statetrack.ops.convolution.triton import _by_token

        wide, weight = draw(3, 21, 11).requires_grad_(), draw(5, 4, seed=1).requires_grad_()
        part = wide[..., 2:7]
        taken, token = _by_token(part)
        assert taken.data_ptr() == part.data_ptr() and token == 11
        assert _by_token(part.contiguous())[1] is None
        packing = None if cuts is None else ops.Packing(torch.tensor(cuts), cuts[0][-1])
        found = []
        for x in (part, part.contiguous()):
            y, states = ops.short_convolution(
                x, weight, activation="silu", cu_seqlens=packing, backend="triton"
            )
            grads = torch.autograd.grad(y.sin().sum() + states.sum(), (wide, weight))
            found.append((y, states, *grads))
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))

    @pytest.mark.parametrize("activation", mostly_slow(["silu", None], fast=["silu"]))
    @pytest.mark.parametrize("token", mostly_slow([7, 8, 20], fast=[8]))
    def test_nan_stays_in_its_piece(token: int, activation: str | None) -> None:
        """And goes where the definition sends it, in x and in dy."""
        cuts = [[0, 6, 8, 14, 14, 21], [0, 0, 7, 9, 17, 21]]

        def spoil(x: Tensor) -> None:
            x[:, token] = torch.nan

        clean = made(2, 21, 4)
        spoiled = {name: x.clone() for name, x in clean.items()}
        spoil(spoiled["x"])
        options = {"cuts": cuts, "activation": activation}
        for inputs, change in ((spoiled, lambda dy: None), (clean, spoil)):
            got = results("triton", inputs, change, **options)
            expect_same(got, results("reference", inputs, change, **options))
            for b, row in enumerate(cuts):
                outside = [t for t in range(21) if not same_piece(row, t, token)]
                assert not got["y"][b, outside].isnan().any()
                assert not got["dx"][b, outside].isnan().any()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "sizes", [(4, 4, 4), (4, 8), (12,), (4, 6, 2), (0, 12), (4, 4, 2, 2)], ids=str
    )
    def test_parts_and_their_gradients(sizes: tuple[int, ...]) -> None:
        """Of whole blocks of channels or not, for a stack of runs, and with a part nobody used."""
        x, weight = draw(2, 2, 11, 12), draw(2, 12, 4, seed=1)
        offsets = torch.tensor([[[0, 3, 4, 4, 11], [0, 0, 7, 9, 11]]]).expand(2, -1, -1)

        def run(cut: bool, x: Tensor, weight: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
            packing = ops.Packing(offsets, 7)
            options = {"activation": "silu", "backend": "triton", "cu_seqlens": packing}
            if not cut:
                y, state = ops.short_convolution(x, weight, **options)
                return *y.split(sizes, dim=-1), state
            parts, state = ops.short_convolution(x, weight, sizes=sizes, **options)
            return *parts, state

        found = []
        for cut in (True, False):
            leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
            *parts, state = torch.vmap(partial(run, cut))(*leaves, offsets)
            used = parts[:-1] or parts
            grads = torch.autograd.grad([part.sin().sum() for part in used], leaves)
            found.append((*parts, state, *grads))
        assert [part.shape[-1] for part in found[0][: len(sizes)]] == list(sizes)
        for got, want in zip(*found, strict=True):
            assert torch.equal(got, want)

    def same_piece(row: list[int], t: int, other: int) -> bool:
        return any(a <= t < b and a <= other < b for a, b in zip(row, row[1:], strict=False))
