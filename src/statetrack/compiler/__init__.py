"""From automata to exact linear RNNs, and from trained ones back to their eigenvalues.

    machine -> one-layer form or cascade -> Program (numpy, named) -> CompiledRNN (torch)

Every stage runs, and every stage is checked against the machine.
"""

from statetrack.compiler.check import Check as Check
from statetrack.compiler.check import Proof as Proof
from statetrack.compiler.check import check as check
from statetrack.compiler.check import prove as prove
from statetrack.compiler.driver import METHODS as METHODS
from statetrack.compiler.driver import compile as compile
from statetrack.compiler.driver import compile_program as compile_program
from statetrack.compiler.explain import Explanation as Explanation
from statetrack.compiler.explain import explain as explain
from statetrack.compiler.network import CompiledRNN as CompiledRNN
from statetrack.compiler.network import Plan as Plan
from statetrack.compiler.program import Cost as Cost
from statetrack.compiler.program import Program as Program
from statetrack.compiler.program import Trace as Trace
from statetrack.compiler.rules import Verdict as Verdict
