"""Language models: text to shards, pretraining, generation, loss by position."""

from statetrack.lm.config import PretrainConfig as PretrainConfig
from statetrack.lm.config import PretrainEvaluationConfig as PretrainEvaluationConfig
from statetrack.lm.config import PretrainOptimizerConfig as PretrainOptimizerConfig
from statetrack.lm.evaluation import Evaluation as Evaluation
from statetrack.lm.evaluation import Losses as Losses
from statetrack.lm.evaluation import evaluate as evaluate
from statetrack.lm.evaluation import read_losses as read_losses
from statetrack.lm.plot import plot as plot
from statetrack.lm.shards import Manifest as Manifest
from statetrack.lm.text import END as END
from statetrack.lm.text import Text as Text
from statetrack.lm.text import constraint as constraint
from statetrack.lm.text import load_text as load_text
from statetrack.lm.text import read_documents as read_documents
from statetrack.lm.tokenization import sources_of as sources_of
from statetrack.lm.tokenization import tokenize as tokenize
