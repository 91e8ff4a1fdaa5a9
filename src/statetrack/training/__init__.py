"""Training: a config, one loop, records and checkpoints on disk, many runs at once.

config = RunConfig(task="parity", model=paper_config("DeltaNet", vocab_size=3), steps=1000,
                   batch=64)
for record in train(config): ...           # in memory
finished = run(config, "runs")             # on disk: skipped, resumed or started
finished.last("scaled_accuracy"), finished.curve()
"""

from statetrack.training.config import EvaluationConfig as EvaluationConfig
from statetrack.training.config import OptimizerConfig as OptimizerConfig
from statetrack.training.config import RunConfig as RunConfig
from statetrack.training.config import ScheduleConfig as ScheduleConfig
from statetrack.training.loop import NonFiniteLoss as NonFiniteLoss
from statetrack.training.loop import Session as Session
from statetrack.training.loop import train as train
from statetrack.training.records import Record as Record
from statetrack.training.records import read_records as read_records
from statetrack.training.runs import Run as Run
from statetrack.training.runs import find_runs as find_runs
from statetrack.training.runs import run as run
from statetrack.training.runs import run_together as run_together
from statetrack.training.sweep import Sweep as Sweep
from statetrack.training.sweep import run_many as run_many
