"""Does [-1, 1] matter for language? Pairs of models that differ in the range alone.

    python -m statetrack.experiments.language study --shards shards --out study

trains every model of `models` with every seed, all of them resumable, measures loss by position on
the held-out text of every domain, and writes study/language.json.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from statetrack import lm
from statetrack.lm import Manifest, PretrainConfig, PretrainEvaluationConfig
from statetrack.lm.corpus import gather
from statetrack.lm.recipes import pretrain_config
from statetrack.lm.shards import Part
from statetrack.models import CausalLM
from statetrack.runs.labels import model_label
from statetrack.sweep import Progress, run_many

__all__ = ["MODELS", "configs", "evaluate", "rates"]

USUAL, EXTENDED = (0.0, 1.0), (-1.0, 1.0)
MODELS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "pair": (("DeltaNet", {"eigen_range": USUAL}), ("DeltaNet", {"eigen_range": EXTENDED})),
    "more": (
        *(
            (name, {"eigen_range": ends})
            for name in ("Mamba", "GatedDeltaNet", "GLA")
            for ends in (USUAL, EXTENDED)
        ),
        *(
            ("DeltaProduct", {"num_householders": 2, "eigen_range": ends})
            for ends in (USUAL, EXTENDED)
        ),
        ("Attention", {}),
    ),
}
"""Which layers, and their options; `pair` is the question, `more` is around it."""

HELD_OUT = (
    "code/linux-source-6.1/fs",
    "code/twisted",
    "math/metamath-databases/nf",
    "prose/linux-source-6.1/Documentation/filesystems",
)
"""Projects that no model is trained on."""


def configs(
    shards: Path | str,
    *,
    size: str = "60M",
    models: str = "pair",
    tokens: float = 0.5e9,
    seeds: Sequence[int] = (0, 1, 2),
    lr: float | None = None,
    **changes: Any,
) -> list[PretrainConfig]:
    """One run for every model and seed: the same text in the same order for both ranges."""
    if models not in MODELS:
        raise ValueError(f"models={models!r} must be one of {', '.join(MODELS)}")
    found = []
    for mixer, options in MODELS[models]:
        for seed in seeds:
            one = pretrain_config(shards, size, mixer, mixer_options=options, lr=lr, **changes)
            steps = max(1, round(tokens / (one.batch * one.length)))
            found.append(
                pretrain_config(
                    shards,
                    size,
                    mixer,
                    mixer_options=options,
                    lr=lr,
                    **(changes | {"steps": steps, "seed": seed, "data_seed": seed}),
                )
            )
    return found


def rates(
    shards: Path | str, *, tokens: float = 3e7, lrs: Sequence[float] = (5e-4, 1e-3, 2e-3, 4e-3)
) -> list[PretrainConfig]:
    """The small sweep that chooses the learning rate, for both ranges alike."""
    return [one for lr in lrs for one in configs(shards, tokens=tokens, seeds=(0,), lr=lr)]


def evaluate(
    model: CausalLM, manifest: Manifest, *, length: int, windows: int, bin_size: int, batch: int
) -> dict[str, lm.Evaluation]:
    """Loss by position on held-out text, each window read from an empty state."""
    found = {}
    for domain in manifest.domains("validation"):
        part = Part(manifest, "validation", domain)
        count = min(windows, (len(part) - 1) // length)
        if count < 1:
            continue
        step = (len(part) - length - 1) // max(1, count - 1) if count > 1 else 0
        texts = [torch.from_numpy(part.read(i * step, length + 1)) for i in range(count)]
        found[domain] = lm.evaluate(model, texts, bin_size=bin_size, batch=batch)
    return found


def study(arguments: argparse.Namespace) -> None:
    manifest = Manifest.read(arguments.shards)
    every = max(10, round(arguments.tokens / 131_072 / 40) * 10)
    planned = configs(
        arguments.shards,
        size=arguments.size,
        models=arguments.models,
        tokens=arguments.tokens,
        seeds=range(arguments.seeds),
        lr=arguments.lr,
        evaluation=PretrainEvaluationConfig(every=every),
        checkpoint_every=every,
        micro_batch=arguments.micro_batch,
        compile="blocks" if arguments.compile else "no",
    )
    out = Path(arguments.out)
    with Progress() as progress:
        sweep = run_many(planned, out, workers=0, device=arguments.device, watch=progress)
    rows = []
    for run in sweep.runs:
        if not run.finished:
            print(f"{run.folder} failed: {run.error}", file=sys.stderr)
            continue
        model = CausalLM.load(run.folder).to(arguments.device)
        judged = evaluate(
            model,
            manifest,
            length=16 * run.config.length,
            windows=arguments.windows,
            bin_size=run.config.length // 8,
            batch=8,
        )
        rows.append(
            {
                "model": model_label(run.config),
                "seed": run.config.seed,
                "lr": run.config.optimizer.lr,
                "fingerprint": run.config.fingerprint,
                "tokens": run.config.steps * run.config.batch * run.config.length,
                "trained": run.config.length,
                "validation_loss": run.last("loss"),
                "tokens_per_s": run.last("tokens_per_s", "machine"),
                "domains": {name: one.to_dict() for name, one in judged.items()},
            }
        )
        # after every model: what a lease has paid for is on the disk when it ends
        (out / "language.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m statetrack.experiments.language")
    commands = parser.add_subparsers(required=True)
    text = commands.add_parser("gather", help="text from packages, by domain")
    text.add_argument("--out", required=True)
    text.add_argument("--most-mb", type=float, help="of every package")
    text.set_defaults(do=lambda a: gather(a.out, most_mb=a.most_mb, say=print))
    tokens = commands.add_parser("tokenize", help="shards of what was gathered")
    tokens.add_argument("--text", required=True)
    tokens.add_argument("--out", required=True)
    tokens.add_argument("--workers", type=int)
    tokens.add_argument("--vocab-size", type=int, default=32_000)
    tokens.set_defaults(do=_tokenize)
    runs = commands.add_parser("study", help="train, measure loss by position, write JSON")
    runs.add_argument("--shards", required=True)
    runs.add_argument("--out", required=True)
    runs.add_argument("--size", default="60M")
    runs.add_argument("--models", default="pair", choices=list(MODELS))
    runs.add_argument("--tokens", type=float, default=0.5e9)
    runs.add_argument("--seeds", type=int, default=3)
    runs.add_argument("--lr", type=float)
    runs.add_argument("--windows", type=int, default=32)
    runs.add_argument("--micro-batch", type=int)
    runs.add_argument("--compile", action="store_true")
    runs.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    runs.set_defaults(do=study)
    arguments = parser.parse_args(words)
    arguments.do(arguments)


def _tokenize(arguments: argparse.Namespace) -> None:
    lm.tokenize(
        lm.sources_of(sorted(Path(arguments.text).glob("*.jsonl"))),
        arguments.out,
        vocab_size=arguments.vocab_size,
        hold_out=HELD_OUT,
        workers=arguments.workers,
        say=print,
    )


if __name__ == "__main__":
    main()
