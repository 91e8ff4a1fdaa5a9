"""One way to make a differentiable op out of a forward and a backward function.

Both functions work on plain tensors, know nothing of autograd, and become `torch.library` custom
ops. That gives, once for all ops and backends: fake tensors and `torch.compile(fullgraph=True)`,
`torch.func.vmap` by folding the new axis into the leading one, and precision that an autocast
region around the call cannot change.

Every tensor argument and result has a leading batch axis. Parameters that a whole batch shares
(A of the selective scan, R of the sLSTM) carry a leading group axis G instead, with G dividing the
batch: batch row b uses group b // (batch / G). Folding then treats all of them alike.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

__all__ = ["compute_dtype", "differentiable_op", "empty_grads"]

Forward = Callable[..., tuple[Tensor, ...]]


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The precision of the maths and of the state: float32, or what any input needs beyond it."""
    found = (tensor.dtype for tensor in tensors if tensor is not None)
    return reduce(torch.promote_types, found, torch.float32)


def empty_grads(first: Tensor, *others: Tensor | None) -> tuple[Tensor, ...]:
    """A place for the gradient of every input; without numbers for those that are None."""
    return tuple(
        first.new_empty(0) if x is None else x.new_empty(x.shape) for x in (first, *others)
    )


def differentiable_op(
    name: str,
    *,
    schema: str,
    forward: Forward,
    forward_fake: Forward,
    backward_schema: str,
    backward: Forward,
    backward_fake: Forward,
    num_outputs: int,
) -> Forward:
    """Registers `statetrack::{name}` and `statetrack::{name}_backward`; returns the first.

    forward(*inputs) -> (*outputs, *saved): the first `num_outputs` results are the op's, the rest
        is kept for the backward.
    backward(*inputs, *outputs, *saved, *output_grads) -> one gradient per tensor in `inputs`, in
        order. For an optional input that is None, and for integers, it returns an empty tensor,
        which is dropped. The gradient of an output that nobody used is None where the schema has
        `Tensor?` for it, and zeros elsewhere.
    The two `schema` strings are those of `torch.library`; the `_fake` functions return empty
    tensors of the right shape, dtype and device. Results are made contiguous; none may share memory
    with an argument.
    """
    forward_op = _custom_op(name, schema, forward, forward_fake)
    backward_op = _custom_op(f"{name}_backward", backward_schema, backward, backward_fake)
    may_be_none = [
        isinstance(argument.type, torch.OptionalType)
        for argument in backward_op._opoverload._schema.arguments[-num_outputs:]
    ]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.is_tensor = [isinstance(value, Tensor) for value in inputs]
        ctx.wants_grad = [isinstance(value, Tensor) and not _integral(value) for value in inputs]
        ctx.optional_or_tensor = [value is None or isinstance(value, Tensor) for value in inputs]
        ctx.constants = [None if isinstance(value, Tensor) else value for value in inputs]
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(*output[num_outputs:])
        ctx.set_materialize_grads(False)  # none are wanted for what was only saved

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        inputs = [
            saved.pop(0) if is_tensor else constant
            for is_tensor, constant in zip(ctx.is_tensor, ctx.constants, strict=True)
        ]
        output_grads = [
            torch.zeros_like(output) if grad is None and not optional else grad
            for output, grad, optional in zip(saved, grads, may_be_none, strict=False)
        ]
        results = list(backward_op(*inputs, *saved, *output_grads))
        out: list[Tensor | None] = []
        for wants_grad, has_result in zip(ctx.wants_grad, ctx.optional_or_tensor, strict=True):
            grad = results.pop(0) if has_result else None
            out.append(grad if wants_grad else None)
        return tuple(out)

    forward_op.register_autograd(run_backward, setup_context=setup_context)
    return forward_op


def _custom_op(name: str, schema: str, function: Forward, fake: Forward) -> Any:
    def exact(*args: Any) -> tuple[Tensor, ...]:
        device = next(value.device.type for value in args if isinstance(value, Tensor))
        with torch.autocast(device, enabled=False):
            return tuple(result.contiguous() for result in function(*args))

    def exact_fake(*args: Any) -> tuple[Tensor, ...]:
        return tuple(result.new_empty(result.shape) for result in fake(*args))

    op = torch.library.custom_op(f"statetrack::{name}", exact, mutates_args=(), schema=schema)
    op.register_fake(exact_fake)

    def fold(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        runs = info.batch_size
        flat = [
            _fold_in(value, dim, runs) if isinstance(value, Tensor) else value
            for value, dim in zip(args, in_dims, strict=True)
        ]
        results = op(*flat)
        return tuple(r.unflatten(0, (runs, r.shape[0] // runs)) for r in results), (0,) * len(
            results
        )

    op.register_vmap(fold)
    return op


def _integral(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())


def _fold_in(value: Tensor, dim: int | None, runs: int) -> Tensor:
    value = value.expand(runs, *value.shape) if dim is None else value.movedim(dim, 0)
    return value.flatten(0, 1)
