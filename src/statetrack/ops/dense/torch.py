"""`matrix_scan` in plain tensor code: a two-level scan, or for large matrices a loop over time.

The two-level scan multiplies matrices where the loop multiplies a matrix with the state, n/columns
times the work. On a CPU that pays for small matrices only; on a GPU, where each step of the loop
waits for the one before, it pays far longer. Either way autograd sees one node.
"""

import torch
from torch import Tensor

from statetrack.ops._register import differentiable_op
from statetrack.ops._two_level import two_level_scan
from statetrack.ops.dense.spec import SPEC, Inputs

__all__ = ["matrix_scan"]

LARGEST_CHUNKED = {"cpu": 16, "cuda": 128}  # n up to which products of transitions are formed


def matrix_scan(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """H_t = A_t H_{t-1} + B_t for any matrices; returns every H_t and the last."""
    states, final_state = _op(*inputs)
    return states, final_state


def _multiply_add(x: Tensor, A: Tensor, h: Tensor) -> Tensor:
    return torch.matmul(A, h).add_(x)


def _scan(A: Tensor, writes: Tensor | None, start: Tensor, out: Tensor, reverse: bool) -> None:
    two_level_scan(
        A,
        writes,
        start,
        out,
        multiply=torch.matmul,
        multiply_add=_multiply_add,
        reverse=reverse,
        chunked=A.shape[-1] <= LARGEST_CHUNKED.get(A.device.type, 128),
    )


def _forward(inputs: Inputs) -> tuple[Tensor, ...]:
    A, start, writes = inputs
    states = start.new_empty(*A.shape[:3], start.shape[2])
    _scan(A, writes, start, states, False)
    return states, states[:, -1].clone()


def _backward(
    inputs: Inputs, states: Tensor, final_state: Tensor, d_states: Tensor, d_final: Tensor
) -> tuple[Tensor, ...]:
    """G_t = dH_t + A_{t+1}ᵀ G_{t+1} is the gradient of B_t; that of A_t is G_t H_{t-1}ᵀ."""
    A, start, writes = inputs
    g = torch.empty_like(states)
    g[:, -1] = d_states[:, -1] + d_final
    _scan(A[:, 1:].mT, d_states[:, :-1], g[:, -1].clone(), g[:, :-1], True)
    d_A = A.new_empty(A.shape)
    torch.matmul(g[:, 0], start.mT, out=d_A[:, 0])
    d_A[:, 1:] = torch.matmul(g[:, 1:], states[:, :-1].mT)
    d_start = torch.matmul(A[:, 0].mT, g[:, 0])
    return d_A, d_start, g.new_empty(0) if writes is None else g


_op = differentiable_op(SPEC, "torch", forward=_forward, backward=_backward)
