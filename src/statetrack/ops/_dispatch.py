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

from statetrack._extras import missing
from statetrack.ops._record import note
from statetrack.ops._register import packed_op, without_autocast
from statetrack.ops._spec import OpSpec, find
from statetrack.ops.context import in_use, run_cut
from statetrack.ops.packing import Packing, by_length

__all__ = ["Backend", "BackendChoice", "explain_backend", "run"]

Backend = Literal["auto", "reference", "torch", "numba", "triton"]

_EXTRA = {"numba": "cpu", "triton": "gpu"}


@dataclass(frozen=True)
class BackendChoice:
    """The backend an op runs on, and the reason in one sentence."""

    backend: str
    reason: str


def explain_backend(
    op: str, *, device: torch.device | str = "cpu", backend: str = "auto", large: bool = False
) -> BackendChoice:
    """The backend that `op` would use for tensors on `device`, with the reason.

    `large` says that the state is one for chunks of tensor code rather than for the compiled loops
    of the CPU, as the delta ops find out from their sizes.

    >>> explain_backend("delta_rule", backend="reference").reason
    'asked for'
    """
    spec = find(op)
    device = torch.device(device)
    if backend not in get_args(Backend):
        raise ValueError(f"backend={backend!r} is not one of {', '.join(get_args(Backend))}")
    if backend != "auto":
        problem = _problem(spec, backend, device)
        if problem:
            raise ValueError(f"backend={backend!r} cannot run {spec.name} here: {problem}")
        if _is_missing(backend):
            raise missing(f"backend={backend!r}", backend, _EXTRA[backend])
        return BackendChoice(backend, "asked for")
    fast = "numba" if device.type == "cpu" else "triton"
    problem = _problem(spec, fast, device)
    if problem is None and _is_missing(fast):
        problem = str(missing("it", fast, _EXTRA[fast]))
    if large and fast == "numba":
        return BackendChoice("torch", "plain tensor code, the faster for states this large")
    if not problem:
        return BackendChoice(fast, f"the compiled kernels for {device.type} tensors")
    return BackendChoice("torch", f"plain tensor code, because for {fast}: {problem}")


def run(
    spec: OpSpec,
    backend: str,
    inputs: Any,
    *,
    packing: Packing | None = None,
    large: bool = False,
    sizes: tuple[int, ...] | None = None,
) -> tuple[Any, Tensor]:
    """The op on its inputs, a `spec.inputs`, by the sequences of every packed row.

    With `sizes` the first result is cut along its channels into tensors of these sizes. Where
    processes share sequences (`context_parallel`), these inputs are one segment.
    """
    if not in_use():
        return _walk(spec, backend, inputs, packing, large, sizes)
    if packing is not None:
        raise ValueError(
            "packed sequences cannot be cut across processes: leave out cu_seqlens or "
            "context_parallel"
        )

    def walk(given: Any) -> tuple[Any, Tensor]:
        return _walk(spec, backend, given, None, large, None)

    y, final_state = run_cut(spec.name, spec.cut, walk, inputs, spec.blank)
    return y if sizes is None else y.split(sizes, dim=-1), final_state


def _walk(
    spec: OpSpec,
    backend: str,
    inputs: Any,
    packing: Packing | None,
    large: bool,
    sizes: tuple[int, ...] | None,
) -> tuple[Any, Tensor]:
    """`run` in this process alone. Triton kernels take all sequences at once and write the parts of
    the first result where they belong.
    """
    chosen = _load(spec.name, backend, inputs[0].device.type, large)
    function = getattr(spec.loaded, chosen)  # an attribute, which a compiler can trace
    if chosen == "reference":
        function = _without_autocast(function)
    if chosen != "triton":
        if packing is None:
            y, final_state = function(inputs)
        elif torch.compiler.is_compiling():  # where offsets cannot be read: one node of the graph
            name = _load_packed(spec.name, chosen)
            y, final_state = getattr(spec.loaded, name)(*inputs, *packing)
        else:
            y, final_state = by_length(function, spec.sequences, spec.blank)(inputs, packing)
        return y if sizes is None else y.split(sizes, dim=-1), final_state
    packed = {} if packing is None else {"packing": packing}
    options = packed if sizes is None else {**packed, "sizes": sizes}
    y, final_state = function(inputs, **options)
    return y, final_state


def _constant_to_a_compiler(function: Callable[..., str]) -> Callable[..., str]:
    """`torch.compiler.assume_constant_result`, which would import the compiler: a second of CPU."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant_to_a_compiler
def _load(op: str, backend: str, device: str, large: bool) -> str:
    """Imports the code of the chosen backend and returns its name, a constant to a compiler."""
    spec = find(op)
    chosen = explain_backend(op, device=device, backend=backend, large=large).backend
    if chosen not in vars(spec.loaded):
        module = importlib.import_module(f"{spec.package}.{chosen}")
        setattr(spec.loaded, chosen, getattr(module, spec.name))
    note(spec.name, chosen)
    return chosen


@_constant_to_a_compiler
def _load_packed(op: str, backend: str) -> str:
    """Registers `by_length` with this backend as one op; returns its name, a constant."""
    spec = find(op)
    name = f"{backend}_packed"
    if name not in vars(spec.loaded):
        function = getattr(spec.loaded, backend)
        if backend == "reference":
            function = _without_autocast(function)
        setattr(spec.loaded, name, packed_op(spec, backend, function))
    return name


def _problem(spec: OpSpec, backend: str, device: torch.device) -> str | None:
    """Why `backend` cannot run the op on `device`; None if it can."""
    if backend not in spec.backends:
        others = ", ".join(repr(name) for name in spec.backends)
        return f"there is no {backend} version of this op; take one of 'auto', {others}"
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own: kernels on the CPU
    if backend == "triton" and device.type != "cuda" and not interpreted:
        return f"it needs a GPU and the tensors are on {device.type}; take 'auto' or 'torch'"
    if backend == "numba" and device.type != "cpu":
        return f"it needs the CPU and the tensors are on {device.type}; take 'auto' or 'torch'"
    return None


def _is_missing(backend: str) -> bool:
    """Whether its package is not installed."""
    return backend in _EXTRA and importlib.util.find_spec(backend) is None


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reference keeps its precision inside an autocast region, as the custom ops do."""

    def exact(inputs: Any) -> Any:
        with without_autocast(inputs[0].device.type):
            return function(*inputs)

    return exact
