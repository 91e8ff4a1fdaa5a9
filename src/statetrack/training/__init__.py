"""Training: a config, one loop, in memory or in a run folder.

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
from statetrack.training.engine import Engine as Engine
from statetrack.training.engine import NonFiniteLoss as NonFiniteLoss
from statetrack.training.engine import train as train
from statetrack.training.run import run as run
from statetrack.training.run import run_together as run_together
