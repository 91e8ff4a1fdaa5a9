"""The delta rule on a GPU: choose.py says which kernels run, the other files are the kernels."""

from statetrack.ops.delta.triton.choose import delta_product as delta_product
