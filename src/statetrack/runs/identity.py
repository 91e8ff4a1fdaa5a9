"""Which run a run is: equal configs are one run, and one that differs in no number is too.

A run is identified by the essence of its config (`Config.essence`), under the number of the schema
that the defaults left out of it belong to. How often it logs or saves, and which backend ran, are
no part of it.
"""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from statetrack.config import Config, frozen_defaults

__all__ = ["DIGITS", "RunDescription", "same_but_for"]

DIGITS = 16
"""Of a fingerprint."""


@dataclass(frozen=True, kw_only=True)
class RunDescription(Config):
    """The config of a run, of whatever kind: everything that decides its numbers."""

    KIND: ClassVar[str]
    """What the run trains; see `folder.KINDS`."""
    LARGE: ClassVar[bool] = False
    """Whether its checkpoints are written beside the training, and read in place."""

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of a sha256: the name of the run's folder."""
        return hashlib.sha256(same_but_for(self).encode()).hexdigest()[:DIGITS]

    @abstractmethod
    def build(self) -> Any:
        """The model, with weights of no meaning."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """What is learnt, in a word."""

    @property
    def start(self) -> str | None:
        """The digest of the weights it starts from, or `parent`; None where they are drawn."""
        return None

    @property
    def parent(self) -> str | None:
        """The fingerprint of the run whose final weights it starts from; None where there is none.

        So a run is known before its parent is trained.
        """
        return self.start if self.start is not None and len(self.start) == DIGITS else None

    @property
    def window(self) -> int | None:
        """So many tokens of a sequence are read at a step; None where it is read whole."""
        return None

    @property
    def validates(self) -> bool:
        """Whether there is anything that it can be validated on."""
        return True

    def beside(self) -> dict[str, Any]:
        """What config.json says besides the config, for other readers of the folder."""
        return {}


def same_but_for(config: RunDescription, fields: Iterable[str] = ()) -> str:
    """The same text for all runs that differ in `fields` alone, which are dotted names.

    >>> from statetrack.models import paper_config
    >>> from statetrack.training import OptimizerConfig, RunConfig
    >>> model = paper_config("DeltaNet", vocab_size=3)
    >>> a, b = (
    ...     RunConfig(task="parity", model=model, steps=1, batch=1, optimizer=OptimizerConfig(lr=x))
    ...     for x in (0.1, 0.2)
    ... )
    >>> same_but_for(a) == same_but_for(b)
    False
    >>> same_but_for(a, ["optimizer.lr"]) == same_but_for(b, ["optimizer.lr"])
    True
    """
    kept = config.essence()
    for name in fields:
        *path, last = name.split(".")
        place = kept
        for part in path:
            place = place.get(part, {})
        place.pop(last, None)
    identity = {"schema": frozen_defaults()["schema"], "kind": config.KIND, "config": kept}
    return json.dumps(identity, sort_keys=True, allow_nan=False)
