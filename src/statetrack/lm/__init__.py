"""Language models in use: text, generation, loss by position."""

from statetrack.lm.evaluation import Evaluation as Evaluation
from statetrack.lm.evaluation import evaluate as evaluate
from statetrack.lm.plot import plot as plot
from statetrack.lm.text import END as END
from statetrack.lm.text import Text as Text
from statetrack.lm.text import constraint as constraint
from statetrack.lm.text import load_text as load_text
from statetrack.lm.text import read_documents as read_documents
