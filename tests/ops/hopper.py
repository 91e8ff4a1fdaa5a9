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
    lost = overwritten_factors(made.asm["ttgir"])
    assert not lost, (
        f"{names}: while a product reads a tile, the next one is copied over it ({lost[0]}); "
        "results will be wrong on a GPU, now and then. Read the product's result in the loop, so "
        "that it is waited for, or load the tile twice"
    )
    return int(stack.group(1)), made.metadata.shared


def overwritten_factors(code: str) -> list[str]:
    """Copies into a buffer from which a product that nothing has waited for may still read.

    Triton (3.6.0 and 3.7.1 at least) has a buffer too few for a tile that a product on the
    asynchronous matrix units and something else read in a loop with loads ahead. `code` is what
    comes out of its own passes (ttgir). A loop is gone through twice: a copy for a later turn may
    not meet a product of this turn if there is one buffer, and none of an earlier turn otherwise.
    """
    lines = code.splitlines()
    found = []
    for place, line in enumerate(lines):
        if "scf.for " in line:
            indent = line[: len(line) - len(line.lstrip())]
            end = next(i for i in range(place, len(lines)) if lines[i].startswith(indent + "}"))
            found += _overwritten_in(lines[place + 1 : end], _buffers(lines[:end]))
    return list(dict.fromkeys(found))


def _buffers(lines: list[str]) -> dict[str, tuple[str, int]]:
    """Every name of a place in shared memory -> the whole that was allocated, and its slots."""
    known: dict[str, tuple[str, int]] = {}
    for line in lines:
        allocated = re.search(r"(%\w+) = ttg\.local_alloc : .*memdesc<(\d+)x\d+x\d+x", line)
        part = re.search(r"(%\w+) = ttg\.memdesc_\w+ (%\w+)", line)
        if allocated:
            known[allocated[1]] = allocated[1], int(allocated[2])
        elif part and part[2] in known:
            known[part[1]] = known[part[2]]
    return known


def _overwritten_in(body: list[str], buffers: dict[str, tuple[str, int]]) -> list[str]:
    found = []
    going: list[tuple[int, set[str]]] = []  # products: their turn, and the buffers that they read
    for turn in (0, 1):
        for line in body:
            product = re.search(r"warp_group_dot (%\w+), (%\w+), .*isAsync = true", line)
            wait = re.search(r"warp_group_dot_wait .*pendings = (\d+)", line)
            to = re.search(r"async_copy_global_to_local %\w+, (%\w+)", line)
            if product:
                read = {buffers[name][0] for name in product.groups() if name in buffers}
                going.append((turn, read))
            elif wait:
                going = going[max(0, len(going) - int(wait[1])) :]
            elif to and to[1] in buffers:
                whole, slots = buffers[to[1]]
                latest = turn if slots == 1 else turn - 1
                if any(of <= latest and whole in read for of, read in going):
                    found.append(line.strip()[:120])
    return found


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
