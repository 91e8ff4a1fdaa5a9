"""`matrix_scan` in plain tensor code: a two-level scan, or for large matrices a loop over time.

The two-level scan multiplies matrices where the loop multiplies a matrix with the state, n/columns
times the work. On a CPU that pays for small matrices only; on a GPU, where each step of the loop
waits for the one before, it pays far longer. Either way autograd sees one node.
"""

import torch
from torch import Tensor

from statetrack._typing import Float
from statetrack.ops._register import differentiable_op
from statetrack.ops._torch._two_level import two_level_scan

__all__ = ["matrix_scan"]

LARGEST_CHUNKED = {"cpu": 16, "cuda": 128}  # n up to which products of transitions are formed


def matrix_scan(
    A: Float[Tensor, "batch time n n"],
    initial_state: Float[Tensor, "batch n columns"],
    inputs: Float[Tensor, "batch time n columns"] | None,
) -> tuple[Float[Tensor, "batch time n columns"], Float[Tensor, "batch n columns"]]:
    """H_t = A_t H_{t-1} + B_t for any matrices; returns every H_t and the last."""
    states, final_state = _matrix_scan(A, initial_state, inputs)
    return states, final_state


def _multiply_add(x: Tensor, A: Tensor, h: Tensor) -> Tensor:
    return torch.matmul(A, h).add_(x)


def _scan(A: Tensor, inputs: Tensor | None, start: Tensor, out: Tensor, reverse: bool) -> None:
    two_level_scan(
        A,
        inputs,
        start,
        out,
        multiply=torch.matmul,
        multiply_add=_multiply_add,
        reverse=reverse,
        chunked=A.shape[-1] <= LARGEST_CHUNKED.get(A.device.type, 128),
    )


def _forward(A: Tensor, start: Tensor, inputs: Tensor | None) -> tuple[Tensor, ...]:
    states = start.new_empty(*A.shape[:3], start.shape[2])
    _scan(A, inputs, start, states, False)
    return states, states[:, -1].clone()


def _backward(
    A: Tensor,
    start: Tensor,
    inputs: Tensor | None,
    states: Tensor,
    final_state: Tensor,
    d_states: Tensor,
    d_final: Tensor,
) -> tuple[Tensor, ...]:
    """G_t = dH_t + A_{t+1}ᵀ G_{t+1} is the gradient of B_t; that of A_t is G_t H_{t-1}ᵀ."""
    g = torch.empty_like(states)
    g[:, -1] = d_states[:, -1] + d_final
    _scan(A[:, 1:].mT, d_states[:, :-1], g[:, -1].clone(), g[:, :-1], True)
    d_A = A.new_empty(A.shape)
    torch.matmul(g[:, 0], start.mT, out=d_A[:, 0])
    d_A[:, 1:] = torch.matmul(g[:, 1:], states[:, :-1].mT)
    d_start = torch.matmul(A[:, 0].mT, g[:, 0])
    return d_A, d_start, g.new_empty(0) if inputs is None else g


def _forward_fake(A: Tensor, start: Tensor, inputs: Tensor | None) -> tuple[Tensor, ...]:
    return start.new_empty(*A.shape[:3], start.shape[2]), start.new_empty(start.shape)


def _backward_fake(
    A: Tensor, start: Tensor, inputs: Tensor | None, states: Tensor, *_: Tensor
) -> tuple[Tensor, ...]:
    d_inputs = states.new_empty(0 if inputs is None else states.shape)
    return A.new_empty(A.shape), start.new_empty(start.shape), d_inputs


_matrix_scan = differentiable_op(
    "matrix_scan",
    schema="(Tensor A, Tensor start, Tensor? inputs) -> (Tensor, Tensor)",
    forward=_forward,
    forward_fake=_forward_fake,
    backward_schema="(Tensor A, Tensor start, Tensor? inputs, Tensor states, Tensor final_state, "
    "Tensor d_states, Tensor d_final) -> (Tensor, Tensor, Tensor)",
    backward=_backward,
    backward_fake=_backward_fake,
    num_outputs=2,
)
