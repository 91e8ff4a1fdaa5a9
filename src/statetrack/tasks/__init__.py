"""What to learn: samplers with labels, masks and chance levels.

    task = tasks.get("parity")
    stream = tasks.generator(task, "train", seed=0)
    batch = task.sample(64, 40, generator=stream)      # batch.tokens, batch.targets, batch.mask
    held_out = tasks.evaluation_set(task)              # the same for every model

`targets[b, t]` is what the model should say after reading `tokens[b, :t+1]`; `mask` is True where
that counts. `available()` lists the names. Groups, known machines, JSON tables and regular
expressions are tasks too (`a4_x_z5`, `dyck_2_depth_3`, `my.json`, `regex:(a|b)*ab`);
`from_machine` makes one of any other machine, and `register` adds one of your own.
"""

from statetrack.tasks._evaluation import Split as Split
from statetrack.tasks._evaluation import evaluation_set as evaluation_set
from statetrack.tasks._evaluation import generator as generator
from statetrack.tasks._evaluation import seed_of as seed_of
from statetrack.tasks._registry import available as available
from statetrack.tasks._registry import get as get
from statetrack.tasks._registry import is_registered as is_registered
from statetrack.tasks._registry import register as register
from statetrack.tasks._task import IGNORE as IGNORE
from statetrack.tasks._task import Batch as Batch
from statetrack.tasks._task import Depths as Depths
from statetrack.tasks._task import LengthRange as LengthRange
from statetrack.tasks._task import Task as Task
from statetrack.tasks.machines import from_machine as from_machine
from statetrack.tasks.machines import from_regex as from_regex
