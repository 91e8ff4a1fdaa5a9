"""Models: one pre-norm block, one tagger, for every layer and any mix of them."""

from statetrack.models.backbone import Backbone as Backbone
from statetrack.models.backbone import Block as Block
from statetrack.models.config import BackboneConfig as BackboneConfig
from statetrack.models.config import Mixer as Mixer
from statetrack.models.config import TaggerConfig as TaggerConfig
from statetrack.models.presets import paper_config as paper_config
from statetrack.models.tagger import Tagger as Tagger
