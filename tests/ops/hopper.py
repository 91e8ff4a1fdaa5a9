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
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    cubin = Path(os.environ["TRITON_CACHE_DIR"]) / "kernel.cubin"
    cubin.write_bytes(made.asm["cubin"])
    usage = _printed(tools / "cuobjdump", "-res-usage", cubin)
    stack = re.search(r"STACK:(\d+)", usage)
    assert stack is not None, usage
    unset = unset_registers(_printed(tools / "nvdisasm", "-c", cubin))
    assert not unset, (
        f"{names}: the assembler reads registers that nothing has set ({unset[0]}); "
        "results will be wrong on a GPU. Write the kernel differently: another order, other loads"
    )
    return int(stack.group(1)), made.metadata.shared


def unset_registers(code: str) -> list[str]:
    """Instructions that read a uniform register before any instruction has set it.

    ptxas 12.8 makes such code now and then, where it computes the addresses of the factors of a
    product on the matrix units. `code` is what nvdisasm prints.
    """
    known: set[int] = set()
    found = []
    for line in re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", code, re.M):
        name, _, rest = re.sub(r"^@!?U?P(\d+|T)\s+", "", line).partition(" ")
        operands = [operand.strip() for operand in rest.split(",")]
        target = _target(name, operands)
        read: set[int] = set()
        for place, operand in enumerate(operands):
            for register in map(int, re.findall(r"UR(\d+)", operand)):
                first, count = register, 1
                if "gdesc" in operand:  # two addresses; one if the left factor is in registers
                    first, count = (register, 4) if place == 1 else (register + 2, 2)
                elif "desc[" in operand or (".64" in name and name.startswith("U")):
                    count = 2
                elif place == target and ".WIDE" in name:
                    count = 2
                if place != target:
                    read |= set(range(first, first + count))
                else:
                    written = set(range(first, first + count))
        if read - known:
            found.append(line.strip())
        if target is not None:
            known |= written
    return found


def _target(name: str, operands: list[str]) -> int | None:
    """Which operand is the uniform register that an instruction sets, if it sets one."""
    sets = name.startswith(("U", "R2UR", "S2UR", "CS2UR", "LDCU", "VOTEU", "REDUX"))
    if not sets or name.startswith(("UISETP", "UPLOP3")):
        return None
    for place, operand in enumerate(operands):
        if re.fullmatch(r"UR\d+", operand):
            return place
        if not re.fullmatch(r"U?P(\d+|T)", operand):
            return None
    return None


def _printed(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
