"""Times whole training steps, ours and the paper's way; writes results/training_<date>.json.

    PYTHONPATH=src python benchmarks/training.py [--only parity] [--out FILE]

Ours is `training.stacked.Stacked`: sampling, forward, backward, clipping, AdamW and schedule as one
CUDA graph. The paper's way is fla's DeltaNet layer in the same blocks, eager, on batches padded to
256. Every row says how long it took from the configs to the first step, too (`start_s`). Without a
GPU it times three of the demo's runs together and one after the other, and ragged batches in groups
of similar length and padded, on one core.
"""

import argparse
import dataclasses
import datetime
import functools
import importlib.metadata
import json
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from statetrack import tasks
from statetrack.experiments.demo import demo
from statetrack.models import paper_config
from statetrack.runs.labels import eigen_range
from statetrack.training import Engine, EvaluationConfig, OptimizerConfig, RunConfig, packing
from statetrack.training.eager import Eager
from statetrack.training.stacked import Stacked

WIDTH, PADDED = 128, 256


def config(task: str, mixer: str, layers: int, batch: int, run: int, **options: Any) -> RunConfig:
    """The paper's model and optimiser; one of several runs that differ in seed and rate."""
    alphabet = tasks.get(task)
    model = paper_config(
        mixer,
        vocab_size=alphabet.vocab_size,
        num_classes=alphabet.num_classes,
        num_layers=layers,
        **options,
    )
    return RunConfig(
        task=task,
        model=model,
        steps=100_000,
        batch=batch,
        optimizer=OptimizerConfig(lr=1e-3 / (1 + run), weight_decay=0.1, clip_norm=1.0),
        evaluation=EvaluationConfig(every=1000),
        precision="bf16",
        seed=run,
        data_seed=run,
        log_every=1000,
        checkpoint_every=None,
    )


SIGNED = {"eigen_range": (-1.0, 1.0)}
WORK: dict[str, tuple[str, str, int, int, int, dict[str, Any]]] = {
    # name: task, mixer, layers, batch, runs, options
    "parity DeltaNet 2x128 B1024 T40": ("parity", "DeltaNet", 2, 1024, 1, SIGNED),
    "parity DeltaNet 2x128 B1024 T40, 12 runs": ("parity", "DeltaNet", 2, 1024, 12, SIGNED),
    "parity DeltaNet 2x128 B256 T40, 12 runs": ("parity", "DeltaNet", 2, 256, 12, SIGNED),
    "arithmetic DeltaNet 3x128 B1024 T40, 3 runs": (
        "mod_arithmetic",
        "DeltaNet",
        3,
        1024,
        3,
        SIGNED,
    ),
    "parity Mamba 2x128 B1024 T40": ("parity", "Mamba", 2, 1024, 1, SIGNED),
    "parity Mamba 2x128 B1024 T40, 12 runs": ("parity", "Mamba", 2, 1024, 12, SIGNED),
    "parity MLSTM 2x128 B256 T40, 12 runs": ("parity", "MLSTM", 2, 256, 12, {}),
    "parity SLSTM 2x128 B256 T40, 12 runs": ("parity", "SLSTM", 2, 256, 12, {}),
    "parity Attention 2x128 B256 T40, 12 runs": ("parity", "Attention", 2, 256, 12, {}),
    "parity GLA 2x128 B256 T40, 12 runs": ("parity", "GLA", 2, 256, 12, SIGNED),
    "parity Mamba2 2x128 B256 T40, 12 runs": ("parity", "Mamba2", 2, 256, 12, SIGNED),
}


def milliseconds(step: Callable[[], object], *, steps: int, repeats: int = 5) -> float:
    """Median over `repeats` of the mean of `steps` steps."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begun) * 1e3 / steps)
    return statistics.median(times)


def ours(task: str, mixer: str, layers: int, batch: int, runs: int, options: dict[str, Any]) -> Any:
    """(ms a step, ms an evaluation, seconds to the first step)."""
    begun = time.perf_counter()
    configs = [config(task, mixer, layers, batch, run, **options) for run in range(runs)]
    stack = Engine(configs, device="cuda", executor=Stacked).executor
    assert isinstance(stack, Stacked)
    stack._capture()
    stack._train(1)
    torch.cuda.synchronize()
    start = time.perf_counter() - begun
    step = milliseconds(lambda: stack._train(50), steps=1) / 50
    judge = milliseconds(stack._validate, steps=1, repeats=3)
    if not stack.buffers.losses[: int(stack.buffers.step)].isfinite().all():
        raise RuntimeError(f"{task} {mixer}: a loss is not finite")
    return step, judge, start


def paper_way(*, mlp: bool, padded: int) -> tuple[float, float]:
    """fla's DeltaNet, 2 layers, batch 1024, eager under bf16 autocast; (ms a step, start in s)."""
    begun = time.perf_counter()
    import fla

    # The package imports all its layers, some of which need transformers; this one does not.
    package = types.ModuleType("fla.layers")
    package.__path__ = [f"{fla.__path__[0]}/layers"]
    sys.modules["fla.layers"] = package
    from fla.layers.delta_net import DeltaNet
    from fla.modules import GatedMLP, RMSNorm

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mixer = RMSNorm(WIDTH), DeltaNet(d_model=WIDTH, allow_neg_eigval=True)
            self.mlp_norm = RMSNorm(WIDTH) if mlp else None
            self.mlp = GatedMLP(hidden_size=WIDTH, intermediate_size=512) if mlp else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.mixer(self.norm(x))[0]
            return x if self.mlp is None else x + self.mlp(self.mlp_norm(x))

    model = nn.Sequential(
        nn.Embedding(3, WIDTH), Block(), Block(), RMSNorm(WIDTH), nn.Linear(WIDTH, 3, bias=False)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    task = tasks.get("parity")
    stream = tasks.generator(task, "train", 0, "cuda")

    def step() -> None:
        batch = task.sample(1024, 40, min_length=3, generator=stream, device="cuda")
        missing = padded - batch.tokens.shape[1]
        tokens = nn.functional.pad(batch.tokens, (0, missing))
        targets = nn.functional.pad(batch.targets, (0, missing), value=tasks.IGNORE)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = model(tokens)
        loss = nn.functional.cross_entropy(scores.float().flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()
    torch.cuda.synchronize()
    start = time.perf_counter() - begun
    step()
    return milliseconds(step, steps=10), start


def on_the_cpu() -> list[dict[str, Any]]:
    """Steps on one core, each row in turn with the one it is compared with."""
    torch.set_num_threads(1)
    rows, groups = [], packing.GROUPS

    def add(work: str, **ways: Callable[[], float]) -> None:
        times: dict[str, list[float]] = {who: [] for who in ways}
        for _ in range(6):
            for who, seconds in ways.items():
                times[who].append(seconds())
        for who, found in times.items():
            who, ms = who.replace("_", " "), statistics.median(found[1:]) * 1e3  # 0 warms up
            rows.append({"work": work, "who": f"ours, {who}", "ms": round(ms, 2)})
            print(f"{work:48} {who:26} {ms:.2f} ms", flush=True)

    signed = [config for config in demo() if eigen_range(config) == (-1.0, 1.0)]
    for base in signed:
        runs = [dataclasses.replace(base, seed=seed, data_seed=seed) for seed in range(3)]
        stack = Engine(runs, executor=Stacked).executor
        alone = [Engine([run]).executor for run in runs]
        add(
            f"three runs of the demo's {base.model.backbone.mixers[0].layer}, one thread",
            together=lambda stack=stack: _seconds(lambda: stack._train(1)),
            one_after_the_other=lambda alone=alone: sum(map(_trained, alone)),
        )
    for mixer in ("DeltaNet", "Mamba", "MLSTM", "SLSTM"):
        one = Engine([config("parity", mixer, 2, 256, 0)]).executor

        def trained(at_most: int, one: Eager = one) -> float:
            packing.GROUPS = at_most
            return _trained(one, steps=2)

        add(
            f"parity {mixer} 2x128 B256 T40, one thread",
            in_groups=functools.partial(trained, groups),
            padded=functools.partial(trained, 1),
        )
    return rows


def _trained(one: Eager, steps: int = 20) -> float:
    return _seconds(lambda: one._train_step(0), steps)


def _seconds(step: Callable[[], object], steps: int = 20) -> float:
    begun = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - begun) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    today = datetime.date.today().isoformat()
    if not torch.cuda.is_available():
        out = args.out or Path(__file__).parent / "results" / f"training_cpu_{today}.json"
        versions = {"torch": importlib.metadata.version("torch")}
        rows = [row | {"versions": versions, "date": today} for row in on_the_cpu()]
        out.write_text(json.dumps(rows, indent=1) + "\n")
        return
    out = args.out or Path(__file__).parent / "results" / f"training_{today}.json"
    common = {
        "device": torch.cuda.get_device_name(),
        "versions": {n: importlib.metadata.version(n) for n in ("torch", "triton")},
        "date": today,
    }
    rows: list[dict[str, Any]] = []

    def add(work: str, who: str, **values: float) -> None:
        rows.append({"work": work, "who": who, **values, **common})
        out.write_text(json.dumps(rows, indent=1) + "\n")
        shown = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
        print(f"{work:48} {who:24} {shown}", flush=True)

    if not args.no_peers:
        for mlp in (False, True):
            for padded in (PADDED, 40):
                ms, start = paper_way(mlp=mlp, padded=padded)
                name = f"fla eager, padded to {padded}" + ("" if mlp else ", no MLP")
                add("parity DeltaNet 2x128 B1024 T40", name, ms=ms, start_s=start)
    for name, work in WORK.items():
        if args.only in name:
            torch.compiler.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                ms, judge, start = ours(*work)
            except Exception as error:  # one row missing, the others still measured
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            peak = torch.cuda.max_memory_allocated() / 2**20
            add(name, "ours", ms=ms, evaluation_ms=judge, start_s=start, peak_mb=peak)


if __name__ == "__main__":
    main()
