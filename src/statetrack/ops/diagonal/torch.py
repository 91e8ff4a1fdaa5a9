"""`diagonal_scan` in plain tensor code: a two-level scan, and the same scan backwards in time."""

import torch
from torch import Tensor

from statetrack.ops._register import differentiable_op
from statetrack.ops._two_level import two_level_scan
from statetrack.ops.diagonal.spec import SPEC, Inputs, initial

__all__ = ["diagonal_scan"]


def diagonal_scan(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """h_t = a_t ∘ h_{t-1} + x_t, real or complex, all of one dtype; returns every h_t, the last."""
    states, final_state = _op(*inputs)
    return states, final_state


def _scan(decay: Tensor, x: Tensor, start: Tensor, out: Tensor, reverse: bool) -> None:
    two_level_scan(
        decay,
        x,
        start,
        out,
        multiply=torch.mul,
        multiply_add=torch.addcmul,
        reverse=reverse,
    )


def _forward(inputs: Inputs) -> tuple[Tensor, ...]:
    decay, x, _ = inputs
    states = torch.empty_like(x, memory_format=torch.contiguous_format)
    _scan(decay, x, initial(inputs), states, False)
    return states, states[:, -1].clone()


def _backward(
    inputs: Inputs, states: Tensor, final_state: Tensor, d_states: Tensor, d_final: Tensor
) -> tuple[Tensor, ...]:
    """g_t = dh_t + a*_{t+1} g_{t+1} is the gradient of x_t; that of a_t is g_t h*_{t-1}."""
    decay, _, initial_state = inputs
    g = torch.empty_like(states)
    g[:, -1] = d_states[:, -1] + d_final
    _scan(decay[:, 1:].conj_physical(), d_states[:, :-1], g[:, -1].clone(), g[:, :-1], True)
    d_decay = torch.empty_like(g)
    d_decay[:, 0] = g[:, 0] * initial(inputs).conj_physical()
    torch.mul(g[:, 1:], states[:, :-1].conj_physical(), out=d_decay[:, 1:])
    if initial_state is None:
        return d_decay, g, g.new_empty(0)
    d_start = torch.mul(decay[:, 0].conj_physical(), g[:, 0], out=torch.empty_like(g[:, 0]))
    return d_decay, g, d_start


_op = differentiable_op(SPEC, "torch", forward=_forward, backward=_backward)
