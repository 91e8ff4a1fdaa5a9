"""The recurrences H_t = A(x_t) H_{t-1} + B(x_t), as functions on tensors.

No modules, no configs, any eigenvalue. Shapes are [batch, time, heads, dim]; every op takes and
returns its state, so that a sequence cut in two gives the same answer as one run whole, and a
sequence of length one is a decoding step.

A folder each: reference.py is the definition, slow on purpose. Other backends are judged against
it in float64, in the forward pass and in every gradient.
"""

from statetrack.ops._checks import check_values as check_values
from statetrack.ops._dispatch import Backend as Backend
from statetrack.ops._dispatch import BackendChoice as BackendChoice
from statetrack.ops._dispatch import explain_backend as explain_backend
from statetrack.ops._record import record_backends as record_backends
from statetrack.ops.context import context_parallel as context_parallel
from statetrack.ops.convolution import short_convolution as short_convolution
from statetrack.ops.delta import delta_product as delta_product
from statetrack.ops.delta import delta_rule as delta_rule
from statetrack.ops.delta.reference import unit_vector as unit_vector
from statetrack.ops.dense import matrix_scan as matrix_scan
from statetrack.ops.diagonal import diagonal_scan as diagonal_scan
from statetrack.ops.dplr import dplr as dplr
from statetrack.ops.linear_attention import linear_attention as linear_attention
from statetrack.ops.packing import CuSeqlens as CuSeqlens
from statetrack.ops.packing import Packing as Packing
from statetrack.ops.packing import packing_of as packing_of
from statetrack.ops.selective import selective_scan as selective_scan
from statetrack.ops.slstm import slstm_scan as slstm_scan
