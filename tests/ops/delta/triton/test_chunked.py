"""The chunked kernels of the delta rule without a GPU: interpreted, and compiled for Hopper.

Sequences are a little longer than a chunk (64 micro-steps), and sizes are no powers of two.
"""

from pathlib import Path
from typing import no_type_check

import pytest
import torch

from tests.helpers import mostly_slow, relative_error
from tests.ops.cases import CASES, Case
from tests.ops.interpreter import INTERPRETED, expect_interpreted
from tests.ops.test_against_reference import expect_match, single, with_grads

pytest.importorskip("triton")

if not INTERPRETED:
    from tests.ops.hopper import SHARED_MEMORY, for_hopper

    @pytest.mark.slow
    def test_in_the_interpreter() -> None:
        expect_interpreted("slow", __file__)

    @pytest.mark.parametrize("key", [128, 256])
    @pytest.mark.parametrize(
        "gated", mostly_slow([False, True], fast=[True]), ids=["plain", "gated"]
    )
    @pytest.mark.parametrize(
        "where",
        mostly_slow(["- i32 - i32", "*i64 i32 i32 i32"], fast=["- i32 - i32"]),
        ids=["rows", "packed"],
    )
    def test_fits_on_hopper(
        where: str, gated: bool, key: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """bfloat16, values of 128: shared memory, and no more than a few spilled registers."""
        import triton.language as tl

        from statetrack.ops.delta.triton import chunked

        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        like = torch.empty(1, 128, 1, 16, key, dtype=torch.bfloat16)
        common = chunked._constants(like, like, like, gated, torch.float32)
        assert common["COMPUTE"] == tl.float32 and common["ROWS"] == common["BQ"] == 64
        normal = {"SCALE": 1.0, "NORMALIZE": True}
        gate = "*bf16" if gated else "-"
        numbers = f"{where} i32 i32"

        def check(kernel: object, types: str, options: dict[str, int], **constants: object) -> None:
            stages = options.get("num_stages", 3)
            own = {"stages": stages, "registers": options.get("maxnreg")}
            stack, shared = for_hopper(
                kernel, types, options["num_warps"], **own, **common | constants
            )
            assert shared <= SHARED_MEMORY and stack <= 1024, kernel

        types = f"*bf16 *bf16 *bf16 {gate} *fp32 *bf16 *bf16 *fp32 *bf16 {numbers}"
        options = chunked._prepare_options(key)
        check(chunked._prepare_kernel, types, options, PARTS=2, EXACT="tf32x3", **normal)
        forward_types = "*bf16 *bf16 *bf16 - *bf16 *bf16 *fp32 *bf16 *fp32 *bf16 *bf16"
        forward_types = f"{forward_types} {numbers}"
        backward_types = f"*bf16 *bf16 *bf16 *bf16 *fp32 *bf16 *fp32 *bf16 - *bf16 {where}"
        widths = chunked._widths(key)
        for values in (128, 64, 16) if gated and key == 128 else widths:
            narrow, options = widths[values]
            carry = {"V": 128, "BV": values, "NV": 128 // values, "PARTS": 2, "GATED": gated}
            forward, backward = chunked._forward_kernel, chunked._backward_kernel
            if narrow:
                forward, backward = chunked._narrow_forward_kernel, chunked._narrow_backward_kernel
            for save in (True, False):
                apart = chunked._apart(values, save)
                if chunked._forward_values(values, apart) == values:
                    kept = {"SAVE": save or apart, "OUT": not apart}
                    check(forward, forward_types, options, **kept, **carry)
            check(backward, backward_types, options, **carry)
        values, options = chunked._gradient_tile(key, 128)
        types = f"*bf16 *bf16 {gate} *fp32 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16"
        left = "*bf16 *fp32" if gated else "- -"
        for mild in {False, gated}:
            constants = {"V": 128, "BV": values, "MILD": mild, "BY_KEY": gated, **normal}
            for micro in (1, 2):  # with two micro-steps a token there are half as many tokens
                like = torch.empty(1, 128, micro, 16, key, dtype=torch.bfloat16)
                constants |= chunked._constants(like[:, :, 0], like, like, gated, torch.float32)
                check(chunked._gradients_kernel, f"{types} {left} {where}", options, **constants)
        constants = {"V": 128, "GATED": gated, "BY_KEY": gated, **chunked._outputs_tile(key, 128)}
        types = f"*bf16 *bf16 *fp32 *bf16 *bf16 *bf16 {numbers}"
        check(chunked._outputs_kernel, types, chunked.OUTPUTS_OPTIONS, **constants)
        if gated:
            del common["K"], common["BK"]
            types = f"*bf16 *bf16 *fp32 *bf16 *fp32 *bf16 {where}"
            check(chunked._gate_kernel, types, chunked.GATE_OPTIONS)

    def test_values_are_cut_where_heads_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
        """One program a multiprocessor, in the widths there are, never more than are needed."""
        from statetrack.ops.delta.triton import chunked

        monkeypatch.setattr(chunked, "CARRY", dict.fromkeys((16, 32, 64, 128), (False, {})))
        values = chunked._carry_values
        assert [values(heads, 64, 128) for heads in (1, 16, 17, 32, 64, 67, 128, 4096)] == [
            16, 16, 32, 32, 64, 128, 128, 128,
        ]  # fmt: skip
        assert [values(16, 64, value) for value in (1, 33, 64, 100, 200, 512)] == [
            16, 16, 16, 16, 32, 64,
        ]  # fmt: skip
        monkeypatch.setattr(chunked, "CARRY", dict.fromkeys((64, 128), (False, {})))
        assert [values(heads, 64, 128) for heads in (1, 16, 66, 67)] == [64, 64, 64, 128]
        assert [values(heads, 256, 512) for heads in (1, 4, 5, 4096)] == [16, 16, 32, 32]

    def test_long_walks_of_narrow_states_are_cut_into_spans() -> None:
        from statetrack.ops.delta.triton import chunked

        assert chunked._spans(255, 16) == [(0, 255)] and chunked._spans(1024, 32) == [(0, 1024)]
        assert chunked._spans(257, 16) == [(0, 128), (128, 129)]
        spans = chunked._spans(1024, 16)
        assert spans == [(begin, 128) for begin in range(0, 1024, 128)]
        assert chunked._spans(1024, 16, packed=True) == [(0, 1024)]

    def test_packed_sequences_of_a_chunk_and_more_go_in_chunks() -> None:
        """In the mean of a row: every sequence takes a chunk at least."""
        from statetrack.ops.delta.triton import choose

        one = torch.empty(1, 6400, 1, 2, 64, dtype=torch.bfloat16, device="meta")
        q, two = one[:, :, 0], one.expand(-1, -1, 2, -1, -1)
        for k, sequences in ((one, 100), (two, 200)):
            assert choose.runs_in_chunks(q, k, k, torch.float32, sequences)
            assert not choose.runs_in_chunks(q, k, k, torch.float32, sequences + 1)

    def test_forward_without_y_takes_fewer_values() -> None:
        """Two programs a multiprocessor, where y is not made on the way."""
        from statetrack.ops.delta.triton import chunked

        widths = [16, 32, 64, 128]
        assert [chunked._forward_values(n, True) for n in widths] == [16, 32, 64, 64]
        assert [chunked._forward_values(n, False) for n in widths] == widths

else:
    import triton
    import triton.language as tl

    from statetrack.ops.delta.triton.chunked import _eleven_bits, _rounded
    from tests.ops.test_packing import expect_no_leak, expect_pieces

    @triton.jit
    @no_type_check
    def _round(x_ptr, eight_ptr, eleven_ptr, N: tl.constexpr):
        x = tl.load(x_ptr + tl.arange(0, N))
        tl.store(eight_ptr + tl.arange(0, N), _rounded(x))
        tl.store(eleven_ptr + tl.arange(0, N), _eleven_bits(x))

    DELTA = [case for case in CASES if case.op.startswith("delta")]
    IN_CHUNKS = [case for case in DELTA if case.label != "gate-per-key"]  # that one is `dplr`

    def named(label: str) -> Case:
        return next(case for case in CASES if label in (str(case), case.label))

    @pytest.fixture(autouse=True)
    def always_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
        from statetrack.ops.delta.triton import choose

        monkeypatch.setattr(choose, "runs_in_chunks", lambda *inputs: True)

    @pytest.fixture(params=mostly_slow([16, 64], fast=[16]), ids=["narrow", "wide"])
    def values(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
        """Values a program takes along: 16 for the states of few heads, 64 for those of many."""
        from statetrack.ops.delta.triton import chunked

        count: int = request.param
        monkeypatch.setattr(chunked, "_carry_values", lambda heads, key, value: count)
        monkeypatch.setattr(chunked, "CARRY", {16: (True, {}), 64: (False, {})})
        return count

    @pytest.mark.parametrize("case", mostly_slow(DELTA, fast=DELTA[1:2]), ids=str)
    @pytest.mark.parametrize(
        ("time", "state"), mostly_slow([(1, False), (70, True)], fast=[(70, True)])
    )
    def test_equals_reference(case: Case, time: int, state: bool, values: int) -> None:
        inputs = case.inputs(time, state=state)
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @pytest.mark.parametrize("case", mostly_slow(IN_CHUNKS, fast=IN_CHUNKS[1:2]), ids=str)
    def test_in_two_parts(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """Half-precision inputs, whose products with the state are made of a high and a low part.

        On a GPU they are bfloat16, with which the interpreter cannot compute.
        """
        from statetrack.ops.delta.triton import chunked

        half, names = torch.float16, {torch.float16: "tf32", torch.float32: "tf32x3"}
        monkeypatch.setattr(chunked, "CARRY", {16: (True, {})})
        monkeypatch.setattr(chunked, "_element", lambda *inputs: half)
        monkeypatch.setattr(chunked, "_parts", lambda element: 2)
        monkeypatch.setattr(chunked, "_precision", names.get)
        full = case.inputs(70, state=True)
        low = {n: x.float() if n == "initial_state" else x.to(half) for n, x in full.items()}
        exact = {name: x.double() for name, x in low.items()}
        expect_match(case, low, "triton", exact=exact, tol=2e-3)
        with torch.no_grad():
            (_, state), (_, wanted) = case.run(low, "triton"), case.run(exact, "reference")
        assert relative_error(state, wanted) < 2e-6

    @pytest.mark.parametrize("case", mostly_slow(IN_CHUNKS, fast=IN_CHUNKS[1:2]), ids=str)
    @pytest.mark.parametrize(
        "state", mostly_slow([False, True], fast=[True]), ids=["empty", "state"]
    )
    def test_pieces(case: Case, state: bool, values: int) -> None:
        """Some places for chunks stay empty, and so do some sequences, the last of a row too."""
        cuts = [[0, 66, 66, 67, 72, 128], [0, 0, 5, 64, 128, 128]]
        expect_pieces(case, "triton", state=state, cuts=cuts)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:All-NaN slice")  # of the interpreter, on gates
    @pytest.mark.parametrize("case", IN_CHUNKS, ids=str)
    def test_nothing_leaks(case: Case) -> None:
        expect_no_leak(case, "triton")

    @pytest.mark.parametrize("save", [True, False])
    def test_spans_of_chunks(save: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """A walk in pieces, each from the state that the one before has left, is the same walk."""
        from statetrack.ops.delta.triton import chunked

        monkeypatch.setattr(chunked, "CARRY", {16: (True, {})})
        for label, start in (("delta_rule", False), ("gated", True)):
            x = named(label).inputs(300, state=start)
            k, v, beta = (x[name][:, :, None] for name in ("k", "v", "beta"))
            initial = x.get("initial_state")
            inputs = chunked.Inputs(x["q"], k, v, beta, x.get("decay"), True, 1.0, initial)
            monkeypatch.setattr(chunked, "SPAN", 128)
            whole = chunked.forward(inputs, save)
            monkeypatch.setattr(chunked, "SPAN", 2)
            assert chunked._spans(5, 16) == [(0, 2), (2, 3)]
            pieces = chunked.forward(inputs, save)
            assert all(torch.equal(a, b) for a, b in zip(whole[:2], pieces[:2], strict=True))

    @pytest.mark.slow
    def test_float32_is_close() -> None:
        case = named("three-gated")
        low = single(case.inputs(50))
        rounded = {name: x.double() for name, x in low.items()}
        expect_match(case, low, "triton", exact=rounded, tol=2e-5)

    def expect_gated_match(key: int, value: int) -> None:
        """A head of this size, with gates and a start."""
        g = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
        inputs = {
            "q": draw(1, 66, 1, key),
            "k": draw(1, 66, 1, key),
            "v": draw(1, 66, 1, value),
            "beta": 2 * torch.rand(1, 66, 1, generator=g, dtype=torch.float64),
            "decay": torch.tanh(draw(1, 66, 1)),
            "initial_state": draw(1, 1, key, value),
        }
        case = Case("delta_rule", lambda time, g: inputs, ("q",))
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @pytest.mark.slow
    def test_several_blocks_of_values(values: int) -> None:
        expect_gated_match(20, 70)

    @pytest.mark.parametrize("width", mostly_slow([16, 32], fast=[16]))
    def test_keys_longer_than_128(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their states go along in other widths."""
        from statetrack.ops.delta.triton import chunked

        monkeypatch.setattr(chunked, "CARRY_LONG", {width: (True, {})})
        expect_gated_match(130, 20)

    @pytest.mark.slow
    def test_gates_of_any_size() -> None:
        """Products of gates are made from logarithms; signs, zeros and tiny numbers come out."""
        for label in ("gated", "three-gated"):
            case = named(label)
            inputs = case.inputs(30)
            for t, gate in ((3, 1e-30), (10, -1e-12), (11, 0.0), (12, -1.0), (13, 1.0), (20, -0.1)):
                inputs["decay"][:, t] = gate
            expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @pytest.mark.parametrize("label", mostly_slow(["gated", "three-gated"], fast=["gated"]))
    def test_mild_gates(label: str, values: int) -> None:
        """Chunks whose gates are factors of rows and columns, beside chunks whose gates are not."""
        case = named(label)
        inputs = case.inputs(140)
        size = inputs["decay"].abs().clamp(0.6, 1)
        inputs["decay"] = torch.copysign(size, inputs["decay"])
        inputs["decay"][:, 5:9] = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None]
        inputs["decay"][:, 70] = 0  # in the second chunk of one micro-step a token, or a later one
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    def test_rounding_by_integers() -> None:
        """To 8 and to 11 bits: the nearest, of two equally near ones that away from zero."""
        x = torch.randn(256, generator=torch.Generator().manual_seed(0)) * 100
        x[:4] = torch.tensor([0.0, -0.0, torch.inf, 3.0])
        eight, eleven = torch.empty_like(x), torch.empty_like(x)
        _round[(1,)](x, eight, eleven, N=256)
        assert torch.equal(eight, x.bfloat16().float())  # no two are equally near
        assert ((eleven - x).abs() <= x.abs() * 2**-11)[3:].all()
        assert (eleven.view(torch.int32) & 0x1FFF == 0).all()

    @pytest.mark.slow
    def test_keys_taken_as_they_are() -> None:
        case = named("three-gated")
        case = Case(case.op, case.make, case.seq, {"normalize": False, "scale": 0.3})
        inputs = case.inputs(30)
        inputs["k"] = inputs["k"] / 3  # so that the state does not explode
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @pytest.mark.slow
    def test_keys_of_zeros_and_scale_zero() -> None:
        for scale in (1.0, 0.0):
            case = named("delta_rule")
            case = Case(case.op, case.make, case.seq, {"scale": scale})
            inputs = case.inputs(66)
            inputs["k"][:, [2, 65]] = 0
            inputs["q"][:, 3] = 0
            expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @pytest.mark.slow
    def test_one_key_is_a_reflection_for_ever() -> None:
        """In float32, with β = 2 and one key, an even number of tokens changes nothing.

        But for rounding, which is allowed half a unit of the last place a token: terms of either
        sign cancel along a chunk, and numpy's products add them in an order of the machine. With
        OpenBLAS's kernels for Haswell and Zen the error is 1.1e-5, with those for AVX-512 it is
        below 1e-6.
        """
        g = torch.Generator().manual_seed(0)
        k = torch.randn(1, 1, 1, 20, generator=g).expand(1, 640, 1, 20)
        start = torch.randn(1, 1, 20, 4, generator=g)
        v, beta = torch.zeros(1, 640, 1, 4), torch.full((1, 640, 1), 2.0)
        case = Case("delta_rule", lambda time, g: {}, ("q",))
        inputs = {"q": k, "k": k, "v": v, "beta": beta, "initial_state": start}
        with torch.no_grad():
            _, end = case.run(inputs, "triton")
        assert relative_error(end, start) < 640 * 2**-24

    @pytest.mark.slow
    @pytest.mark.parametrize("case", DELTA, ids=str)
    def test_nan_in_nan_out(case: Case) -> None:
        """Also within the chunk of the NaN: tokens before it do not see it."""
        for name in case.seq:
            inputs = case.inputs(5)
            inputs[name][0, 3] = torch.nan
            with torch.no_grad():
                y, _ = case.run(inputs, "triton")
            assert y[0, 3].isnan().all()
            assert not y[0, :3].isnan().any()
            assert not y[1:].isnan().any()

    @pytest.mark.slow
    def test_strided_inputs_and_empty_batch() -> None:
        case = named("three-gated")
        inputs = case.inputs(3)
        strided = {name: torch.stack([x, x], dim=-1)[..., 0] for name, x in inputs.items()}
        for got, expected in zip(
            case.run(strided, "triton"), case.run(inputs, "triton"), strict=True
        ):
            assert torch.equal(got, expected)
        empty = {name: x[:0] for name, x in inputs.items()}
        _, grads = with_grads(case, empty, "triton")
        assert all(grads[name].shape == x.shape for name, x in empty.items())

    @pytest.mark.slow
    def test_vmap_folds_into_the_batch() -> None:
        case = named("two")
        stacks = [case.inputs(2, seed=seed) for seed in (0, 1)]
        stacked = {name: torch.stack([s[name] for s in stacks]) for name in stacks[0]}
        leaves = {name: x.clone().requires_grad_() for name, x in stacked.items()}
        y, _ = torch.vmap(lambda inputs: case.run(inputs, "triton"))(leaves)
        grads = torch.autograd.grad(y.abs().sum(), list(leaves.values()))
        for run, inputs in enumerate(stacks):
            alone = {name: x.clone().requires_grad_() for name, x in inputs.items()}
            y_run, _ = case.run(alone, "triton")
            expected = torch.autograd.grad(y_run.abs().sum(), list(alone.values()))
            assert relative_error(y[run], y_run) < 1e-12
            for got, want in zip(grads, expected, strict=True):
                assert relative_error(got[run], want) < 1e-12

    @pytest.mark.slow
    def test_registered_as_it_should_be() -> None:
        from statetrack.ops.delta.triton import choose  # noqa: F401

        x = {name: t.requires_grad_() for name, t in named("three-gated").inputs(2).items()}
        args = (x["q"], x["k"], x["v"], x["beta"], x["decay"], True, 2.0, x["initial_state"], True)
        op = torch.ops.statetrack.delta_product_triton_chunked.default
        torch.library.opcheck(op, (*args, None))
        one = torch.tensor([[0, 2]] * len(x["q"]))
        torch.library.opcheck(op, (*args, one))

    def test_inference_saves_nothing() -> None:
        from statetrack.ops.delta.triton import choose

        x = named("two").inputs(3)
        args = (x["q"], x["k"], x["v"], x["beta"], None, True, 1.0, None)
        assert all(saved.numel() == 0 for saved in choose._chunked_op(*args, False, None)[2:])
