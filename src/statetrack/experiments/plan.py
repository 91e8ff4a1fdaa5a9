"""A plan: the runs that fill one table, known before any of them is made."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from statetrack.training.config import RunConfig

__all__ = ["Plan"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An experiment at one scale.

    Attributes:
        experiment, summary: its name, and one line about it.
        paper_label: what the paper calls it, or None.
        scale: `smoke`, `quick` or `paper`.
        version: whose settings, at the paper's scale; else None.
        configs: all its runs.
    """

    experiment: str
    summary: str
    paper_label: str | None = None
    scale: str
    version: str | None
    configs: tuple[RunConfig, ...]

    @property
    def folder(self) -> str:
        """The name of the folder that `statetrack reproduce` puts the runs in."""
        return "-".join(filter(None, (self.experiment, self.scale, self.version)))

    def with_parents(self, chosen: Iterable[RunConfig]) -> list[RunConfig]:
        """`chosen` and the runs they start from, in the plan's order."""
        known = {config.fingerprint: config for config in self.configs}
        wanted: set[str] = set()
        for config in chosen:
            one: RunConfig | None = config
            while one is not None:
                wanted.add(one.fingerprint)
                one = known.get(one.parent or "")
        return [config for name, config in known.items() if name in wanted]

    def command(self, out: str, only: str | None = None) -> str:
        """What to type to make the runs, or those whose description contains `only`."""
        words = ["statetrack", "reproduce", self.experiment, "--scale", self.scale]
        words += ["--version", self.version] if self.version else []
        words += ["--only", only] if only else []
        return shlex.join([*words, "--out", out])
