"""The GPU kernels of every op without a GPU: interpreted, for their values.

Sizes are tiny and not powers of two; tiles and the distance of saved states are made small enough
that several blocks and segments are in play.
"""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from statetrack import ops
from statetrack.ops._spec import find
from tests.helpers import mostly_slow, relative_error
from tests.ops.cases import CASES, Case, expect_exact_ends, normal
from tests.ops.interpreter import FILES, INTERPRETED, expect_interpreted
from tests.ops.test_against_reference import (
    expect_match,
    expect_unused_state,
    single,
    with_grads,
)
from tests.ops.test_packing import OTHER_CUTS, expect_no_leak, expect_pieces, in_a_row

pytest.importorskip("triton")

if not INTERPRETED:

    def test_fast_cases_of_every_kernel() -> None:
        expect_interpreted("not slow", *FILES)

    @pytest.mark.slow
    def test_in_the_interpreter() -> None:
        expect_interpreted("slow", __file__)

else:
    ONE_CASE_PER_OP = {
        "diagonal_scan",
        "selective_scan",
        "linear_attention-vector",
        "linear_attention-shared",
        "delta_product-two",
        "dplr",
        "slstm_scan",
        "short_convolution-silu",
    }
    INTERPRETABLE = [case for case in CASES if "triton" in find(case.op).backends]
    ONE_PER_OP = [case for case in INTERPRETABLE if str(case) in ONE_CASE_PER_OP]
    kernels = pytest.mark.parametrize("case", INTERPRETABLE, ids=str)
    one_per_op = pytest.mark.parametrize("case", ONE_PER_OP, ids=str)

    @pytest.fixture(autouse=True)
    def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
        """Two value blocks, and states saved often: as at sizes the interpreter cannot reach."""
        from statetrack.ops.convolution import triton as convolution
        from statetrack.ops.delta.triton import recurrent as delta
        from statetrack.ops.dplr.triton import recurrent as dplr
        from statetrack.ops.linear_attention.triton import recurrent as linear_attention
        from statetrack.ops.selective import triton as selective

        monkeypatch.setattr(convolution, "SEGMENT", 3)
        monkeypatch.setattr(convolution, "_block", lambda channels: 4)
        monkeypatch.setattr(linear_attention, "_forward_tile", lambda key, value: (8, 2, 1))
        monkeypatch.setattr(linear_attention, "_backward_tile", lambda key, value: (8, 2, 1))
        monkeypatch.setattr(dplr, "_forward_tile", lambda key, value: (8, 2, 1))
        monkeypatch.setattr(dplr, "_backward_tile", lambda key, value: (8, 2, 1))
        monkeypatch.setattr(delta, "_forward_tile", lambda key, value: (8, 2, 1))
        monkeypatch.setattr(delta, "_backward_tile", lambda key, value: (8, 2, 1))
        monkeypatch.setattr(delta, "_coefficient_rows", lambda keys: 4)
        monkeypatch.setattr(delta, "KEEP_EVERY", 4)
        monkeypatch.setattr(delta, "KEEP_EVERY_GATED", 3)
        monkeypatch.setattr(selective, "_block", lambda channels, state, elements: 2)

    @pytest.mark.parametrize("case", mostly_slow(INTERPRETABLE, fast=ONE_PER_OP), ids=str)
    @pytest.mark.parametrize(
        ("time", "state"), mostly_slow([(1, True), (5, False), (7, True)], fast=[(7, True)])
    )
    def test_equals_reference(case: Case, time: int, state: bool) -> None:
        inputs = case.inputs(time, state=state)
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @pytest.mark.slow
    @one_per_op
    def test_float32_is_close(case: Case) -> None:
        low = single(case.inputs(6))
        rounded = {name: x.double() for name, x in low.items()}
        expect_match(case, low, "triton", exact=rounded, tol=2e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("low", [-1.0, 0.0])
    def test_the_ends_of_selective_scans_range_are_exact(low: float) -> None:
        expect_exact_ends("triton", low)

    SELECTIVE = [case for case in CASES if case.op == "selective_scan"]
    selective_cases = pytest.mark.parametrize(
        "case", mostly_slow(SELECTIVE, fast=SELECTIVE[:1]), ids=str
    )

    @selective_cases
    @pytest.mark.parametrize(
        ("time", "state"), mostly_slow([(21, True), (16, False), (9, True)], fast=[(21, True)])
    )
    def test_selective_in_segments(
        case: Case, time: int, state: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Segments of 8 tokens; final states have gradients too."""
        from statetrack.ops.selective import triton as selective

        monkeypatch.setattr(selective, "_segment", lambda u, blocks, longest: 8)
        inputs = case.inputs(time, state=state)
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @selective_cases
    @pytest.mark.parametrize("state", mostly_slow([False, True], fast=[True]))
    def test_pieces_of_selective_in_segments(
        case: Case, state: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Segments end where a sequence does; some places for them stay empty, as sequences do."""
        from statetrack.ops.selective import triton as selective

        monkeypatch.setattr(selective, "_segment", lambda u, blocks, longest: 4)
        cuts = [[0, 17, 17, 18, 23], [0, 0, 3, 11, 23]]
        expect_pieces(case, "triton", state=state, cuts=cuts)

    @pytest.mark.slow
    @pytest.mark.parametrize("low", [-1.0, 0.0])
    def test_the_ends_are_exact_in_segments(low: float, monkeypatch: pytest.MonkeyPatch) -> None:
        from statetrack.ops.selective import triton as selective

        monkeypatch.setattr(selective, "_segment", lambda u, blocks, longest: 4)
        expect_exact_ends("triton", low)

    @pytest.mark.slow
    @pytest.mark.parametrize("label", ["vector", "scalar"])
    @pytest.mark.parametrize("time", [13, 16])
    def test_linear_attention_from_saved_states(label: str, time: int) -> None:
        """Long enough for saved states, from which both halves of eight tokens are replayed."""
        case = next(c for c in CASES if c.op == "linear_attention" and c.label == label)
        inputs = case.inputs(time)
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @pytest.mark.slow
    @pytest.mark.parametrize("time", [13, 16])
    def test_dplr_from_saved_states(time: int) -> None:
        case = next(c for c in CASES if c.op == "dplr")
        inputs = case.inputs(time)
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    def use_chunks_of_16(monkeypatch: pytest.MonkeyPatch) -> None:
        """In the forms of linear attention for long sequences, taken at any length."""
        from statetrack.ops.linear_attention.triton import choose, chunked, scalar

        monkeypatch.setattr(choose, "runs_in_chunks", lambda k, v, decay, dtype, longest: True)
        monkeypatch.setattr(chunked, "CHUNK", 16)
        monkeypatch.setattr(scalar, "CHUNK_FLOAT32", 16)

    @pytest.mark.parametrize(
        "label",
        mostly_slow(["vector", "scalar", "vector-long", "scalar-long"], fast=["vector", "scalar"]),
    )
    @pytest.mark.parametrize(
        ("time", "state"), mostly_slow([(1, True), (16, False), (37, True)], fast=[(16, False)])
    )
    def test_linear_attention_in_chunks(
        label: str, time: int, state: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The form for long sequences, which computes in float32: up to three chunks here."""
        use_chunks_of_16(monkeypatch)
        case = next(c for c in CASES if c.op == "linear_attention" and c.label == label)
        low = single(case.inputs(time, state=state))
        exact = {name: x.double() for name, x in low.items()}
        expect_match(case, low, "triton", exact=exact, tol=2e-6)

    @pytest.mark.parametrize(
        "label", mostly_slow(["vector", "vector-long", "scalar-long"], fast=["scalar-long"])
    )
    @pytest.mark.parametrize("state", mostly_slow([True, False], fast=[True]))
    @pytest.mark.parametrize(
        "packed", mostly_slow([False, True], fast=[True]), ids=["rows", "packed"]
    )
    def test_linear_attention_in_segments(
        label: str, state: bool, packed: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Segments of two chunks, whose states are made all at once."""
        from statetrack.ops.linear_attention.triton import chunked, scalar

        use_chunks_of_16(monkeypatch)
        monkeypatch.setattr(chunked, "_segment", lambda tokens, longest, programs: 32)
        monkeypatch.setattr(scalar, "_segment", lambda tokens, longest, programs, chunk: 32)
        case = next(c for c in CASES if c.op == "linear_attention" and c.label == label)
        if packed:
            cuts = [[0, 50, 50, 51, 70], [0, 0, 33, 35, 70]]
            options = {"dtype": torch.float32, "error": 5e-6}
            expect_pieces(case, "triton", state=state, cuts=cuts, **options)
        else:
            low = single(case.inputs(75, state=state))
            exact = {name: x.double() for name, x in low.items()}
            expect_match(case, low, "triton", exact=exact, tol=5e-6)

    @pytest.mark.parametrize("gates", mostly_slow([1, 20], fast=[1]))
    def test_linear_attention_in_blocks(gates: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """More keys and values than one program takes, in every kernel of the form in chunks."""
        from statetrack.ops.linear_attention.triton import chunked, scalar

        use_chunks_of_16(monkeypatch)
        for module in (chunked, scalar):
            monkeypatch.setattr(module, "_states_tile", lambda key, value: (16, 16, 1, 1))
        monkeypatch.setattr(scalar, "_outputs_tile", lambda *_: (16, 16, 1, 1))
        monkeypatch.setattr(scalar, "_gradients_tile", lambda *_: (16, 16, 1, 1))
        monkeypatch.setattr(chunked, "_outputs_tile", lambda *_: (16, 16, 1, 1))
        monkeypatch.setattr(chunked, "_ends_tile", lambda *_: (16, 16, 1, 1))
        monkeypatch.setattr(chunked, "_gates_tile", lambda *_: (16, {"num_warps": 1}))
        g = torch.Generator().manual_seed(0)
        made = {
            "q": normal(g, 1, 20, 2, 20),
            "k": normal(g, 1, 20, 2, 20),
            "v": normal(g, 1, 20, 2, 18),
            "decay": torch.tanh(normal(g, 1, 20, 2, gates)),
            "initial_state": normal(g, 1, 2, 20, 18),
        }
        case = Case("linear_attention", lambda t, g: made, ("q", "k", "v", "decay"))
        low = single(made)
        exact = {name: x.double() for name, x in low.items()}
        expect_match(case, low, "triton", exact=exact, tol=5e-6)

    @pytest.mark.parametrize(
        ("form", "label"),
        mostly_slow(
            [
                *(("chunks", label) for label in ("scalar-long", "vector-long")),
                *(("segments", label) for label in ("scalar-long", "vector-long")),
                *(("recurrence", label) for label in ("scalar-long", "vector-long")),
            ],
            fast=[("chunks", "scalar-long")],
        ),
    )
    @pytest.mark.parametrize("state", mostly_slow([False, True], fast=[False]))
    def test_linear_attention_whose_final_state_nobody_uses(
        form: str, label: str, state: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from statetrack.ops.linear_attention.triton import chunked, scalar

        if form != "recurrence":
            use_chunks_of_16(monkeypatch)
        if form == "segments":
            monkeypatch.setattr(chunked, "_segment", lambda tokens, longest, programs: 16)
            monkeypatch.setattr(scalar, "_segment", lambda tokens, longest, programs, chunk: 16)
        case = next(c for c in CASES if c.op == "linear_attention" and c.label == label)
        low = single(case.inputs(11 if form == "recurrence" else 40, state=state))
        expect_unused_state(case, low, "triton", tol=5e-6)

    @pytest.mark.parametrize("case", mostly_slow(INTERPRETABLE, fast=ONE_PER_OP), ids=str)
    @pytest.mark.parametrize("state", mostly_slow([False, True], fast=[True]))
    def test_pieces_at_once(case: Case, state: bool) -> None:
        expect_pieces(case, "triton", state=state)

    @pytest.mark.slow
    @one_per_op
    def test_pieces_do_not_leak(case: Case) -> None:
        expect_no_leak(case, "triton")

    @pytest.mark.parametrize("label", mostly_slow(["vector", "scalar"], fast=["vector"]))
    def test_pieces_from_saved_states(label: str) -> None:
        """Long enough that linear attention saves states, those of neighbours side by side."""
        case = next(c for c in CASES if c.op == "linear_attention" and c.label == label)
        cuts = [[0, 17, 26, 26, 27], [0, 0, 10, 18, 27]]
        expect_pieces(case, "triton", state=True, cuts=cuts)

    @pytest.mark.parametrize(
        ("label", "state"),
        mostly_slow(
            [("vector-long", True), ("vector", False), ("scalar-long", True), ("scalar", False)],
            fast=[("vector-long", True)],
        ),
    )
    def test_pieces_in_chunks(label: str, state: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Chunks end where a sequence does; there are places for chunks that stay empty."""
        use_chunks_of_16(monkeypatch)
        case = next(c for c in CASES if c.op == "linear_attention" and c.label == label)
        cuts = [[0, 33, 33, 34, 40], [0, 0, 7, 23, 40]]
        expect_pieces(case, "triton", state=state, cuts=cuts, dtype=torch.float32, error=5e-6)

    @pytest.mark.slow
    def test_pieces_in_chunks_do_not_leak(monkeypatch: pytest.MonkeyPatch) -> None:
        use_chunks_of_16(monkeypatch)
        expect_no_leak(next(c for c in CASES if c.op == "linear_attention"), "triton")

    def energy(y: torch.Tensor) -> torch.Tensor:
        """Σ |y|², of complex numbers too."""
        return (y * y.conj()).real.sum()

    @pytest.mark.slow
    @kernels
    def test_pieces_of_many_runs(case: Case) -> None:
        """vmap folds the runs into the batch, and every run keeps its own cuts."""
        stacks = [in_a_row(case, seed, offsets) for seed, offsets in enumerate(OTHER_CUTS)]
        stacked = {name: torch.stack([s[name] for s, _ in stacks]) for name in stacks[0][0]}
        leaves = {name: x.clone().requires_grad_() for name, x in stacked.items()}
        offsets = torch.stack([packing.offsets for _, packing in stacks])

        def run(inputs: dict[str, torch.Tensor], offsets: torch.Tensor) -> torch.Tensor:
            packing = ops.Packing(offsets, 7)
            y, _ = getattr(ops, case.op)(
                **inputs, **case.options, cu_seqlens=packing, backend="triton"
            )
            return y

        y = torch.vmap(run)(leaves, offsets)
        grads = torch.autograd.grad(energy(y), list(leaves.values()))
        for r, (inputs, packing) in enumerate(stacks):
            alone = {name: x.clone().requires_grad_() for name, x in inputs.items()}
            wanted = run(alone, packing.offsets)
            expected = torch.autograd.grad(energy(wanted), list(alone.values()))
            assert relative_error(y[r], wanted) < 1e-12
            for got, want in zip(grads, expected, strict=True):
                assert relative_error(got[r], want) < 1e-12

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["q", "k", "v", "decay"])
    @pytest.mark.parametrize("label", ["vector", "scalar"])
    def test_nan_in_chunks(label: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A NaN shows from its token on, not in the tokens of its chunk before it."""
        use_chunks_of_16(monkeypatch)
        case = next(c for c in CASES if c.op == "linear_attention" and c.label == label)
        inputs = single(case.inputs(20))
        inputs[name][0, 9] = torch.nan
        with torch.no_grad():
            y, state = case.run(inputs, "triton")
        assert not y[0, :9].isnan().any() and not y[1:].isnan().any()
        assert y[0, 9].isnan().all()
        assert name == "q" or (y[0, 10:].isnan().all() and state[0].isnan().all())

    @pytest.mark.slow
    def test_convolution_of_one_tap() -> None:
        def make(time: int, g: torch.Generator) -> dict[str, torch.Tensor]:
            return {"x": normal(g, 2, time, 5), "weight": normal(g, 5, 1), "bias": normal(g, 5)}

        case = Case("short_convolution", make, ("x",), {"activation": "silu"})
        inputs = case.inputs(5)
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @pytest.mark.slow
    def test_slstm_with_r_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
        """Heads too large for the chip take another way to the same numbers."""
        from statetrack.ops.slstm import triton as slstm

        monkeypatch.setattr(slstm, "ON_CHIP_SIZE", 4)
        case = next(case for case in CASES if case.op == "slstm_scan")
        for state in (True, False):
            inputs = case.inputs(3, state=state)
            expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)
            expect_pieces(case, "triton", state=state, cuts=[[0, 2, 2, 5], [0, 0, 1, 5]])

    @pytest.mark.slow
    def test_keys_taken_as_they_are() -> None:
        case = next(case for case in CASES if case.label == "three-gated")
        case = Case(case.op, case.make, case.seq, {"normalize": False, "scale": 0.3})
        inputs = case.inputs(4)
        inputs["k"] = inputs["k"] / 3  # so that the state does not explode
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @pytest.mark.slow
    def test_scale_zero_gives_zero_gradients_not_nan() -> None:
        case = next(case for case in CASES if str(case) == "delta_rule")
        case = Case(case.op, case.make, case.seq, {"scale": 0.0})
        inputs = case.inputs(2)
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    def test_a_key_of_zeros_is_no_key() -> None:
        case = next(case for case in CASES if str(case) == "delta_rule")
        inputs = case.inputs(5)
        inputs["k"][:, 2] = 0
        inputs["q"][:, 3] = 0
        expect_match(case, inputs, "triton", exact=inputs, tol=1e-9)

    @pytest.mark.slow
    @pytest.mark.parametrize("micro", [1, 2, 3])
    def test_delta_reads_parts_of_wide_rows_where_they_lie(micro: int) -> None:
        """q, k and v as slices of one projection: no copies, the same numbers."""
        from statetrack.ops._triton.runtime import by_token

        heads, key, value = 2, 4, 3
        sizes = [heads * key, micro * heads * key, micro * heads * value]
        generator = torch.Generator().manual_seed(0)
        wide = torch.randn(3, 5, sum(sizes), generator=generator, dtype=torch.float64)
        beta = 2 * torch.rand(3, 5, micro, heads, generator=generator, dtype=torch.float64)
        decay = 2 * torch.rand(3, 5, heads, generator=generator, dtype=torch.float64) - 1

        def run(backend: ops.Backend, gate: torch.Tensor | None) -> list[torch.Tensor]:
            leaf = wide.clone().requires_grad_()
            q, k, v = leaf.split(sizes, dim=-1)
            q = q.unflatten(-1, (heads, key))
            k = k.unflatten(-1, (micro, heads, key))
            v = v.unflatten(-1, (micro, heads, value))
            for part in (q, k, v):
                taken, token = by_token(part)
                assert taken.data_ptr() == part.data_ptr() and token == sum(sizes)
            y, state = ops.delta_product(q, k, v, beta, gate, backend=backend)
            (grad,) = torch.autograd.grad(y.square().sum() + state.sum(), leaf)
            return [y.detach(), state.detach(), grad]

        for gate in (None, decay):
            for got, wanted in zip(run("triton", gate), run("reference", gate), strict=True):
                assert relative_error(got, wanted) < 1e-9

    @pytest.mark.slow
    @one_per_op
    def test_strided_inputs_and_empty_batch(case: Case) -> None:
        inputs = case.inputs(3)
        leaves = {name: x.requires_grad_() for name, x in inputs.items()}
        strided = {name: torch.stack([x, x], dim=-1)[..., 0] for name, x in leaves.items()}
        wide = {name: torch.cat([x, x], dim=-1) for name, x in leaves.items()}
        parts = {name: x[..., : x.shape[-1] // 2] for name, x in wide.items()}
        results = []
        for given in (leaves, strided, parts):  # the last ones are taken as they lie
            y, state = case.run(given, "triton")
            grads = torch.autograd.grad(y.real.sin().sum(), list(leaves.values()))
            results.append([y, state, *grads])
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(other, results[0], strict=True))
        inputs = case.inputs(3)
        empty = {name: x if name in case.shared else x[:0] for name, x in inputs.items()}
        _, grads = with_grads(case, empty, "triton")
        assert all(grads[name].shape == x.shape for name, x in empty.items())
        assert all(not grad.any() for grad in grads.values())

    @pytest.mark.slow
    @kernels
    def test_nan_in_nan_out(case: Case) -> None:
        for name in case.seq:
            inputs = case.inputs(3)
            inputs[name][0, 1] = torch.nan
            with torch.no_grad():
                y, _ = case.run(inputs, "triton")
            assert y[0, 1].isnan().all()
            assert not y[0, :1].isnan().any()
            assert not y[1:].isnan().any()

    @pytest.mark.slow
    @one_per_op
    def test_vmap_folds_into_the_batch(case: Case) -> None:
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
    def test_compiles_to_one_graph() -> None:
        script = Path(__file__).parents[1] / "gpu" / "compile_all.py"
        done = subprocess.run([sys.executable, script, "cpu"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("compiles") == len(ONE_PER_OP)

    @pytest.mark.slow
    def test_registered_as_it_should_be() -> None:
        for spec in {find(case.op) for case in CASES}:
            if "triton" in spec.backends:
                importlib.import_module(f"{spec.package}.triton")

        registered = torch.ops.statetrack
        x = {name: t.requires_grad_() for name, t in CASES[0].inputs(1).items()}
        args = (x["decay"], x["inputs"], x["initial_state"], None)
        torch.library.opcheck(registered.diagonal_scan_triton.default, args)
        case = next(case for case in CASES if case.label == "three-gated")
        x = {name: t.requires_grad_() for name, t in case.inputs(2).items()}
        args = (x["q"], x["k"], x["v"], x["beta"], x["decay"], True, 2.0, x["initial_state"], True)
        torch.library.opcheck(registered.delta_product_triton.default, (*args, None, 2))
        cut = torch.tensor([[0, 1, 2], [0, 2, 2]])
        torch.library.opcheck(
            registered.delta_product_triton.default, (*args[:7], None, True, cut, 2)
        )
        case = next(case for case in CASES if case.op == "selective_scan")
        x = {name: t.requires_grad_() for name, t in case.inputs(2).items()}
        A, D = x["A"].detach()[None].requires_grad_(), x["D"].detach()[None].requires_grad_()
        args = (x["u"], x["delta"], A, x["B"], x["C"], D, -1.0, x["initial_state"], True)
        torch.library.opcheck(registered.selective_scan_triton.default, (*args, None, 2))
        case = next(case for case in CASES if case.op == "slstm_scan")
        x = {name: t.requires_grad_() for name, t in case.inputs(2).items()}
        R = x["R"].detach()[None].requires_grad_()
        torch.library.opcheck(
            registered.slstm_scan_triton.default, (x["gates"], R, x["initial_state"], True, None)
        )
        case = next(case for case in CASES if case.op == "linear_attention")
        x = {name: t.requires_grad_() for name, t in case.inputs(2).items()}
        args = (x["q"], x["k"], x["v"], x["decay"], 0.7, x["initial_state"], True, None, 2)
        torch.library.opcheck(registered.linear_attention_triton.default, args)
        case = next(case for case in CASES if case.op == "short_convolution")
        x = {name: t.requires_grad_() for name, t in case.inputs(3).items()}
        weight, bias = (x[n].detach()[None].requires_grad_() for n in ("weight", "bias"))
        args = (x["x"], weight, bias, True, x["initial_state"])
        torch.library.opcheck(registered.short_convolution_triton.default, (*args, None, 0, 0))

    def test_inference_saves_nothing() -> None:
        from statetrack.ops.delta.triton import choose

        case = next(case for case in CASES if case.label == "two")
        x = case.inputs(5)
        args = (x["q"], x["k"], x["v"], x["beta"], None, True, 1.0, None)
        assert [saved.numel() for saved in choose._op(*args, False, None, 5)[2:4]] == [0, 0]
        with torch.no_grad():
            inside, _ = case.run(x, "triton")
        assert torch.equal(inside, case.run(x, "triton")[0])
