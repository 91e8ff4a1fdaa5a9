"""Many runs: in processes here or on a cluster, with progress.

`many` decides what is left to do and follows it to its end. A launcher trains it: `local`, `ray`,
`slurm`; a new one is a file beside them and a line in `many.LAUNCHERS`.
"""

from statetrack.sweep.many import Sweep as Sweep
from statetrack.sweep.many import run_many as run_many
from statetrack.sweep.progress import Progress as Progress
