"""A little text in two domains as shards, and the smallest pretraining runs on it."""

import random
from pathlib import Path
from typing import Any

from statetrack.lm import (
    Manifest,
    PretrainConfig,
    PretrainEvaluationConfig,
    PretrainOptimizerConfig,
    Text,
    sources_of,
    tokenize,
)
from statetrack.lm.text import END
from statetrack.models import BackboneConfig, CausalLMConfig

WORDS = (
    "the a state tracks parity of bits if x then y else return sum mod two ( ) [ ] = + -".split()
)


def with_end() -> Text:
    """A token for each byte, and one that ends documents."""
    text = Text.of_bytes()
    text.tokenizer.add_special_tokens([END])
    return text


def write_text(folder: Path, *, texts: int = 12, seed: int = 0) -> Path:
    """Sub-folders code and prose, each with projects that hold a few texts of 20 to 90 words."""
    dice = random.Random(seed)
    for domain in ("code", "prose"):
        for number in range(texts):
            path = folder / domain / f"project{number % 3}" / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(" ".join(dice.choices(WORDS, k=dice.randint(20, 90))))
    return folder


def shards(folder: Path, **options: Any) -> Manifest:
    """Tokens of such a text; project 2 of each domain is held out."""
    text = write_text(folder / "text")
    settings: dict[str, Any] = {"tokenizer": with_end(), "hold_out": ["*/project2/*"], "workers": 0}
    return tokenize(sources_of([text], by_folder=True), folder / "shards", **(settings | options))


def model(mixer: str = "DeltaNet", **options: Any) -> CausalLMConfig:
    if mixer == "DeltaNet":
        options = {"num_heads": 2, "conv_size": 2, **options}
    backbone = BackboneConfig(mixers=[(mixer, options)] * 2, d_model=8, mlp_dim=16)
    return CausalLMConfig(vocab_size=257, backbone=backbone, projection_std=0.1)


def config(data: Manifest | Path, **changes: Any) -> PretrainConfig:
    fields: dict[str, Any] = {
        "model": model(),
        "data": str(data.folder if isinstance(data, Manifest) else data),
        "steps": 8,
        "batch": 4,
        "length": 32,
        "optimizer": PretrainOptimizerConfig(lr=1e-2),
        "evaluation": PretrainEvaluationConfig(every=4, windows=3, batch=2),
        "log_every": 2,
        "checkpoint_every": 2,
        "peak_tflops": 1.0,
    }
    return PretrainConfig(**(fields | changes))
