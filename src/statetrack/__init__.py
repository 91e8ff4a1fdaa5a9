"""State tracking with linear RNNs whose transitions reach every eigenvalue in [-1, 1].

statetrack.ops           the recurrences, as functions on tensors
statetrack.layers        drop-in layers: projections, an eigenvalue range, an op
statetrack.models        a block and a tagger built from any of the layers
statetrack.eigenvalues   the range [low, 1] and its maps, in one file
statetrack.automata      finite machines, groups and their decompositions (no torch)
"""

from statetrack.eigenvalues import EigenRange as EigenRange

__version__ = "0.1.0"
