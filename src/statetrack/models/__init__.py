"""Models: a tagger and a language model, for every layer and any mix of them."""

from statetrack.models.backbone import Backbone as Backbone
from statetrack.models.backbone import Block as Block
from statetrack.models.causal_lm import CausalLM as CausalLM
from statetrack.models.config import BackboneConfig as BackboneConfig
from statetrack.models.config import CausalLMConfig as CausalLMConfig
from statetrack.models.config import Mixer as Mixer
from statetrack.models.config import TaggerConfig as TaggerConfig
from statetrack.models.constraint import Constraint as Constraint
from statetrack.models.generation import Sampling as Sampling
from statetrack.models.presets import lm_config as lm_config
from statetrack.models.presets import paper_config as paper_config
from statetrack.models.tagger import Tagger as Tagger
