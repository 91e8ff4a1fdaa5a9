"""The GPU kernels of `dplr`; `choose` says which of them run."""

from statetrack.ops.dplr.triton.choose import dplr as dplr
