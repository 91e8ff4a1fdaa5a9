"""One way to make a differentiable op out of a forward and a backward function.

Both functions work on plain tensors, know nothing of autograd, and become `torch.library` custom
ops. That gives, once for all ops and backends: fake tensors and `torch.compile(fullgraph=True)`,
`torch.func.vmap` by folding the new axis into the leading one, and precision that an autocast
region around the call cannot change. Where nobody needs an op to hold on to, on plain tensors in
eager mode, the two functions are called directly, which spares the host the dispatch; and so they
are inside of `torch.func`, whose `grad` and `jacrev` cannot look into a custom op. Second and
forward derivatives are those of the reference alone, and refused here.

Every tensor argument and result has a leading batch axis. Parameters that a whole batch shares
(A of the selective scan, R of the sLSTM) carry a leading group axis G instead, with G dividing the
batch: batch row b uses group b // (batch / G). Folding then treats all of them alike.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from statetrack.ops._record import note
from statetrack.ops._spec import OpSpec
from statetrack.ops.packing import Packing, by_length, in_a_row

__all__ = [
    "compute_dtype",
    "differentiable_op",
    "empty_grads",
    "packed_op",
    "per_group",
    "per_row",
    "without_autocast",
]

Forward = Callable[..., tuple[Tensor, ...]]


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The precision of the maths and of the state: float32, or what any input needs beyond it."""
    found = (tensor.dtype for tensor in tensors if tensor is not None)
    return reduce(torch.promote_types, found, torch.float32)


def empty_grads(first: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """A place for the gradient of every tensor; without numbers for None and for integers.

    What is neither a tensor nor None, such as a number, has no gradient and no place.
    """
    return tuple(
        first.new_empty(0) if x is None or _integral(x) else x.new_empty(x.shape)
        for x in (first, *others)
        if x is None or isinstance(x, Tensor)
    )


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Inside it autocast changes nothing on this kind of device; some have none, such as meta."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def per_row(x: Tensor, batch: int) -> Tensor:
    """[groups, ...] -> [batch, ...]: what each row of the batch uses."""
    groups = x.shape[0]
    return x.expand(batch, *x.shape[1:]) if groups == 1 else x.repeat_interleave(batch // groups, 0)


def per_group(x: Tensor, groups: int) -> Tensor:
    """[batch, ...] -> [groups, ...]: the sum over the rows of each group."""
    return x.unflatten(0, (groups, x.shape[0] // groups)).sum(1)


def differentiable_op(
    spec: OpSpec,
    backend: str,
    *,
    forward: Forward,
    backward: Forward,
    empty: Forward | None = None,
    options: str = "",
    saved: tuple[str, ...] = (),
    outputs: tuple[str, ...] | None = None,
    optional_grads: tuple[str, ...] = (),
    variant: str = "",
) -> Forward:
    """Registers an op and its backward with `torch.library`; the result calls the first.

    They are `statetrack::{spec.name}_{backend}{variant}` and the same with `_backward`. The result
    takes the inputs one by one, and the options after them. The two functions are

    forward(inputs, *options) -> (*outputs, *saved)
    backward(inputs, *options, *outputs, *saved, *output_grads) -> one gradient for each tensor of
        inputs and options, in order: an empty one for None and for integers, which is dropped.

    with inputs a `spec.inputs`. Results are made contiguous; none may share memory with an
    argument.

    Args:
        empty: empty(inputs, *options), the results of `forward` without numbers. Left out, they
            are `spec.empty(inputs)`.
        options: further arguments of this backend, as `torch.library` writes them: "bool save".
        saved: the names of what is kept for the backward.
        outputs: the names of the results where they are not `spec.outputs`.
        optional_grads: the outputs whose gradient is None if nobody used them. For others it is
            zeros.
        variant: tells apart two ops of one backend.
    """
    outputs = spec.outputs if outputs is None else outputs
    num_outputs = len(outputs)
    name = f"{spec.name}_{backend}{variant}"
    arguments = f"{spec.schema}, {options}" if options else spec.schema
    results = [f"Tensor {result}" for result in (*outputs, *saved)]
    grads = [f"Tensor{'?' * (result in optional_grads)} d_{result}" for result in outputs]
    forward_schema = f"({arguments}) -> ({', '.join(['Tensor'] * len(results))})"
    tensors = [i for i, word in enumerate(arguments.split(", ")) if word.startswith("Tensor")]
    constants = [i for i in range(arguments.count(",") + 1) if i not in tensors]
    may_be_none = [result in optional_grads for result in outputs]
    backward_schema = (
        f"({', '.join([arguments, *results, *grads])}) -> ({', '.join(['Tensor'] * len(tensors))})"
    )
    count = len(tensors) + len(constants)

    forward = _exact(spec, forward, backend)
    backward = _exact(spec, backward, backend)
    forward_op = _custom_op(name, forward_schema, forward, _packed(spec, empty or spec.empty))
    backward_op = _custom_op(
        f"{name}_backward", backward_schema, backward, lambda *args: empty_grads(*args[:count])
    )

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*(inputs[i] for i in tensors), *output)
        ctx.constants = [inputs[i] for i in constants]
        ctx.mark_non_differentiable(*output[num_outputs:])
        ctx.set_materialize_grads(False)  # none are wanted for what was only saved

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: a checkpoint computes them again for whoever asks
        given, results = saved[: len(tensors)], saved[len(tensors) :]
        inputs: list[Any] = [None] * count
        for i, value in zip([*tensors, *constants], [*given, *ctx.constants], strict=True):
            inputs[i] = value
        output_grads = [
            torch.zeros_like(output) if grad is None and not optional else grad
            for output, grad, optional in zip(results, grads, may_be_none, strict=False)
        ]
        once = not torch.is_grad_enabled()  # no derivative of this is wanted
        run: Forward = backward_op
        if _unseen([*given, *grads]):
            run = backward_transformed if _differentiated() else backward if once else backward_op
        found: list[Tensor | None] = [None] * count
        for i, grad in zip(tensors, run(*inputs, *results, *output_grads), strict=True):
            if inputs[i] is not None and not _integral(inputs[i]):
                found[i] = grad
        return tuple(found)

    def remember_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    def refuse(ctx: Any, *grads: Tensor | None) -> None:
        raise RuntimeError(f"{name} has no second derivative; backend='reference' has")

    def refuse_forward(ctx: Any, *tangents: Tensor | None) -> None:
        raise RuntimeError(f"{name} has no forward derivative; backend='reference' has")

    forward_op.register_autograd(run_backward, setup_context=setup_context)
    backward_op.register_autograd(refuse)

    def run_forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = forward(*inputs)
        setup_context(ctx, inputs, output)
        return output

    # the op without its dispatch, under its name to a profiler
    direct = _function(name, forward=run_forward, backward=run_backward, jvp=refuse_forward)
    # and for torch.func, which cannot differentiate a custom op: its forward derivatives are zeros
    transformed = _function(
        name,
        forward=forward,
        setup_context=setup_context,
        backward=run_backward,
        jvp=refuse_forward,
        vmap=_folding(lambda *args: transformed(*args)),
    )
    backward_transformed = _function(
        f"{name}_backward",
        forward=backward,
        setup_context=remember_nothing,
        backward=refuse,
        jvp=refuse,
        vmap=_folding(lambda *args: backward_transformed(*args)),
    )

    def call(*inputs: Any) -> tuple[Tensor, ...]:
        if not _unseen(inputs):
            return forward_op(*inputs)
        return transformed(*inputs) if _differentiated() else direct(*inputs)

    return call


def packed_op(spec: OpSpec, backend: str, function: Callable[[Any], Any]) -> Forward:
    """`function` for packed sequences as one op, which a compiler does not look into.

    The result takes the inputs one by one, and the offsets and the length of the longest sequence
    after them. Its backward runs the forward once more.
    """
    run = by_length(function, spec.sequences, spec.blank)

    def forward(inputs: Any, offsets: Tensor, longest: int) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return run(inputs, Packing(offsets, longest))

    def empty(inputs: Any, offsets: Tensor, longest: int) -> tuple[Tensor, ...]:
        return spec.empty(inputs, in_a_row(offsets))

    def backward(inputs: Any, offsets: Tensor, longest: int, *others: Tensor) -> tuple[Tensor, ...]:
        _, _, *grads = others
        with _autograd_inside_an_op(), torch.enable_grad():
            given = [x.detach() if isinstance(x, Tensor) else x for x in inputs]
            leaves = [x.requires_grad_() for x in given if isinstance(x, Tensor)]
            results = run(spec.inputs._make(given), Packing(offsets, longest))
            found = iter(torch.autograd.grad(results, leaves, grads))
        maybe = [x for x in inputs if x is None or isinstance(x, Tensor)]
        none = partial(offsets.new_empty, 0)  # results may not be the same tensor
        return *(none() if x is None else next(found) for x in maybe), none()

    return differentiable_op(
        spec,
        backend,
        variant="_packed",
        forward=forward,
        backward=backward,
        empty=empty,
        options="Tensor offsets, int longest",
    )


def _autograd_inside_an_op() -> Any:
    """Switches on what is off inside of an op, where autograd has been left behind."""
    keys = torch._C.DispatchKey
    return torch._C._SetExcludeDispatchKeyGuard(keys.AutogradFunctionality, False)


def _function(name: str, **parts: Callable[..., Any]) -> Forward:
    """An `autograd.Function` of these parts, to be called."""
    made: Any = type(
        name,
        (torch.autograd.Function,),
        {part: staticmethod(does) for part, does in parts.items()},
    )
    apply: Forward = made.apply
    return apply


def _differentiated() -> bool:
    """Whether this is the inside of a transform of `torch.func` other than `torch.vmap`."""
    inside = torch._C._functorch.get_interpreter_stack() or ()
    return any(one.key() != torch._C._functorch.TransformType.Vmap for one in inside)


def _unseen(values: Iterable[Any]) -> bool:
    """Whether only autograd and derivatives of `torch.func` see what is done to these values.

    Not so under a compiler, under `torch.vmap` alone, for tensors without numbers and subclasses,
    for batches of gradients, and where a mode is told of every op, as by tracers and counters.
    """
    return (
        not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and (torch._C._functorch.peek_interpreter_stack() is None or _differentiated())
        and all(
            type(x) in (Tensor, Parameter)
            and not x.is_meta
            and not torch._C._functorch.is_legacy_batchedtensor(x)
            for x in values
            if isinstance(x, Tensor)
        )
    )


def _packed(spec: OpSpec, function: Forward) -> Forward:
    """`function`, which takes a `spec.inputs`, of the inputs one by one."""
    make, count = spec.inputs._make, len(spec.inputs._fields)

    def packed(*args: Any) -> tuple[Tensor, ...]:
        return function(make(args[:count]), *args[count:])

    return packed


def _exact(spec: OpSpec, function: Forward, backend: str) -> Forward:
    """`function` of inputs one by one, outside of autocast, with contiguous results."""
    op, make, count = spec.name, spec.inputs._make, len(spec.inputs._fields)

    def exact(*args: Any) -> tuple[Tensor, ...]:
        note(op, backend)
        inputs, device = make(args[:count]), args[0].device.type
        if not torch.is_autocast_enabled(device):
            return tuple([result.contiguous() for result in function(inputs, *args[count:])])
        with without_autocast(device):
            return tuple([result.contiguous() for result in function(inputs, *args[count:])])

    return exact


def _custom_op(name: str, schema: str, function: Forward, fake: Forward) -> Any:
    def exact_fake(*args: Any) -> tuple[Tensor, ...]:
        return tuple(result.new_empty(result.shape) for result in fake(*args))

    op = torch.library.custom_op(f"statetrack::{name}", function, mutates_args=(), schema=schema)
    op.register_fake(exact_fake)
    op.register_vmap(_folding(op))
    return op


def _folding(op: Forward) -> Callable[..., Any]:
    """How `op` is mapped: the new axis goes into the leading one."""

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

    return fold


def _integral(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex())


def _fold_in(value: Tensor, dim: int | None, runs: int) -> Tensor:
    value = value.expand(runs, *value.shape) if dim is None else value.movedim(dim, 0)
    return value.flatten(0, 1)
