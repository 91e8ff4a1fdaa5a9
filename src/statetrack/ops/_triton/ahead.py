"""The first call: all kernels that an op needs, compiled side by side instead of one by one.

A kernel takes Triton a second or two, nearly all of it outside Python's lock. So before an op runs
on sizes that are new to it, it is run on tensors without numbers, and its backward after it if a
gradient may be wanted. Launches are only noted there, and what they would compile is compiled in
threads; the launches of the op itself then find their kernels made.

Nothing else changes. Whatever goes wrong here is dropped, and left to the launches, which compile
what is missing as they always do.
"""

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from threading import Lock
from typing import Any

import torch
import triton
from torch import Tensor

from statetrack.ops._triton.runtime import on_device_of

__all__ = ["compiled_ahead", "launch"]

MOST_SIZES = 10_000  # remembered per op

Op = Callable[..., tuple[Tensor, ...]]
Job = Callable[[], Any]  # Triton's, which returns a compiled kernel
Noted = list[tuple[Any, tuple[Any, ...], dict[str, Any]]]

_noted: ContextVar[Noted | None] = ContextVar("noted", default=None)
_parser = Lock()  # ast.parse fails now and then where two threads use it (Python 3.11, 3.12)


def launch(kernel: Any, grid: tuple[int | torch.SymInt, ...], *args: Any, **options: Any) -> None:
    """kernel[grid](*args, **options); only noted while kernels are compiled ahead."""
    noted = _noted.get()
    if noted is None:
        kernel[grid](*args, **options)
    else:
        noted.append((kernel, args, options))


def compiled_ahead(forward: Op, backward: Op, num_outputs: int, *, used: int | None = None) -> Op:
    """`forward`, with the kernels of both made before it first runs on arguments of new sizes.

    The pair is one for `differentiable_op`, in which every kernel is started by `launch`. The first
    option of `forward` says whether `backward` may follow. Where a gradient may be None, that of an
    output nobody used, the kernels are made for the first `used` outputs.
    """
    if triton.knobs.runtime.interpret:
        return forward
    seen: set[tuple[Any, ...]] = set()

    def run(inputs: Any, *options: Any) -> tuple[Tensor, ...]:
        args = (*inputs, *options)
        sizes = tuple(map(_size, args))
        if sizes not in seen:
            if len(seen) == MOST_SIZES:
                seen.clear()
            seen.add(sizes)
            with suppress(Exception), on_device_of(inputs[0]):
                _compile(_launches(forward, backward, num_outputs, inputs, options, used))
        return forward(inputs, *options)

    return run


def _size(x: Any) -> Any:
    """What kernels are made for; how many sequences a row holds, by their offsets, is not."""
    if not isinstance(x, Tensor):
        return x
    return x.dtype, x.shape if x.is_floating_point() or x.is_complex() else x.dim()


def _launches(
    forward: Op,
    backward: Op,
    num_outputs: int,
    inputs: Any,
    options: tuple[Any, ...],
    used: int | None,
) -> Noted:
    """What the two will launch, with tensors that lie like the real ones and count as aligned."""
    noted: Noted = []
    token = _noted.set(noted)
    try:
        bare = inputs._make(map(_bare, inputs)), *map(_bare, options)
        results = forward(*bare)
        save = options[0]
        if save:
            grads = [torch.empty_like(y) for y in results[:num_outputs][:used]]
            unused = [None] * (num_outputs - len(grads))
            backward(*bare, *results, *grads, *unused)
    finally:
        _noted.reset(token)
    return noted


def _bare(x: Any) -> Any:
    """A tensor without numbers that lies like x."""
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _compile(noted: Noted) -> None:
    """Compiles what these launches need and the process does not have, all at once."""
    jobs: dict[str, tuple[Job, Callable[[Any], None]]] = {}

    def take(key: str, job: Job, keep: Callable[[Any], None]) -> None:
        jobs[key] = job, keep  # and returns no kernel: for Triton there is none yet

    with triton.AsyncCompileMode(None) as mode:
        mode.submit = take
        for kernel, args, options in noted:
            kernel.warmup(*args, grid=(1,), **options)
    if len(jobs) < 2:
        return
    with ThreadPoolExecutor(2 * len(jobs)) as pool:
        made = [(pool.submit(_make_kernel, job), keep) for job, keep in jobs.values()]
        for job, _ in jobs.values():
            pool.submit(_make_launcher, job)
    for future, keep in made:
        if future.exception() is None:
            keep(future.result())


def _make_kernel(job: Job) -> Any:
    source = inspect.getclosurevars(job).nonlocals["src"]
    parse = source.make_ir

    def parse_alone(*args: Any) -> Any:
        with _parser:
            return parse(*args)

    source.make_ir = parse_alone
    return job()


def _make_launcher(job: Job) -> None:
    """Leaves on disk what starts the kernel, where Triton compiles that from C (3.6).

    It goes on to properties of the kernel, which are not known yet, and fails; no matter.
    """
    known = inspect.getclosurevars(job).nonlocals
    triton.runtime.driver.active.launcher_cls(known["src"], known["options"])
