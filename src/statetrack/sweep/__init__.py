"""Many runs: in processes here or on a cluster, with progress."""

from statetrack.sweep.processes import Sweep as Sweep
from statetrack.sweep.processes import run_many as run_many
