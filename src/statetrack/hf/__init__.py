"""Language models of this library as models of transformers.

Importing this registers them with the Auto classes:

>>> import tempfile
>>> from transformers import AutoModelForCausalLM
>>> from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig
>>> backbone = BackboneConfig(mixers=["DeltaNet"], d_model=32)
>>> with tempfile.TemporaryDirectory() as folder:
...     CausalLM(CausalLMConfig(vocab_size=100, backbone=backbone)).save(folder)
...     model = AutoModelForCausalLM.from_pretrained(folder)
>>> type(model).__name__
'StatetrackForCausalLM'
"""

from statetrack._extras import needs as _needs

with _needs("statetrack.hf", "transformers", "hf"):
    import transformers as _transformers

from statetrack.hf.cache import StatetrackCache as StatetrackCache
from statetrack.hf.configuration import StatetrackConfig as StatetrackConfig
from statetrack.hf.modeling import StatetrackForCausalLM as StatetrackForCausalLM

_transformers.AutoConfig.register(StatetrackConfig.model_type, StatetrackConfig, exist_ok=True)
_transformers.AutoModelForCausalLM.register(StatetrackConfig, StatetrackForCausalLM, exist_ok=True)
