"""State tracking with linear RNNs whose transitions reach every eigenvalue in [-1, 1].

statetrack.ops           the recurrences, as functions on tensors
statetrack.layers        drop-in layers: projections, an eigenvalue range, an op
statetrack.models        taggers and language models built from any of the layers
statetrack.hf            the language models as models of transformers
statetrack.eigenvalues   the range [low, 1] and its maps, in one file
statetrack.automata      finite machines, groups and their decompositions (no torch)
statetrack.compiler      from automata to exact linear RNNs; explain (no torch) and compile
statetrack.playground    a page in which machines and their exact networks run (no torch)
statetrack.tasks         what to learn: sequences with labels, masks and chance levels
statetrack.runs          a run on disk: folder, records, checkpoints
statetrack.training      a config, one run, many runs in one step
statetrack.lm            language models in use: text, generation, loss by position
statetrack.sweep         lists of runs, in processes or on a cluster
statetrack.analysis      what a trained model does: eigenvalues, theorems, horizons
statetrack.experiments   the paper's figures and tables as lists of runs
statetrack.report        records into tables, plots and pages

Each is imported when it is first asked for, so that `import statetrack` costs nothing.
"""

from typing import TYPE_CHECKING

from statetrack._lazy import lazily

__version__ = "0.1.0"

if TYPE_CHECKING:
    from statetrack import analysis as analysis
    from statetrack import automata as automata
    from statetrack import compiler as compiler
    from statetrack import config as config
    from statetrack import eigenvalues as eigenvalues
    from statetrack import experiments as experiments
    from statetrack import hf as hf
    from statetrack import layers as layers
    from statetrack import lm as lm
    from statetrack import models as models
    from statetrack import ops as ops
    from statetrack import playground as playground
    from statetrack import report as report
    from statetrack import runs as runs
    from statetrack import sweep as sweep
    from statetrack import tasks as tasks
    from statetrack import training as training
    from statetrack.eigenvalues import EigenRange as EigenRange
else:
    __getattr__, __dir__ = lazily(__name__, {"EigenRange": "statetrack.eigenvalues"})
