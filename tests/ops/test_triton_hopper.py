"""The kernels of every op fit on Hopper: they are compiled for it, and need no GPU for that."""

from pathlib import Path

import pytest
import torch

from tests.helpers import mostly_slow
from tests.ops.hopper import SHARED_MEMORY, for_hopper, overwritten_factors, unset_registers
from tests.ops.interpreter import INTERPRETED

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
rows_and_pieces = pytest.mark.parametrize(
    "cut", mostly_slow(["-", "*i64"], fast=["-"]), ids=["rows", "packed"]
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def test_registers_that_nothing_has_set_are_found() -> None:
    """The second line is what ptxas 12.8 made of a kernel whose results were wrong on a GPU."""
    code = """
        /*0010*/                   USGXT.U32 UR12, UR11, 0xe ;
        /*0020*/                   UIADD3 UR38, UP0, UR38, 0x40, URZ ;
        /*0030*/                   UIADD3.64 UR8, UR12, 0x4, URZ ;
        /*0040*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8].tnspB, R24 ;
"""
    set_first = "        /*0000*/                   ULDC.64 UR10, c[0x0][0x210] ;\n"
    more = "        /*0004*/              @!UP0 UIMAD.WIDE.U32 UR38, UR10, UR11, URZ ;\n"
    wide = "        /*0006*/                   UMOV UR13, 0x1 ;\n"
    unset = unset_registers(set_first + wide + code)
    assert [line.split()[0] for line in unset] == ["UIADD3"]
    assert unset_registers(set_first + more + wide + code) == []


@pytest.mark.parametrize(
    ("slots", "pending", "products", "lost"),
    [(1, 1, 1, 1), (1, 0, 1, 0), (2, 1, 1, 0), (2, 3, 2, 1)],
)
def test_tiles_that_are_copied_over_are_found(
    slots: int, pending: int, products: int, lost: int
) -> None:
    """The first is what Triton 3.6.0 made of a kernel whose results were wrong now and then."""
    shape = f"!ttg.memdesc<{slots}x64x32xbf16, #shared, #smem, mutable>"
    product = """
      %t = ttg.memdesc_trans %at {order = array<i32: 1, 0>} : x
      %y = ttng.warp_group_dot %x, %t, %sum {inputPrecision = 0 : i32, isAsync = true} : x"""
    code = f"""
    %tile = ttg.local_alloc : () -> {shape}
    %first = ttg.memdesc_index %tile[%c0] : x
    %loop = scf.for %i = %c0 to %c2 step %c1 iter_args(%sum = %zero) -> x {{
      %at = ttg.memdesc_index %tile[%slot] : x{product * products}
      %done = ttng.warp_group_dot_wait %y, %x, %t {{pendings = {pending} : i32}} : x
      %copy = ttg.async_copy_global_to_local %from, %first mask %m other %z : x
    }}
    %after = ttg.async_copy_global_to_local %from, %first mask %m other %z : x"""
    assert len(overwritten_factors(code)) == lost


@rows_and_pieces
@pytest.mark.parametrize("size", mostly_slow([32, 128], fast=[32]))
def test_delta_fits_on_hopper(size: int, cut: str) -> None:
    import triton.language as tl

    from statetrack.ops.delta.triton import recurrent as delta

    shape = {"N": 1, "K": size, "V": size, "SCALE": 1.0, "NORMALIZE": True, "EVERY": 256}
    keys, values, warps = delta._forward_tile(size, size)
    tile = {"BK": keys, "BV": values, "NV": size // values, "COMPUTE": tl.float32}
    rows = {"BT": delta._coefficient_rows(keys), "SAVE": True, "REPAIR": False}
    types = f"*bf16 *bf16 *bf16 *bf16 - - *bf16 *fp32 *fp32 *fp32 *fp32 {cut}"
    types += " i32 i32 i32 i32 i32 i32 i32"
    stack, shared = for_hopper(delta._forward_kernel, types, warps, **shape, **tile, **rows)
    assert stack == 0 and shared <= SHARED_MEMORY
    keys, values, warps = delta._backward_tile(size, size)
    tile = {"BK": keys, "BV": values, "NV": size // values, "COMPUTE": tl.float32}
    types = "*bf16 *bf16 *bf16 - - *fp32 *fp32 *fp32 *fp32 *bf16 *fp32"
    types += f" *bf16 *bf16 *bf16 *bf16 - - {cut} i32 i32 i32 i32 i32 i32 i32"
    offsets = None if cut == "-" else torch.zeros(1, 2, dtype=torch.long)
    tile["registers"] = delta._registers(warps, offsets)
    stack, shared = for_hopper(delta._backward_kernel, types, warps, **shape, **tile)
    assert stack == 0 and shared <= SHARED_MEMORY


@rows_and_pieces
@pytest.mark.parametrize("size", mostly_slow([16, 32], fast=[16]))
def test_short_delta_fits_on_hopper(size: int, cut: str) -> None:
    from statetrack.ops.delta.triton import short

    shape = {"K": size, "V": size, "ROWS": 16, "SCALE": 1.0, "NORMALIZE": True, "ASM": True}
    types = "*bf16 *bf16 *fp32 *fp32 *fp32 *bf16 - *bf16 *bf16 *bf16 *fp32 *fp32"
    types += f" {cut} i32 i32 i32 i32 i32"
    stack, shared = for_hopper(short._backward_kernel, types, 1, stages=1, **shape)
    assert stack == 0 and shared <= SHARED_MEMORY
    types = f"*bf16 *bf16 *bf16 *fp32 *fp32 *bf16 *fp32 *fp32 *fp32 {cut} i32 i32 i32 i32 i32 i32"
    shape["SAVE"] = True
    stack, shared = for_hopper(short._forward_kernel, types, 1, stages=1, **shape)
    assert stack == 0 and shared <= SHARED_MEMORY


@rows_and_pieces
@pytest.mark.parametrize(
    ("channels", "size", "segment"),
    mostly_slow(
        [(256, 16, "i32 i32"), (256, 16, "- -"), (3, 5, "i32 i32"), (1, 1, "- -")],
        fast=[(256, 16, "i32 i32")],
    ),
)
def test_selective_fits_on_hopper(channels: int, size: int, segment: str, cut: str) -> None:
    import triton.language as tl

    from statetrack.ops.selective import triton as selective

    padded = selective.power_of_two(size)
    tile = {"N": size, "BC": selective._block(channels, size, 256), "BN": padded, "LOW": -1.0}
    tile |= {"COMPUTE": tl.float32}
    token = 8 + 2 * size
    if segment != "- -":
        types = f"*bf16 *bf16 *fp32 *bf16 *fp32 *fp32 {cut} i32 i32 i32 i32 {segment}"
        for reverse in (False, True):
            walk = {"w_token": token, "REVERSE": reverse}
            stack, _ = for_hopper(selective._maps_kernel, types, 1, **tile, **walk)
            assert stack == 0
    tile |= {"BC_token": token}
    inputs = "*bf16 *bf16 *fp32 *bf16 *bf16 *fp32"
    types = f"{inputs} *fp32 *bf16 *fp32 *fp32 {cut} i32 i32 i32 i32 {segment}"
    stack, _ = for_hopper(selective._forward_kernel, types, 1, **tile, SAVE=True)
    assert stack == 0
    types = f"{inputs} *fp32 *bf16 *fp32 *bf16 *bf16 *fp32 *fp32 *fp32 *fp32 - {cut}"
    types += f" i32 i32 i32 i32 i32 {segment}"
    stack, _ = for_hopper(selective._backward_kernel, types, 1, **tile, ASM=True)
    assert stack == 0
    tile["registers"] = selective.REGISTERS
    stack, _ = for_hopper(selective._backward_kernel, types, 1, **tile, ASM=True)
    assert stack <= 128


@rows_and_pieces
@pytest.mark.parametrize(
    "vector", mostly_slow([True, False], fast=[True]), ids=["vector", "scalar"]
)
@pytest.mark.parametrize(
    ("key", "value"), mostly_slow([(32, 32), (64, 64), (64, 65), (128, 128)], fast=[(32, 32)])
)
def test_linear_attention_fits_on_hopper(key: int, value: int, vector: bool, cut: str) -> None:
    import triton.language as tl

    from statetrack.ops.linear_attention.triton import recurrent as la

    shape = {"K": key, "V": value, "PV": la._padded(value), "SCALE": 1.0, "VECTOR": vector}
    keys, values, warps = la._forward_tile(key, value)
    tile = {"BK": keys, "BV": values, "NV": -(-value // values), "COMPUTE": tl.float32}
    types = f"*bf16 *bf16 *bf16 *bf16 - *bf16 *fp32 *fp32 {cut} i32 i32 i32 i32 i32"
    rest = {"SAVE": True, "EVERY": la.KEEP_EVERY}
    stack, _ = for_hopper(la._forward_kernel, types, warps, **shape, **tile, **rest)
    assert stack == 0
    keys, values, warps = la._backward_tile(key, value)
    tile = {"BK": keys, "BV": values, "NV": -(-value // values), "COMPUTE": tl.float32}
    types = "*bf16 *bf16 *bf16 *bf16 - *fp32 *bf16 *fp32 *bf16 *bf16 *bf16 *bf16 -"
    types += f" {cut} i32 i32 i32 i32 i32"
    stack, _ = for_hopper(la._backward_kernel, types, warps, **shape, **tile)
    assert stack == 0


@rows_and_pieces
@pytest.mark.parametrize("size", mostly_slow([32, 64, 128], fast=[32]))
def test_dplr_fits_on_hopper(size: int, cut: str) -> None:
    import triton.language as tl

    from statetrack.ops.dplr.triton import recurrent as dplr

    inputs = "*bf16 *bf16 *bf16 *fp32 *fp32 *fp32 -"
    keys, values, warps = dplr._forward_tile(size, size)
    shape = {"K": size, "V": size, "SCALE": 1.0, "COMPUTE": tl.float32}
    tile = {"BK": keys, "BV": values, "NV": size // values}
    rest = {"SAVE": True, "EVERY": dplr.KEEP_EVERY, "AHEAD": dplr.AHEAD, "REPAIR": False}
    types = f"{inputs} *bf16 *fp32 *fp32 *fp32 {cut} i32 i32 i32 i32 i32"
    stack, shared = for_hopper(dplr._forward_kernel, types, warps, **shape, **tile, **rest)
    assert stack == 0 and shared <= SHARED_MEMORY
    keys, values, warps = dplr._backward_tile(size, size)
    tile = {"BK": keys, "BV": values, "NV": size // values}
    types = f"{inputs} *fp32 *fp32 *bf16 *fp32 *bf16 *bf16 *bf16 *fp32 *fp32 *fp32 - {cut}"
    types += " i32 i32 i32 i32 i32"
    stack, shared = for_hopper(dplr._backward_kernel, types, warps, **shape, **tile)
    assert stack == 0 and shared <= SHARED_MEMORY


@rows_and_pieces
@pytest.mark.parametrize("values", mostly_slow([1, 128], fast=[128]))
def test_segments_join_on_hopper(values: int, cut: str) -> None:
    import triton.language as tl

    from statetrack.ops._triton import segments

    types = f"*fp32 *fp32 *fp32 {cut} i32 i32 i32 i32 i32 i32"
    for reverse in (False, True):
        tile = {"VALUES": values, "BLOCK": 256, "REVERSE": reverse, "COMPUTE": tl.float32}
        assert for_hopper(segments._join_kernel, types, 2, **tile)[0] == 0


@rows_and_pieces
@pytest.mark.parametrize("dtype", mostly_slow(["bf16", "fp32"], fast=["bf16"]))
def test_attention_chunks_fit_on_hopper(dtype: str, cut: str) -> None:
    from statetrack.ops.linear_attention.triton import chunked as chunks

    size, count, x = 128, chunks.CHUNK, f"*{dtype}"
    precision = {"PRECISION": "bf16" if dtype == "bf16" else "tf32x3"}
    shape = {"K": size, "V": size, "C": count, "SCALE": 1.0}
    tree = {"K": size, "C": count, "LEVELS": count.bit_length() - 1}
    keys, options = chunks._scores_tile(size, precision["PRECISION"])
    warps = options["num_warps"]
    types = f"{x} {x} {x} {x} {x} *fp32 *fp32 {cut} i32 i32 i32"
    made = [for_hopper(chunks._scores_kernel, types, warps, **tree, BK=keys, **precision)]
    keys, values, warps, _ = chunks._states_tile(size, size)
    for key, reverse in (("*fp32", False), (x, True)):
        tile = {"BK": keys, "BV": values, "REVERSE": reverse, "SPLIT": dtype == "bf16"}
        for results in (f"- {x} - *fp32", f"*fp32 {x} - *fp32", "- - *fp32 *fp32"):
            segment = "- -" if results.startswith(f"- {x}") else "i32 i32"
            types = f"{key} {x} *fp32 {results} {cut} i32 i32 i32 i32 {segment}"
            made += [for_hopper(chunks._states_kernel, types, warps, **shape, **tile)]
    keys, values, warps, _ = chunks._outputs_tile(size, size)
    for key, reverse in ((x, False), ("*fp32", True)):
        tile = {"BK": keys, "BV": values, "REVERSE": reverse}
        types = f"{key} {x} {x} {x} {x} {cut} i32 i32 i32 i32"
        made += [for_hopper(chunks._outputs_kernel, types, warps, **shape, **tile, **precision)]
    keys, values, warps, _ = chunks._ends_tile(size, size, precision["PRECISION"])
    tile = {"BV": chunks._block(size, 64)}
    types = f"{x} {x} {x} {cut} i32 i32 i32"
    pairs = shape | tile
    del pairs["K"]
    made += [for_hopper(chunks._pairs_kernel, types, 4, **pairs, **precision)]
    tile = {"BK": keys, "BV": values}
    types = f"{x} {x} {x} {x} {x} {x} *fp32 {cut} i32 i32 i32 i32"
    made += [for_hopper(chunks._ends_kernel, types, warps, **shape, **tile, **precision)]
    keys, options = chunks._gates_tile(size, precision["PRECISION"])
    warps = options["num_warps"]
    types = f"{x} {x} {x} {x} {x} {x} *fp32 {x} {x} {x} {cut} i32 i32 i32 i32"
    made += [for_hopper(chunks._gates_kernel, types, warps, **tree, BK=keys, **precision)]
    assert all(shared <= SHARED_MEMORY for _, shared in made)


@rows_and_pieces
@pytest.mark.parametrize(
    ("key", "value", "dtype"),
    mostly_slow(
        [(128, 128, "bf16"), (64, 65, "fp32"), (32, 64, "bf16"), (64, 32, "bf16")],
        fast=[(128, 128, "bf16"), (32, 64, "bf16")],
    ),
)
def test_attention_with_a_gate_per_head_fits_on_hopper(
    key: int, value: int, dtype: str, cut: str
) -> None:
    from statetrack.ops.linear_attention.triton import scalar

    x, precision = f"*{dtype}", "bf16" if dtype == "bf16" else "tf32x3"
    shape = {"K": key, "V": value, "C": scalar.CHUNK if dtype == "bf16" else scalar.CHUNK_FLOAT32}
    shape |= {"SCALE": 1.0}
    keys, values, warps, stages = scalar._states_tile(key, value)
    made = []
    for reverse in (False, True):
        tile = {"BK": keys, "BV": values, "REVERSE": reverse, "SPLIT": dtype == "bf16"}
        tile |= {"GROUP": 1}
        for results in (f"- {x} - *fp32", f"*fp32 {x} - *fp32", "- - *fp32 *fp32"):
            segment = "- -" if results.startswith(f"- {x}") else "i32 i32"
            types = f"{x} {x} {x} {results} {cut} i32 i32 i32 i32 {segment}"
            made += [for_hopper(scalar._states_kernel, types, warps, stages, **shape, **tile)]
    keys, values, warps, stages = scalar._outputs_tile(key, value, precision)
    for reverse in (False, True):
        tile = {"BK": keys, "BV": values, "REVERSE": reverse, "PRECISION": precision}
        tile |= {"GIVEN": False, "GROUP": 1}
        types = f"{x} {x} {x} {x} {x} {x} {cut} i32 i32 i32 i32"
        made += [for_hopper(scalar._outputs_kernel, types, warps, stages, **shape, **tile)]
    keys, values, warps, stages = scalar._gradients_tile(key, value, precision)
    tile = {"BK": keys, "BV": values, "PRECISION": precision}
    tile |= {"GATES": scalar._gates_precision(precision), "START": False, "END": False}
    types = f"{x} {x} {x} {x} {x} {x} {x} *fp32 *fp32 {x} {x} {cut} i32 i32 i32 i32"
    for reverse in (False, True):
        tile["REVERSE"] = reverse
        made += [for_hopper(scalar._gradients_kernel, types, warps, stages, **shape, **tile)]
    assert all(shared <= SHARED_MEMORY for _, shared in made)
    assert dtype == "fp32" or all(stack == 0 for stack, _ in made)


@rows_and_pieces
@pytest.mark.parametrize(
    ("weights", "start"),
    mostly_slow([("*fp32", "-"), ("*fp32", "*fp32"), ("*bf16", "-")], fast=[("*fp32", "*fp32")]),
)
def test_convolution_fits_on_hopper(weights: str, start: str, cut: str) -> None:
    import triton.language as tl

    from statetrack.ops.convolution import triton as convolution

    tile = {"W": 4, "SEGMENT": convolution.SEGMENT, "BC": convolution._block(256)}
    rest = {"SILU": True, "COMPUTE": tl.float32, "ASM": True}
    types = f"*bf16 {weights} {weights} {start} *bf16 *fp32 {cut} i32 i32 - i32 i32 - - i32 i32"
    stack, _ = for_hopper(convolution._forward_kernel, types, 1, **tile, **rest)
    assert stack == 0
    types = f"*bf16 {weights} {weights} {start} *bf16 *fp32 *bf16 {start} *fp32 {cut}"
    types += " i32 i32 - i32 i32 i32 - - i32 i32"
    stack, _ = for_hopper(convolution._backward_kernel, types, 1, **tile, **rest)
    assert stack == 0


@rows_and_pieces
def test_diagonal_fits_on_hopper(cut: str) -> None:
    from statetrack.ops.diagonal import triton as diagonal

    x = "*fp32"
    for complex_ in (False, True):
        tile = {"BLOCK": diagonal.BLOCK, "COMPLEX": complex_}
        types = f"{x} {x} {x} {x} {x} {cut} i32 i32 i32"
        assert for_hopper(diagonal._forward_kernel, types, 1, **tile)[0] == 0
        types = f"{x} {x} {x} {x} {x} {x} {x} {x} {cut} i32 i32 i32"
        assert for_hopper(diagonal._backward_kernel, types, 1, **tile)[0] == 0


@rows_and_pieces
@pytest.mark.parametrize("size", mostly_slow([32, 64], fast=[32]))
def test_slstm_fits_on_hopper(size: int, cut: str) -> None:
    import triton.language as tl

    from statetrack.ops.slstm import triton as slstm

    shape = {"D": size, "BD": size, "ROWS": slstm.ROWS, "EXACT": False, "COMPUTE": tl.float32}
    shape["ON_CHIP"] = size <= slstm.ON_CHIP_SIZE
    warps = slstm._warps(size)
    types = f"*fp32 *fp32 - *fp32 *fp32 *fp32 {cut} i32 i32 i32 i32"
    _, shared = for_hopper(slstm._forward_kernel, types, warps, **shape, SAVE=True)
    assert shared <= SHARED_MEMORY
    types = f"*fp32 *fp32 - *fp32 *fp32 *fp32 *fp32 - {cut} i32 i32 i32 i32"
    _, shared = for_hopper(slstm._backward_kernel, types, warps, **shape)
    assert shared <= SHARED_MEMORY
