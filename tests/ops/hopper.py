"""Kernels compiled for Hopper, on any machine: what they need of it."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

SHARED_MEMORY = 232_448  # bytes a program may use on Hopper


def for_hopper(
    kernel: Any,
    types: str,
    warps: int,
    stages: int = 3,
    registers: int | None = None,
    **constants: Any,
) -> tuple[int, int]:
    """(bytes of stack, of shared memory) of `kernel` compiled for sm_90.

    `types` holds a type per pointer or number, "-" for an argument that is None. Pointers and
    distances between tokens are multiples of 16, as they are for any size in use.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    given = dict(zip(names, types.split(), strict=False))
    absent = {name: None for name, kind in given.items() if kind == "-"}
    signature = {
        name: "constexpr" if given.get(name, "-") == "-" else given[name] for name in names
    }
    values = {(names.index(name),): value for name, value in (absent | constants).items()}
    attributes = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name].startswith("*")
        or (name.endswith("_token") and signature[name] != "constexpr")
    }
    source = ASTSource(kernel, signature, values, attributes)
    target = GPUTarget("cuda", 90, 32)
    options = {"num_warps": warps, "num_stages": stages, "maxnreg": registers}
    made = triton.compile(source, target=target, options=options)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    cubin = Path(os.environ["TRITON_CACHE_DIR"]) / "kernel.cubin"
    cubin.write_bytes(made.asm["cubin"])
    usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True)
    stack = re.search(r"STACK:(\d+)", usage.stdout)
    assert stack is not None, usage.stderr
    return int(stack.group(1)), made.metadata.shared
