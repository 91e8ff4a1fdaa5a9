"""Linear attention on a GPU: choose.py says which kernels run, the other files are the kernels."""

from statetrack.ops.linear_attention.triton.choose import linear_attention as linear_attention
