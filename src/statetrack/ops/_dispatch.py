"""Which code runs an op, and why.

An explicitly requested backend never falls back to another: it runs or it says what is missing.
`"auto"` picks by device and by what is installed; `explain_backend` tells what it would pick.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

import statetrack.ops
from statetrack.ops._pieces import Pieces, one_by_one

__all__ = ["Backend", "BackendChoice", "explain_backend", "implementation", "large_state", "run"]

Backend = Literal["auto", "reference", "torch", "numba", "triton"]

# op -> backend -> module below statetrack.ops that holds a function of the op's name
_MODULES: dict[str, dict[str, str]] = {
    "diagonal_scan": {
        "reference": "_reference",
        "torch": "_torch.diagonal",
        "numba": "_numba.diagonal",
        "triton": "_triton.diagonal",
    },
    "selective_scan": {
        "reference": "_reference",
        "torch": "_torch.selective",
        "numba": "_numba.selective",
        "triton": "_triton.selective",
    },
    "linear_attention": {
        "reference": "_reference",
        "torch": "_torch.linear_attention",
        "numba": "_numba.linear_attention",
        "triton": "_triton.linear_attention",
    },
    "delta_product": {
        "reference": "_reference",
        "torch": "_torch.delta",
        "numba": "_numba.delta",
        "triton": "_triton.delta",
    },
    "short_convolution": {
        "reference": "_reference",
        "torch": "_torch.convolution",
        "triton": "_triton.convolution",
    },
    "matrix_scan": {"reference": "_reference", "torch": "_torch.dense"},
    "slstm_scan": {
        "reference": "_reference",
        "torch": "_torch.slstm",
        "numba": "_numba.slstm",
        "triton": "_triton.slstm",
    },
}
# delta_rule is delta_product with one micro-step: one implementation serves both
_ALIASES = {"delta_rule": "delta_product"}
# op that takes pieces -> which of its arguments are sequences; Triton kernels take them at once
_SEQUENCES = {
    "delta_product": (0, 1, 2, 3, 4),
    "selective_scan": (0, 1, 3, 4),
    "short_convolution": (0,),
}
_INSTALL = {"numba": "pip install 'statetrack[cpu]'", "triton": "pip install 'statetrack[gpu]'"}


@dataclass(frozen=True)
class BackendChoice:
    """The backend an op runs on, and the reason in one sentence."""

    backend: str
    reason: str


def large_state(k: Tensor, v: Tensor) -> bool:
    """Whether, on a CPU, `delta_product` is the faster in chunks of tensor code than in loops.

    From k [batch, time, micro, heads, key] and v, by what was measured (docs/cpu.md); loops run

    | gradients | micro-steps of a sequence | key · value     |
    |-----------|---------------------------|-----------------|
    | no        | any number                | up to 128 · 128 |
    | yes       | up to 48                  | up to 32 · 64   |
    | yes       | more                      | up to 64 · 128  |
    """
    if not torch.is_grad_enabled():
        limit = 2**14
    else:
        limit = 2**11 if k.shape[1] * k.shape[2] <= 48 else 2**13
    if k.shape[-1] * v.shape[-1] > limit:  # a branch, so that a compiler of open sizes decides here
        return True
    return False


def explain_backend(
    op: str, *, device: torch.device | str = "cpu", backend: str = "auto", large: bool = False
) -> BackendChoice:
    """The backend that `op` would use for tensors on `device`, with the reason.

    `large` tells of the delta ops that the state of a head is one for chunks of tensor code rather
    than for the compiled loops of the CPU (`large_state`).

    >>> explain_backend("delta_rule", backend="reference").reason
    'asked for'
    """
    op = _ALIASES.get(op, op)
    if op not in _MODULES:
        names = sorted([*_MODULES, *_ALIASES])
        raise ValueError(f"op={op!r} is not one of {', '.join(names)}")
    device = torch.device(device)
    if backend not in get_args(Backend):
        raise ValueError(f"backend={backend!r} is not one of {', '.join(get_args(Backend))}")
    if backend != "auto":
        problem = _problem(op, backend, device)
        if problem:
            raise ValueError(f"backend={backend!r} cannot run {op} here: {problem}")
        return BackendChoice(backend, "asked for")
    fast = "numba" if device.type == "cpu" else "triton"
    problem = _problem(op, fast, device)
    if large and fast == "numba":
        return BackendChoice("torch", "plain tensor code, the faster for states this large")
    if not problem:
        return BackendChoice(fast, f"the compiled kernels for {device.type} tensors")
    return BackendChoice("torch", f"plain tensor code, because for {fast}: {problem}")


def implementation(
    op: str,
    backend: str,
    device: torch.device,
    *,
    large: bool = False,
    pieces: bool = False,
    cut: bool = False,
) -> Callable[..., Any]:
    """The function that runs `op` on `device`; its module is imported now, not before.

    With `pieces` it takes them as its last argument. With `cut` it takes `sizes` too, those of the
    tensors which share the channels of its first result; Triton kernels write them where they are.
    """
    op = _ALIASES.get(op, op)
    backend = _load(op, backend, device.type, large)
    module: Any = statetrack.ops
    for part in _MODULES[op][backend].split("."):  # attributes, which a compiler can trace
        module = getattr(module, part)
    function: Callable[..., Any] = getattr(module, op)
    if backend == "reference":
        function = _without_autocast(function)
    if pieces and backend != "triton":
        function = one_by_one(function, _SEQUENCES[op])
    if cut and backend != "triton":
        function = _cut(function)
    return function


def run(
    op: str,
    backend: str,
    *args: Any,
    pieces: Pieces | None,
    large: bool = False,
    sizes: tuple[int, ...] | None = None,
) -> tuple[Any, Tensor]:
    """`op` on its arguments, of which the first is a tensor, by the pieces of every row if any."""
    in_pieces, cut = pieces is not None, sizes is not None
    function = implementation(op, backend, args[0].device, large=large, pieces=in_pieces, cut=cut)
    options = {"sizes": sizes} if cut else {}
    y, final_state = function(*args, *([pieces] if in_pieces else []), **options)
    return y, final_state


@torch.compiler.assume_constant_result
def _load(op: str, backend: str, device: str, large: bool) -> str:
    """Imports the code of the chosen backend and returns its name, a constant to a compiler."""
    chosen = explain_backend(op, device=device, backend=backend, large=large).backend
    importlib.import_module(f"statetrack.ops.{_MODULES[op][chosen]}")
    return chosen


def _problem(op: str, backend: str, device: torch.device) -> str | None:
    """Why `backend` cannot run `op` on `device`; None if it can."""
    if backend not in _MODULES[op]:
        others = ", ".join(repr(name) for name in _MODULES[op])
        return f"there is no {backend} version of this op; take one of 'auto', {others}"
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own: kernels on the CPU
    if backend == "triton" and device.type != "cuda" and not interpreted:
        return f"it needs a GPU and the tensors are on {device.type}; take 'auto' or 'torch'"
    if backend == "numba" and device.type != "cpu":
        return f"it needs the CPU and the tensors are on {device.type}; take 'auto' or 'torch'"
    if backend in _INSTALL and importlib.util.find_spec(backend) is None:
        return f"{backend} is not installed; {_INSTALL[backend]}, or take 'auto' or 'torch'"
    return None


def _cut(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its first result cut along the channels."""

    def run(*args: Any, sizes: tuple[int, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        y, final_state = function(*args)
        return y.split(sizes, dim=-1), final_state

    return run


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reference keeps its precision inside an autocast region, as the custom ops do."""

    def exact(first: Tensor, *args: Any) -> Any:
        with torch.autocast(first.device.type, enabled=False):
            return function(first, *args)

    return exact
