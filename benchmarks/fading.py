"""Why silent traces fade beyond the training length: a small DeltaNet, taken apart.

    python benchmarks/fading.py --out build/fading          # about ten minutes of one core

trains DeltaNet [-1, 1] on silent traces of 4 to 12 statements, and reads traces of 192. Then it
changes one thing at a time in the layer and head that hold the state: small β become 0, large ones
2, writes behind the first assignments 0. What brings accuracy back is what was in the way. The
weights themselves are left as they are. What it prints also goes to OUT/fading.json.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statetrack import tasks
from statetrack.analysis.observe import observe
from statetrack.experiments.recipes import tagging_run
from statetrack.models import Tagger
from statetrack.sweep import Progress, run_many
from statetrack.training import EvaluationConfig, RunConfig, ScheduleConfig

TASK = "repl_1_silent"
HEADER = 21
"""Tokens of the assignments at the start."""
PARTS, FAR = 8, 192
IDLE, FULL = 0.2, 1.98
"""Below the one β means "leave alone", above the other "reflect"."""

Change = Callable[[Any, int], Any]


def config(steps: int, seed: int) -> RunConfig:
    return tagging_run(
        TASK,
        "DeltaNet",
        d_model=64,
        num_layers=2,
        options={"num_heads": 2, "eigen_range": (-1.0, 1.0)},
        lengths=(4, 12),
        steps=steps,
        batch=32,
        lr=2e-3,
        clip_norm=1.0,
        schedule=ScheduleConfig(warmup=0.1, final=0.01),
        evaluation=EvaluationConfig(every=max(50, steps // 200 * 50), size=64, lengths=(FAR, FAR)),
        seed=seed,
        checkpoint_every=500,
    )


def accuracy(model: Tagger, far: int) -> list[float]:
    """By the eighth of the text that an answer lies in; sixteen traces."""
    generator = tasks.generator(TASK, "test", seed=1)
    batch = tasks.get(TASK).sample(16, far, min_length=far, generator=generator)
    with torch.no_grad():
        right = model(batch.tokens)[0].argmax(-1) == batch.targets
    width = batch.tokens.shape[1]
    cuts = [slice(i * width // PARTS, (i + 1) * width // PARTS) for i in range(PARTS)]
    return [
        round(float((right & batch.mask)[:, cut].sum() / batch.mask[:, cut].sum()), 3)
        for cut in cuts
    ]


def by_token(model: Tagger) -> list[dict[str, list[float]]]:
    """For every layer the mean β of each head by token, variables together."""
    task = tasks.get(TASK)
    generator = tasks.generator(TASK, "test", seed=2)
    word = task.sample(1, 64, min_length=64, generator=generator).tokens[0]
    names = [task.token_names[token] for token in word.tolist()][HEADER:]
    names = ["variable" if name.startswith("x") else name for name in names]
    found = []
    for seen in observe(model, word):
        beta = seen.transitions().beta[0, HEADER:, 0]  # type: ignore[attr-defined]
        rows: dict[str, list[float]] = {}
        for name in dict.fromkeys(names):
            mine = torch.tensor([one == name for one in names])
            rows[name] = [round(float(value), 4) for value in beta[mine].mean(0)]
        found.append(rows)
    return found


def _where(beta: Tensor, head: int, small: bool, large: bool) -> Tensor:
    beta = beta.clone()
    mine = beta[..., head]
    if small:
        mine[mine < IDLE] = 0.0
    if large:
        mine[mine > FULL] = 2.0
    return beta


def _unwritten(v: Tensor, head: int) -> Tensor:
    v = v.clone()
    v[:, HEADER:, :, head] = 0.0
    return v


CHANGES: dict[str, Change] = {
    "as it is": lambda i, h: i,
    f"β above {FULL} is 2": lambda i, h: i._replace(beta=_where(i.beta, h, False, True)),
    f"β below {IDLE} is 0": lambda i, h: i._replace(beta=_where(i.beta, h, True, False)),
    "no writes": lambda i, h: i._replace(v=_unwritten(i.v, h)),
    "all three": lambda i, h: i._replace(beta=_where(i.beta, h, True, True), v=_unwritten(i.v, h)),
}


def changed(inputs: Callable[..., Any], change: Change, head: int) -> Callable[..., Any]:
    """What the layer gives to its op, with one thing changed."""

    def found(*arguments: Any, **options: Any) -> Any:
        return change(inputs(*arguments, **options), head)

    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/fading"))
    arguments = parser.parse_args()
    with Progress() as progress:
        chosen = config(arguments.steps, arguments.seed)
        run = run_many([chosen], arguments.out, workers=0, device="cpu", watch=progress).runs[0]
    model = chosen.build(torch.Generator().manual_seed(0))
    model.load_state_dict(run.weights())
    model.eval()
    found: dict[str, Any] = {"steps": arguments.steps, "seed": arguments.seed}
    found["beta"] = by_token(model)
    print(json.dumps(found["beta"], indent=1, ensure_ascii=False))
    found["accuracy"] = {}
    for layer, block in enumerate(model.backbone.blocks, 1):
        inputs = block.mixer._inputs
        for head in range(block.mixer.num_heads):
            for name, change in CHANGES.items():
                block.mixer._inputs = changed(inputs, change, head)
                told = accuracy(model, FAR)
                found["accuracy"][f"layer {layer}, head {head}: {name}"] = told
                print(f"layer {layer}, head {head}: {name:20} {told}", flush=True)
            block.mixer._inputs = inputs
    (arguments.out / "fading.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
