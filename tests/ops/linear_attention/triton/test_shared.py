"""Linear attention in chunks where heads share q and k, without a GPU: interpreted, and for
Hopper."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers import mostly_slow
from tests.ops.cases import Case, normal, special
from tests.ops.interpreter import INTERPRETED, expect_interpreted

pytest.importorskip("triton")


def attention(heads: int, groups: int, key: int, value: int) -> Case:
    """Gates that keep a sign or forget, with few that are exactly 0."""

    def make(time: int, g: torch.Generator) -> dict[str, Tensor]:
        decay = special(g, [-1.0, 1.0], 2, time, heads, 1)
        decay[:, 5::19] = 0
        return {
            "q": normal(g, 2, time, groups, key),
            "k": normal(g, 2, time, groups, key),
            "v": normal(g, 2, time, heads, value),
            "decay": decay,
            "initial_state": normal(g, 2, heads, key, value),
        }

    return Case("linear_attention", make, ("q", "k", "v", "decay"), {"scale": 0.7})


if not INTERPRETED:
    from tests.ops.hopper import SHARED_MEMORY, for_hopper

    @pytest.mark.slow
    def test_in_the_interpreter() -> None:
        expect_interpreted("slow", __file__)

    @pytest.mark.parametrize(
        ("group", "programs", "part"),
        [(32, 16384, 8), (32, 1024, 2), (32, 100, 1), (12, 16384, 6), (11, 16384, 1), (4, 4096, 4)],
    )
    def test_heads_of_a_program(group: int, programs: int, part: int) -> None:
        """A divisor, and few enough that the GPU has programs to run."""
        from statetrack.ops.linear_attention.triton import shared

        assert shared._part(group, programs) == part

    @pytest.mark.parametrize("cut", mostly_slow(["-", "*i64"], fast=["-"]), ids=["rows", "packed"])
    @pytest.mark.parametrize(
        ("key", "value", "dtype"),
        mostly_slow(
            [
                (128, 64, "bf16"),  # Mamba2's
                (128, 64, "fp32"),
                (128, 128, "bf16"),
                (256, 64, "bf16"),
                (32, 64, "bf16"),
                (64, 32, "bf16"),
            ],
            fast=[(128, 64, "bf16")],
        ),
    )
    def test_fits_on_hopper(
        key: int, value: int, dtype: str, cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """32 heads share q and k; nothing is spilled, but for float32."""
        from statetrack.ops.linear_attention.triton import scalar, shared

        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        x, half = f"*{dtype}", dtype == "bf16"
        precision = "bf16" if half else "tf32x3"
        shape = {"K": key, "V": value, "C": scalar.CHUNK if half else scalar.CHUNK_FLOAT32}
        shape |= {"SCALE": 1.0, "GROUP": 32}
        sizes = f"{cut} i32 i32 i32 i32"
        made = []
        keys, values, warps, stages = scalar._states_tile(key, value)
        tile = shape | {"BK": keys, "BV": values, "SPLIT": half}
        for reverse in (False, True):
            types = f"{x} {x} {x} - {x} - *fp32 {sizes} - -"
            options = tile | {"REVERSE": reverse}
            made += [for_hopper(scalar._states_kernel, types, warps, stages, **options)]
        shape |= {"PRECISION": precision}
        keys, values, warps, stages = scalar._outputs_tile(key, value, precision)
        tile = shape | {"BK": keys, "BV": values, "REVERSE": False, "GIVEN": False}
        types = f"{x} {x} {x} {x} {x} {x} {sizes}"
        made += [for_hopper(scalar._outputs_kernel, types, warps, stages, **tile)]
        keys, values, warps, stages = shared._values_tile(key, value, precision)
        tile = shape | {"BK": keys, "BV": values, "START": False, "END": False}
        tile |= {"GATES": scalar._gates_precision(precision)}
        types = f"{x} {x} {x} {x} {x} {x} {x} {x} {x} {sizes}"
        made += [for_hopper(shared._values_kernel, types, warps, stages, **tile)]
        keys, values, warps, stages = shared._keys_tile(key, value, precision)
        tile = shape | {"BK": keys, "BV": values, "GIVEN": False, "PART": shared.MOST}
        for reverse, z in ((True, x), (False, "-")):
            types = f"{x} {z} {x} {x} {x} {x} {x} {sizes}"
            options = tile | {"REVERSE": reverse}
            made += [for_hopper(shared._keys_kernel, types, warps, stages, **options)]
        assert all(memory <= SHARED_MEMORY for _, memory in made)
        assert all(stack <= (0 if half else 16) for stack, _ in made), made

else:
    from tests.ops.test_against_reference import expect_match, expect_unused_state, single
    from tests.ops.test_packing import expect_no_leak, expect_pieces

    @pytest.fixture(autouse=True)
    def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Taken at any size, with two heads for a program; the numbers of heads that shared."""
        from statetrack.ops.linear_attention.triton import choose, shared

        seen: list[int] = []
        run = shared.run_keys

        def run_keys(q: Tensor, k: Tensor, v: Tensor, *others: object) -> None:
            seen.append(v.shape[2] // q.shape[2])
            run(q, k, v, *others)  # type: ignore[arg-type]

        monkeypatch.setattr(shared, "run_keys", run_keys)
        monkeypatch.setattr(shared, "_part", lambda group, programs: 2)
        monkeypatch.setattr(choose, "runs_whole", lambda inputs, dtype, longest: False)
        monkeypatch.setattr(choose, "runs_in_chunks", lambda *_: True)
        return seen

    HEADS = mostly_slow([(4, 1), (4, 2), (2, 1)], fast=[(4, 2)])

    @pytest.mark.parametrize(("heads", "groups"), HEADS)
    @pytest.mark.parametrize("state", mostly_slow([True, False], fast=[True]))
    @pytest.mark.parametrize("time", mostly_slow([1, 63, 64, 65, 150], fast=[65]))
    def test_rows(heads: int, groups: int, time: int, state: bool, parts: list[int]) -> None:
        """Values, final states and gradients of both, against float64."""
        case = attention(heads, groups, 5, 3)
        low = single(case.inputs(time, state=state))
        exact = {name: x.double() for name, x in low.items()}
        expect_match(case, low, "triton", exact=exact, tol=5e-6)
        assert parts == [heads // groups]

    @pytest.mark.parametrize(
        ("heads", "part"), mostly_slow([(3, 1), (3, 3), (4, 1), (4, 4)], fast=[(3, 3)])
    )
    def test_heads_of_a_program(heads: int, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
        from statetrack.ops.linear_attention.triton import shared

        monkeypatch.setattr(shared, "_part", lambda group, programs: part)
        case = attention(heads, 1, 5, 3)
        low = single(case.inputs(40))
        exact = {name: x.double() for name, x in low.items()}
        expect_match(case, low, "triton", exact=exact, tol=5e-6)

    @pytest.mark.parametrize(("heads", "groups"), HEADS)
    @pytest.mark.parametrize("state", mostly_slow([True, False], fast=[True]))
    def test_pieces(heads: int, groups: int, state: bool) -> None:
        """Chunks end where a sequence does; there are places for chunks that stay empty."""
        cuts = [[0, 65, 65, 66, 80], [0, 0, 14, 46, 80]]
        options = {"dtype": torch.float32, "error": 1e-5}
        expect_pieces(attention(heads, groups, 5, 3), "triton", state=state, cuts=cuts, **options)

    @pytest.mark.slow
    def test_pieces_do_not_leak() -> None:
        expect_no_leak(attention(4, 2, 5, 3), "triton")

    def test_in_blocks_and_segments(monkeypatch: pytest.MonkeyPatch) -> None:
        """More keys and values than one program takes, in every kernel, and states cut in time."""
        from statetrack.ops.linear_attention.triton import scalar, shared

        monkeypatch.setattr(scalar, "_states_tile", lambda key, value: (16, 16, 1, 1))
        monkeypatch.setattr(scalar, "_segment", lambda tokens, longest, programs, chunk: 32)
        for module, name in ((scalar, "_outputs_tile"), (shared, "_values_tile")):
            monkeypatch.setattr(module, name, lambda *_: (16, 16, 1, 1))
        monkeypatch.setattr(shared, "_keys_tile", lambda *_: (16, 16, 1, 1))
        case = attention(2, 1, 20, 18)
        low = single(case.inputs(40))
        exact = {name: x.double() for name, x in low.items()}
        expect_match(case, low, "triton", exact=exact, tol=5e-6)

    @pytest.mark.parametrize("state", mostly_slow([True, False], fast=[False]))
    def test_the_final_state_nobody_uses(state: bool) -> None:
        case = attention(4, 1, 5, 3)
        low = single(case.inputs(40, state=state))
        expect_unused_state(case, low, "triton", tol=5e-6)

    def test_runs_that_are_mapped_over() -> None:
        case = attention(4, 2, 5, 3)
        stacks = [single(case.inputs(9, seed=seed)) for seed in (0, 1)]
        leaves = {
            name: torch.stack([s[name] for s in stacks]).requires_grad_() for name in stacks[0]
        }
        y, _ = torch.vmap(lambda inputs: case.run(inputs, "triton"))(leaves)
        grads = torch.autograd.grad(y.sin().sum(), list(leaves.values()))
        for run, inputs in enumerate(stacks):
            alone = {name: x.clone().requires_grad_() for name, x in inputs.items()}
            y_run, _ = case.run(alone, "triton")
            expected = torch.autograd.grad(y_run.sin().sum(), list(alone.values()))
            assert torch.equal(y[run], y_run)
            for got, want in zip(grads, expected, strict=True):
                assert torch.equal(got[run], want)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["q", "k", "v", "decay"])
    def test_a_nan_shows_from_its_token_on(name: str) -> None:
        case = attention(4, 2, 5, 3)
        inputs = single(case.inputs(40))
        inputs[name][0, 9, 0] = torch.nan
        with torch.no_grad():
            y, state = case.run(inputs, "triton")
        first = 1 if name in ("v", "decay") else 2  # the heads that have it
        assert not y[0, :9].isnan().any() and not y[1:].isnan().any()
        assert y[0, 9, :first].isnan().all() and not y[0, :, first:].isnan().any()
        assert name == "q" or state[0, :first].isnan().all()
