"""From automata to exact linear RNNs, and from trained ones back to their eigenvalues.

    machine -> one-layer form or cascade -> Program (numpy, named) -> CompiledRNN (torch)

Every stage runs, and every stage is checked against the machine. Only the last one needs torch, so
the names that have to do with it are imported when they are first asked for.
"""

from typing import TYPE_CHECKING

from statetrack._lazy import lazily
from statetrack.compiler.arrays import StageArrays as StageArrays
from statetrack.compiler.arrays import arrays_of as arrays_of
from statetrack.compiler.driver import METHODS as METHODS
from statetrack.compiler.driver import Candidate as Candidate
from statetrack.compiler.driver import compile_program as compile_program
from statetrack.compiler.explain import Explanation as Explanation
from statetrack.compiler.explain import explain as explain
from statetrack.compiler.export import save_numpy as save_numpy
from statetrack.compiler.export import save_onnx as save_onnx
from statetrack.compiler.layout import Cost as Cost
from statetrack.compiler.layout import cost_of as cost_of
from statetrack.compiler.program import Program as Program
from statetrack.compiler.program import Trace as Trace
from statetrack.compiler.program_json import json_of_program as json_of_program
from statetrack.compiler.program_json import program_of_json as program_of_json
from statetrack.compiler.rules import Verdict as Verdict

if TYPE_CHECKING:
    from statetrack.analysis.audit import audit as audit
    from statetrack.compiler.checks import Check as Check
    from statetrack.compiler.checks import Proof as Proof
    from statetrack.compiler.checks import check as check
    from statetrack.compiler.checks import prove as prove
    from statetrack.compiler.network import CompiledRNN as CompiledRNN
    from statetrack.compiler.network import Plan as Plan
    from statetrack.compiler.network import compile as compile
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "audit": "statetrack.analysis.audit",
            **dict.fromkeys(("Check", "Proof", "check", "prove"), "statetrack.compiler.checks"),
            **dict.fromkeys(("CompiledRNN", "Plan", "compile"), "statetrack.compiler.network"),
        },
    )
