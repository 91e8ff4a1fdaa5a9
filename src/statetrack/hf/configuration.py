"""The config that transformers reads and writes: a `CausalLMConfig` in config.json's "model"."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from statetrack.models import CausalLMConfig
from statetrack.models import folder as folders

__all__ = ["StatetrackConfig"]


class StatetrackConfig(PreTrainedConfig):
    """`model` is a `CausalLMConfig`, or what its `to_dict` gives; it says all about the model.

    `vocab_size`, `hidden_size`, `num_hidden_layers` and `tie_word_embeddings` are read from it.

    >>> from statetrack.models import lm_config
    >>> config = StatetrackConfig(lm_config("DeltaNet", "340M", eigen_range=(-1.0, 1.0)))
    >>> config.vocab_size, config.hidden_size, config.num_hidden_layers
    (32000, 1024, 24)
    """

    model_type = folders.MODEL_TYPE
    has_no_defaults_at_init = True
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init__(
        self,
        model: CausalLMConfig | Mapping[str, Any] | None = None,
        *,
        use_cache: bool = True,
        pad_token_id: int | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """The keywords are those of every config of transformers; `kwargs` are its common ones."""
        if model is None:
            raise ValueError(
                "StatetrackConfig has no defaults: pass model=, a statetrack.models.CausalLMConfig "
                'such as lm_config("DeltaNet", "340M")'
            )
        self._describe(model)
        self.use_cache = use_cache
        self.pad_token_id = pad_token_id
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        super().__init__(**(kwargs | {"auto_map": dict(folders.AUTO_MAP)}))

    @property
    def description(self) -> CausalLMConfig:
        """What `CausalLM` is built from."""
        return CausalLMConfig.from_dict(self.model)

    @property
    def vocab_size(self) -> int:
        size: int = self.model["vocab_size"]
        return size

    @vocab_size.setter
    def vocab_size(self, size: int) -> None:
        self._describe(dataclasses.replace(self.description, vocab_size=size))

    @property
    def tie_word_embeddings(self) -> bool:
        tied: bool = self.model["tie_embeddings"]
        return tied

    @tie_word_embeddings.setter
    def tie_word_embeddings(self, tied: bool) -> None:
        self._describe(dataclasses.replace(self.description, tie_embeddings=tied))

    @property
    def hidden_size(self) -> int:
        size: int = self.model["backbone"]["d_model"]
        return size

    @property
    def num_hidden_layers(self) -> int:
        return len(self.model["backbone"]["mixers"])

    def save_pretrained(
        self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        """Writes config.json, and the file that says what to install where that is needed."""
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        folders.write_loader(Path(save_directory))
        super().save_pretrained(save_directory, push_to_hub, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Nothing: a saved folder imports this class, and needs no copy of its source."""

    def _describe(self, model: CausalLMConfig | Mapping[str, Any]) -> None:
        described = model if isinstance(model, CausalLMConfig) else CausalLMConfig.from_dict(model)
        self.model = described.to_dict()
