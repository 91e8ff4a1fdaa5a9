"""DeltaNet: A(x) = I - β k kᵀ with the eigenvalue 1 - β in [low, 1]."""

from statetrack import ops
from statetrack.layers._delta import DeltaFamily
from statetrack.layers.placement import Device, Dtype, placed

__all__ = ["DeltaNet"]


class DeltaNet(DeltaFamily):
    """The delta rule as a layer: H_t = (I - β k kᵀ) H_{t-1} + β k vᵀ, y = Hᵀ q / √dim.

    q, k, v are projections of x through a short convolution and SiLU, q and k of unit norm per
    head; β = (1 - low)·σ(W x), one number per head, so the one eigenvalue that is not 1 lies in
    [low, 1]. With low = -1 a head can reflect and so track parity; with low = 0 it can only forget.
    Each head's output is RMS-normalised before the last projection.

    `conv_size=0` leaves the convolution out; `qk_silu=False` leaves q and k without SiLU (the
    paper's group experiments do both). A head's state H is [head_dim, value_dim]; left out,
    `head_dim` is d_model / num_heads and `value_dim` is `head_dim`. With `num_value_heads` more
    heads write than have keys, and neighbours share q and k. `output_gate` multiplies the
    normalised output by SiLU(W x). `qk_eps` makes q and k x / √(‖x‖² + qk_eps); checkpoints of
    other libraries were trained with 1e-6.

    With `learn_range` each head begins at the range [0, 1] and learns how far it opens towards
    [low, 1]: a pretrained model can so be opened without changing what it says.

    With `beta_stretch` = e > 0 it is β = (1 - low)·clip((1 + 2e)·σ(W x) - e, 0, 1), which reaches
    its ends at finite weights: exact reflections for low = -1, and tokens that leave the state as
    it is. A β at an end has no gradient.

    β begins in the middle of its range, with low = -1 at 1, where a write wipes out what was stored
    under its key. `beta_start=0.5` begins where low = 0 does, and can reach as far.

    Yang et al. 2024 (arXiv:2406.06484), with the range of arXiv:2411.12537.

    >>> import torch
    >>> layer = DeltaNet(32, num_heads=2, eigen_range=(-1.0, 1.0))
    >>> y, state = layer(torch.randn(1, 5, 32))
    >>> y.shape, layer.state_size
    (torch.Size([1, 5, 32]), 800)
    """

    @placed
    def __init__(
        self,
        d_model: int,
        num_heads: int = 4,
        *,
        eigen_range: tuple[float, float] = (-1.0, 1.0),
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_value_heads: int | None = None,
        output_gate: bool = False,
        conv_size: int = 4,
        qk_silu: bool = True,
        qk_eps: float = 0.0,
        norm_eps: float = 1e-6,
        learn_range: bool = False,
        beta_stretch: float = 0.0,
        beta_start: float | None = None,
        backend: ops.Backend = "auto",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(
            d_model,
            num_heads,
            eigen_range=eigen_range,
            head_dim=head_dim,
            value_dim=value_dim,
            num_value_heads=num_value_heads,
            num_householders=1,
            forget_gate=False,
            output_gate=output_gate,
            conv_size=conv_size,
            qk_silu=qk_silu,
            qk_eps=qk_eps,
            norm_eps=norm_eps,
            learn_range=learn_range,
            beta_stretch=beta_stretch,
            beta_start=beta_start,
            backend=backend,
        )
