"""One way to make a differentiable op out of a forward and a backward function.

Both functions work on plain tensors, know nothing of autograd, and become `torch.library` custom
ops. That gives, once for all ops and backends: fake tensors and `torch.compile(fullgraph=True)`,
`torch.func.vmap` by folding the new axis into the leading one, and precision that an autocast
region around the call cannot change. Where nobody needs an op to hold on to, on plain tensors in
eager mode, the two functions are called directly, which spares the host the dispatch.

Every tensor argument and result has a leading batch axis. Parameters that a whole batch shares
(A of the selective scan, R of the sLSTM) carry a leading group axis G instead, with G dividing the
batch: batch row b uses group b // (batch / G). Folding then treats all of them alike.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

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
    """Registers `statetrack::{name}` and `statetrack::{name}_backward`; the result calls the first.

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
    forward, backward = _exact(forward), _exact(backward)
    forward_op = _custom_op(name, schema, forward, forward_fake)
    backward_op = _custom_op(f"{name}_backward", backward_schema, backward, backward_fake)
    arguments = forward_op._opoverload._schema.arguments
    tensors = [i for i, argument in enumerate(arguments) if _takes_tensor(argument)]
    constants = [i for i in range(len(arguments)) if i not in tensors]
    may_be_none = [
        isinstance(argument.type, torch.OptionalType)
        for argument in backward_op._opoverload._schema.arguments[-num_outputs:]
    ]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*(inputs[i] for i in tensors), *output)
        ctx.constants = [inputs[i] for i in constants]
        ctx.mark_non_differentiable(*output[num_outputs:])
        ctx.set_materialize_grads(False)  # none are wanted for what was only saved

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: a checkpoint computes them again for whoever asks
        given, results = saved[: len(tensors)], saved[len(tensors) :]
        inputs: list[Any] = [None] * len(arguments)
        for i, value in zip([*tensors, *constants], [*given, *ctx.constants], strict=True):
            inputs[i] = value
        output_grads = [
            torch.zeros_like(output) if grad is None and not optional else grad
            for output, grad, optional in zip(results, grads, may_be_none, strict=False)
        ]
        once = not torch.is_grad_enabled()  # no derivative of this is wanted
        run = backward if once and _plain([*given, *grads]) else backward_op
        found: list[Tensor | None] = [None] * len(arguments)
        for i, grad in zip(tensors, run(*inputs, *results, *output_grads), strict=True):
            if inputs[i] is not None and not _integral(inputs[i]):
                found[i] = grad
        return tuple(found)

    def refuse(ctx: Any, *grads: Tensor | None) -> None:
        raise RuntimeError(f"{name} has no second derivative; backend='reference' has")

    forward_op.register_autograd(run_backward, setup_context=setup_context)
    backward_op.register_autograd(refuse)

    def run_forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = forward(*inputs)
        setup_context(ctx, inputs, output)
        return output

    direct: Any = type(  # the op without its dispatch, under its name to a profiler
        name,
        (torch.autograd.Function,),
        {"forward": staticmethod(run_forward), "backward": staticmethod(run_backward)},
    )

    def call(*inputs: Any) -> tuple[Tensor, ...]:
        return direct.apply(*inputs) if _plain(inputs) else forward_op(*inputs)

    return call


def _plain(values: Iterable[Any]) -> bool:
    """Whether nothing but autograd sees what is done to these values.

    Not so under a compiler, for fake tensors and other subclasses, inside `torch.func`, for batches
    of gradients, and where a mode is told of every op, as by tracers and counters.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and all(
            type(x) in (Tensor, Parameter) and not torch._C._functorch.is_legacy_batchedtensor(x)
            for x in values
            if isinstance(x, Tensor)
        )
    )


def _exact(function: Forward) -> Forward:
    """`function` outside of any autocast region, with contiguous results."""

    def exact(*args: Any) -> tuple[Tensor, ...]:
        device = next(value.device.type for value in args if isinstance(value, Tensor))
        if not torch.is_autocast_enabled(device):
            return tuple(result.contiguous() for result in function(*args))
        with torch.autocast(device, enabled=False):
            return tuple(result.contiguous() for result in function(*args))

    return exact


def _custom_op(name: str, schema: str, function: Forward, fake: Forward) -> Any:
    def exact_fake(*args: Any) -> tuple[Tensor, ...]:
        return tuple(result.new_empty(result.shape) for result in fake(*args))

    op = torch.library.custom_op(f"statetrack::{name}", function, mutates_args=(), schema=schema)
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


def _takes_tensor(argument: torch.Argument) -> bool:
    kind = argument.type
    if isinstance(kind, torch.OptionalType):
        kind = kind.getElementType()
    return isinstance(kind, torch.TensorType)


def _integral(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())


def _fold_in(value: Tensor, dim: int | None, runs: int) -> Tensor:
    value = value.expand(runs, *value.shape) if dim is None else value.movedim(dim, 0)
    return value.flatten(0, 1)
