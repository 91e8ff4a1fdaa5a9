"""`diagonal_scan` in plain tensor code: a two-level scan, and the same scan backwards in time."""

import torch
from torch import Tensor

from statetrack._typing import Inexact
from statetrack.ops._register import differentiable_op
from statetrack.ops._torch._two_level import two_level_scan

__all__ = ["diagonal_scan"]


def diagonal_scan(
    decay: Inexact[Tensor, "batch time *dim"],
    inputs: Inexact[Tensor, "batch time *dim"],
    initial_state: Inexact[Tensor, "batch *dim"] | None,
) -> tuple[Inexact[Tensor, "batch time *dim"], Inexact[Tensor, "batch *dim"]]:
    """h_t = a_t ∘ h_{t-1} + x_t, real or complex, all of one dtype; returns every h_t, the last."""
    start = torch.zeros_like(inputs[:, 0]) if initial_state is None else initial_state
    states, final_state = _diagonal_scan(decay, inputs, start)
    return states, final_state


def _scan(decay: Tensor, inputs: Tensor, start: Tensor, out: Tensor, reverse: bool) -> None:
    two_level_scan(
        decay,
        inputs,
        start,
        out,
        multiply=torch.mul,
        multiply_add=torch.addcmul,
        reverse=reverse,
    )


def _forward(decay: Tensor, inputs: Tensor, start: Tensor) -> tuple[Tensor, ...]:
    states = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    _scan(decay, inputs, start, states, False)
    return states, states[:, -1].clone()


def _backward(
    decay: Tensor,
    inputs: Tensor,
    start: Tensor,
    states: Tensor,
    final_state: Tensor,
    d_states: Tensor,
    d_final: Tensor,
) -> tuple[Tensor, ...]:
    """g_t = dh_t + a*_{t+1} g_{t+1} is the gradient of x_t; that of a_t is g_t h*_{t-1}."""
    g = torch.empty_like(states)
    g[:, -1] = d_states[:, -1] + d_final
    _scan(decay[:, 1:].conj_physical(), d_states[:, :-1], g[:, -1].clone(), g[:, :-1], True)
    d_decay = torch.empty_like(g)
    d_decay[:, 0] = g[:, 0] * start.conj_physical()
    torch.mul(g[:, 1:], states[:, :-1].conj_physical(), out=d_decay[:, 1:])
    d_start = torch.mul(decay[:, 0].conj_physical(), g[:, 0], out=torch.empty_like(g[:, 0]))
    return d_decay, g, d_start


def forward_fake(decay: Tensor, inputs: Tensor, start: Tensor) -> tuple[Tensor, ...]:
    states = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    return states, torch.empty_like(states[:, 0])


def backward_fake(decay: Tensor, inputs: Tensor, start: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
    full = torch.empty_like(inputs, memory_format=torch.contiguous_format)
    return full, torch.empty_like(full), torch.empty_like(full[:, 0])


SCHEMA = "(Tensor decay, Tensor inputs, Tensor start) -> (Tensor, Tensor)"
BACKWARD_SCHEMA = (
    "(Tensor decay, Tensor inputs, Tensor start, Tensor states, Tensor final_state, "
    "Tensor d_states, Tensor d_final) -> (Tensor, Tensor, Tensor)"
)

_diagonal_scan = differentiable_op(
    "diagonal_scan",
    schema=SCHEMA,
    forward=_forward,
    forward_fake=forward_fake,
    backward_schema=BACKWARD_SCHEMA,
    backward=_backward,
    backward_fake=backward_fake,
    num_outputs=2,
)
