"""Times whole language models on one GPU, ours and a peer's; writes results/lm_<date>.json.

    PYTHONPATH=src python benchmarks/lm.py [--only "train|DeltaNet"] [--who ours] [--seconds 240]
    PYTHONPATH=src python benchmarks/lm.py --sweep          # against length and batch too
    PYTHONPATH=src python benchmarks/lm.py --profile FILE   # which kernels a training step spends
    PYTHONPATH=src python benchmarks/lm.py --plot FILES     # into docs/measurements/lm.md
    PYTHONPATH=src python benchmarks/lm.py --smoke          # tiny sizes, also on a CPU

Training is fp32 weights, bf16 autocast, forward, backward and a fused AdamW update. Ours has its
blocks compiled one by one and a step recorded as one CUDA graph, as `statetrack lm pretrain` with
compile="step" does; with `--blocks` nothing is recorded, as with compile="blocks". Decoding and
prefill are in bf16. Peers are flash-linear-attention's models, to be found on PYTHONPATH, and for
the Transformer the Llama of transformers; they run as their authors ship them. Their Mamba2 takes
the Triton kernels of mamba-ssm, if that lies there too: its folder mamba_ssm without __init__.py,
which wants what has to be built.

Training cells have a process each, the other cells of a model share one, and every cell has a time
limit: a crash, a full memory or a first step of minutes leaves a cell empty, with its reason. Our
processes begin with empty kernel caches. With `--at-once 3` three processes build, compile and warm
up side by side while the next ones import, ours first and then peers'; what is swept comes last.
All is compiled by a step of the model with one layer of each kind, which counts to the first step;
then a process waits until there is memory for the whole. While one is timed the others are stopped
(SIGSTOP), and that time is taken from their first step.
fla's kernels are tuned as ever, but the variants of one are compiled at once and timed for 20 ms
instead of 100, by one process at a time.
`--tuned FOLDER` keeps what was tuned for a later call, whose peers have no first step to report.

MFU is 6 N tokens/s / 790e12, with N the parameters without the table that tokens are looked up in,
and 790 TFLOP/s what a large bf16 product reaches on an H200. Mixers' own FLOPs are not counted.
"""

import argparse
import datetime
import gc
import importlib.metadata
import importlib.util
import json
import math
import os
import queue
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

PEAK_FLOPS = 790e12
VOCAB = 32_000
LIMIT = {"ours": 90.0, "fla": 150.0, "transformers": 90.0}
"""Seconds that a cell may take, by who."""
ROOM = 132.0
"""GiB that the models of several processes may take together."""
SLOW = 12.0
"""Seconds after which a variant of a peer's kernel is given up: hundreds of numbers a thread."""
AHEAD = 3
"""Processes that import before their turn."""
PAUSE = 0.4
"""Seconds after which a process that was stopped has nothing left on the GPU."""
GOALS = {
    "train DeltaNet 374M B16 T2048": "210k, 38 GiB",
    "train DeltaNet 1.37B B8 T2048": "68k, 50 GiB",
    "train DeltaNet 374M B1 T32768": "180k",
    "train Mamba 386M B8 T2048": "130k, first step 30 s",
    "train GatedDeltaNet 400M B16 T2048": "1.3 times the peer",
    "train Transformer 374M B16 T2048": "1.3 times the peer",
    "train DeltaProduct n=2 425M B16 T2048": "1.3 times the peer",
    "train GLA 374M B16 T2048": "1.3 times the peer",
    "train Mamba2 382M B8 T2048": "1.3 times the peer",
    "decode DeltaNet 374M B1": "1.0 ms",
    "decode DeltaNet 374M B64": "2.0 ms",
    "decode DeltaNet 374M B256": "4.0 ms",
}
WHAT = {
    "lm_against_length": "Training speed against the length of a sequence, ours and fla's",
    "lm_against_batch": "Training speed against sequences a step, ours and fla's",
}
MARKS = "<!-- made by benchmarks/lm.py --plot -->", "<!-- to here -->"
NARROW = ", bf16 stream"
"""What a work with a residual stream in bf16 is named by; its peer is that of the work without."""
WEIGHT = 6
"""FLOPs a token and parameter: two forward, four backward."""


@dataclass(frozen=True)
class Model:
    """A model that both sides can build: d_model, layers, heads and the mixer's options."""

    name: str
    mixer: str
    d_model: int = 1024
    layers: int = 24
    options: dict[str, Any] = field(default_factory=dict)
    peer: str = "fla"
    peer_options: dict[str, Any] = field(default_factory=dict)
    attention_every: int = 0  # a hybrid has a layer of attention in so many
    gib: float = 1.0  # about, for 1024 tokens of training


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    phase: str
    model: Model
    batch: int
    length: int
    who: str
    swept: bool = False  # of a picture alone
    recorded: bool = True  # of ours: a training step is one CUDA graph
    narrow: bool = False  # of ours: the residual stream is bf16

    @property
    def work(self) -> str:
        size = "" if self.phase == "decode" else f" T{self.length}"
        return f"{self.model.name} B{self.batch}{size}{NARROW if self.narrow else ''}"

    @property
    def title(self) -> str:
        return f"{self.phase}|{self.work}|{self.who}"

    @property
    def few_gib(self) -> float:
        """About what it takes until it has compiled."""
        if self.phase != "train":
            return self.gib
        scores = {"ours": 5.0, "fla": 10.0, "transformers": 18.0}[self.who]
        return scores + self.model.d_model**2 * self.model.layers * 16 * 12 / 2**30

    @property
    def gib(self) -> float:
        """About what it takes, by which processes share a GPU."""
        if self.phase != "train":
            return 20.0 if self.who == "ours" else 12.0
        weights = self.model.d_model**2 * self.model.layers * 16 * 14 / 2**30
        more = {"ours": 0.93, "fla": 1.15, "transformers": 1.7}[self.who]
        return 2.0 + weights + more * self.model.gib * self.batch * self.length / 1024


DELTA = Model("DeltaNet 374M", "DeltaNet", options={"num_heads": 8})
LARGE = Model("DeltaNet 1.37B", "DeltaNet", d_model=2048, options={"num_heads": 16}, gib=1.8)
# fla's Mamba needs a build of mamba-ssm; without it it is a loop that no memory holds.
MAMBA = Model("Mamba 386M", "Mamba", layers=48, options={"d_state": 16}, peer="none", gib=2.5)
GATED = Model(
    "GatedDeltaNet 400M",
    "GatedDeltaNet",
    options={"num_heads": 8},
    peer_options={"head_dim": 128, "expand_v": 1.0},
)
MAMBA2 = Model(
    "Mamba2 382M",
    "Mamba2",
    layers=48,
    options={"d_state": 128, "head_dim": 64},
    peer_options={"state_size": 128, "head_dim": 64},
    gib=2.0,
)
GLA = Model("GLA 374M", "GLA", options={"num_heads": 4})
PRODUCT = Model(
    "DeltaProduct n=2 425M",
    "DeltaProduct",
    options={"num_heads": 8, "num_householders": 2},
    peer_options={"head_dim": 128, "expand_v": 1.0, "num_householder": 2, "use_output_gate": False},
    gib=1.4,
)
# fla's attention needs flash-attn.
HYBRID = Model("hybrid 374M", "DeltaNet", options={"num_heads": 8}, peer="none", attention_every=4)
TRANSFORMER = Model("Transformer 374M", "Attention", options={"num_heads": 16}, peer="transformers")


def both(phase: str, model: Model, batch: int, length: int) -> list[Cell]:
    whos = ["ours"] if model.peer == "none" else ["ours", model.peer]
    return [Cell(phase, model, batch, length, who) for who in whos]


def cells() -> list[Cell]:
    """The table, the telling cells first: all of ours, then those of peers in the same order."""
    found = [
        *both("train", DELTA, 16, 2048),
        *(cell for batch in (1, 64, 256) for cell in both("decode", DELTA, batch, 64)),
        *both("prefill", DELTA, 16, 2048),
        *both("prefill", DELTA, 1, 32768),
        *both("train", LARGE, 8, 2048),
        *both("train", DELTA, 1, 32768),
        *both("train", MAMBA, 8, 2048),
        *both("train", TRANSFORMER, 16, 2048),
        *both("train", GLA, 16, 2048),
        *both("train", PRODUCT, 16, 2048),
        *both("train", MAMBA2, 8, 2048),
        *both("train", HYBRID, 16, 2048),
        *both("train", GATED, 16, 2048),
        *narrow(),
    ]
    return in_order(found)


def narrow() -> list[Cell]:
    """The models with a goal once more, with a residual stream in bf16."""
    sizes = [(DELTA, 16, 2048), (LARGE, 8, 2048), (DELTA, 1, 32768), (MAMBA, 8, 2048)]
    return [Cell("train", model, b, t, "ours", narrow=True) for model, b, t in sizes]


def in_order(found: list[Cell]) -> list[Cell]:
    """The table before what is swept, and ours first in both; last what refuses to run.

    That is fla's gated delta rule, with Triton from 3.4.0 to 3.7.0 on Hopper.
    """
    whos = ["ours", "transformers", "fla"]

    def place(cell: Cell) -> tuple[bool, bool, int]:
        return (cell.model, cell.who) == (GATED, "fla"), cell.swept, whos.index(cell.who)

    return sorted(found, key=place)


def sweep() -> list[Cell]:
    """More of the 374M model: 32,768 tokens cut ever longer, and T 2048 in ever more rows."""
    sizes = [(64, 512), (1, 2048), (32, 2048), (4, 8192), (4, 2048)]
    found = [cell for b, t in sizes for cell in both("train", DELTA, b, t)]
    return in_order([replace(cell, swept=True) for cell in found])


def smoke() -> list[Cell]:
    """Every phase and kind of model, at sizes for a CPU."""
    small = {"d_model": 32, "layers": 2}
    delta = Model("DeltaNet tiny", "DeltaNet", **small, options={"num_heads": 2})
    mamba = Model("Mamba tiny", "Mamba", **small, options={"d_state": 4}, peer="none")
    hybrid = Model(
        "hybrid tiny",
        "DeltaNet",
        **small,
        options={"num_heads": 2},
        peer="none",
        attention_every=2,
    )
    llama = Model(
        "Transformer tiny", "Attention", **small, options={"num_heads": 2}, peer="transformers"
    )
    return [
        *both("train", delta, 2, 64),
        *both("train", llama, 2, 64),
        Cell("train", mamba, 2, 64, "ours"),
        Cell("train", hybrid, 2, 64, "ours"),
        *both("decode", delta, 2, 16)[:1],
        *both("prefill", delta, 2, 64)[:1],
    ]


# -------------------------------------------------------------------------------------- models


def mlp_dim(d_model: int) -> int:
    return 256 * -(-8 * d_model // 3 // 256)


def build_ours(model: Model, vocab: int, dtype: Any, device: Any) -> Any:
    from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig, Mixer

    one = Mixer.of((model.mixer, model.options))
    mixers = [one] * model.layers
    if model.attention_every:
        heads = model.d_model // 64 or 1
        every = model.attention_every
        mixers[every - 1 :: every] = [Mixer.of(("Attention", {"num_heads": heads}))] * (
            model.layers // every
        )
    plain = model.mixer in ("Mamba", "Mamba2")
    backbone = BackboneConfig(
        mixers=tuple(mixers),
        d_model=model.d_model,
        mlp="none" if plain else "swiglu",
        mlp_dim=mlp_dim(model.d_model),
        norm_eps=1e-5 if plain else 1e-6,
    )
    config = CausalLMConfig(vocab_size=vocab, backbone=backbone, tie_embeddings=False)
    return CausalLM(config, device=device, dtype=dtype)


def build_peer(cell: Cell, vocab: int, dtype: Any, device: Any) -> Any:
    """The peer's model of the same sizes; its losses fused as it can."""
    import torch

    model = cell.model
    shape: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.layers,
        "tie_word_embeddings": False,
    }
    if cell.who == "transformers":
        from transformers import LlamaConfig, LlamaForCausalLM

        heads = model.options["num_heads"]
        config = LlamaConfig(
            **shape,
            intermediate_size=mlp_dim(model.d_model),
            num_attention_heads=heads,
            num_key_value_heads=heads,
            attn_implementation="sdpa",
            use_cache=False,
        )
        kind: Any = LlamaForCausalLM
    else:
        from fla import models as fla

        if model.mixer == "Mamba2":
            expect_ssd()
        else:
            shape["num_heads"] = model.options["num_heads"]
            shape["intermediate_size"] = mlp_dim(model.d_model)
        if model.mixer in ("DeltaNet", "GatedDeltaNet", "DeltaProduct"):
            shape["allow_neg_eigval"] = True
        name = {"DeltaProduct": "GatedDeltaProduct"}.get(model.mixer, model.mixer)
        config = getattr(fla, f"{name}Config")(**shape, **model.peer_options)
        kind = getattr(fla, f"{name}ForCausalLM")
    with torch.device(device):
        # in training mode fla's Mamba2 takes a kernel of causal-conv1d, which has to be built
        return kind(config).to(dtype).train(model.mixer != "Mamba2")


def expect_ssd() -> None:
    """fla's Mamba2 has mamba-ssm's Triton kernels, or a loop that no memory holds."""
    try:
        from mamba_ssm.ops.triton import ssd_combined  # noqa: F401
    except ImportError as error:
        raise RuntimeError(f"no Triton kernels of mamba-ssm: {error}") from error


def flops_per_token(module: Any) -> int:
    """6 N, N without the table that tokens are looked up in."""
    import torch

    tables = [m for m in module.modules() if isinstance(m, torch.nn.Embedding)]
    count = sum(parameter.numel() for parameter in module.parameters())
    return WEIGHT * (count - sum(table.weight.numel() for table in tables))


# ----------------------------------------------------------------------------------- measuring


class Clock:
    """Times on the device a cell runs on.

    `ask` is called with a word where a process has to wait: for "room" before it takes much memory,
    and to be "alone" when all is warm, before time counts. With the word go begin and end of the
    parts of the first step.
    """

    def __init__(
        self, smoke: bool, ask: Callable[[str, list[tuple[float, float]]], None] | None = None
    ) -> None:
        import torch

        self.torch, self._ask = torch, ask
        self.first: list[tuple[float, float]] = []
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.rounds, self.least = (1, 0.0) if smoke else (3, 0.35)

    def name(self) -> str:
        return "cpu" if self.device.type == "cpu" else self.torch.cuda.get_device_name()

    def wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def seconds(self, step: Callable[[], object]) -> float:
        self.wait()
        begun = time.perf_counter()
        step()
        self.wait()
        return time.perf_counter() - begun

    def first_seconds(self, step: Callable[[], object]) -> float:
        begun = time.monotonic()
        taken = self.seconds(step)
        self.first.append((begun, time.monotonic()))
        return taken

    def room(self) -> None:
        if self._ask is not None:
            self._ask("room", self.first)

    def alone(self) -> None:
        if self._ask is not None:
            self._ask("alone", self.first)

    def milliseconds(self, step: Callable[[], object]) -> float:
        """Median over rounds of the mean of a few steps, a third of a second each at least."""
        once = self.seconds(step)
        count = max(1, math.ceil(self.least / max(once, 1e-4)))
        rounds = [
            self.seconds(lambda: [step() for _ in range(count)]) / count for _ in range(self.rounds)
        ]
        return statistics.median(rounds) * 1e3

    def forget_peak(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.reset_peak_memory_stats()

    def peak_mb(self) -> float | None:
        if self.device.type != "cuda":
            return None
        return self.torch.cuda.max_memory_allocated() / 2**20


def trained(cell: Cell, clock: Clock, vocab: int) -> tuple[Any, Callable[[], Any]]:
    """The model and one training step of it."""
    import torch

    device = clock.device
    sets = [torch.randint(vocab, (cell.batch, cell.length), device=device) for _ in range(4)]
    turn = iter(range(10**9))
    if cell.who == "ours":
        from statetrack.lm.config import PretrainOptimizerConfig
        from statetrack.lm.optimizer import Optimizer
        from statetrack.lm.recorded import RecordedStep
        from statetrack.training.precision import autocast

        model = build_ours(cell.model, vocab, torch.float32, device)
        recorded = device.type == "cuda" and cell.recorded
        if cell.narrow:
            model.backbone.residual_dtype = torch.bfloat16
        if device.type == "cuda":
            model.backbone.compile_blocks()
        optimizer = Optimizer(model, PretrainOptimizerConfig(lr=1e-4), recorded=recorded)

        def update(tokens: Any, targets: Any) -> tuple[Any]:
            with autocast(device, "bf16"):
                loss, _, _ = model.loss(tokens, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return (loss.detach(),)

        if recorded:
            update = RecordedStep(update, cell.batch, cell.length, device)

        def step() -> Any:
            tokens = sets[next(turn) % 4]
            return update(tokens, tokens.roll(-1, 1))[0]

        return model, step
    model = build_peer(cell, vocab, torch.float32, device)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def peer_step() -> Any:
        tokens = sets[next(turn) % 4]
        adamw.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        adamw.step()
        return loss.detach()

    return model, peer_step


@contextmanager
def shortened(model: Any) -> Iterator[None]:
    """The model with one layer of each kind."""
    from torch import nn

    owner = model.backbone if hasattr(model, "backbone") else model.model
    ours = hasattr(owner, "blocks")
    name = "blocks" if ours else "layers"
    layers = getattr(owner, name)
    kinds = {type(layer.mixer if ours else layer): layer for layer in layers}
    setattr(owner, name, nn.ModuleList(kinds.values()))
    try:
        yield
    finally:
        setattr(owner, name, layers)


def train(cell: Cell, clock: Clock, vocab: int) -> dict[str, Any]:
    model, step = trained(cell, clock, vocab)
    with shortened(model):  # compiles and tunes all there is, in little memory
        first = clock.first_seconds(step)
    clock.room()
    clock.forget_peak()  # what a graph takes, it takes when it is recorded
    first += clock.first_seconds(step)
    clock.seconds(step)
    clock.alone()
    ms = clock.milliseconds(step)
    loss = float(step())
    if not loss < 20:
        raise RuntimeError(f"the loss is {loss}")
    speed = cell.batch * cell.length / ms * 1e3
    return {
        "tokens_per_s": speed,
        "ms": ms,
        "peak_mb": clock.peak_mb(),
        "first_step_s": first,
        "mfu": speed * flops_per_token(model) / PEAK_FLOPS,
    }


def decode(cell: Cell, clock: Clock, vocab: int) -> dict[str, Any]:
    """Milliseconds a token of every sequence, behind a prompt of `length` tokens."""
    import torch

    prompts = torch.randint(vocab, (cell.batch, cell.length), device=clock.device)
    if cell.who == "ours":
        model = build_ours(cell.model, vocab, torch.bfloat16, clock.device)
        few, many = (9, 17) if clock.least == 0 else (33, 289)  # one and whole bursts

        def write(count: int) -> None:
            model.generate(prompts, max_new_tokens=count)

        def once() -> float:  # from a token on with which all is captured and warm
            writing = model.stream(prompts, max_new_tokens=many)
            for _ in range(few):
                next(writing)
            return clock.seconds(lambda: [None for _ in writing]) / (many - few)
    else:
        model = build_peer(cell, vocab, torch.bfloat16, clock.device).eval()
        few, many = 2, 10

        def write(count: int) -> None:
            options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
            model.generate(prompts, **options)

        def once() -> float:  # what both do, the prompt, takes itself away
            short, long = clock.seconds(lambda: write(few)), clock.seconds(lambda: write(many))
            return (long - short) / (many - few)

    with torch.no_grad():
        first = clock.first_seconds(lambda: write(2))
        once()
        clock.alone()
        clock.forget_peak()
        rounds = [once() for _ in range(clock.rounds)]
    ms = statistics.median(rounds) * 1e3
    return {
        "tokens_per_s": cell.batch / ms * 1e3,
        "ms": ms,
        "peak_mb": clock.peak_mb(),
        "first_step_s": first,
        "mfu": None,
    }


def prefill(cell: Cell, clock: Clock, vocab: int) -> dict[str, Any]:
    """The scores behind a prompt, and the state there."""
    import torch

    prompts = torch.randint(vocab, (cell.batch, cell.length), device=clock.device)
    if cell.who == "ours":
        from statetrack.models import generation

        model = build_ours(cell.model, vocab, torch.bfloat16, clock.device)
        everywhere = torch.ones_like(prompts, dtype=torch.bool)

        def read() -> None:
            generation._prefill(model, prompts, everywhere)
    else:
        model = build_peer(cell, vocab, torch.bfloat16, clock.device).eval()

        def read() -> None:
            model(input_ids=prompts, use_cache=True, logits_to_keep=1)

    with torch.no_grad():
        first = clock.first_seconds(read)
        clock.alone()
        clock.forget_peak()
        ms = clock.milliseconds(read)
    speed = cell.batch * cell.length / ms * 1e3
    return {
        "tokens_per_s": speed,
        "ms": ms,
        "peak_mb": clock.peak_mb(),
        "first_step_s": first,
        "mfu": speed * flops_per_token(model) / 3 / PEAK_FLOPS,  # forward alone
    }


PHASES = {"train": train, "decode": decode, "prefill": prefill}


# ----------------------------------------------------------------------------- the child process

Said = queue.Queue[tuple["Child", dict[str, Any] | None]]


def cell_of(line: str) -> Cell:
    given = json.loads(line)
    return Cell(**given | {"model": Model(**given["model"])})


def child(who: str, *, smoke: bool) -> None:
    """Imports what it needs, and then measures the cells that are named to it, a line each.

    Before it takes much memory, and before a cell's time counts, it says so and waits for a line.
    """
    import torch

    if who == "ours":
        import statetrack.models  # noqa: F401
    elif who == "transformers":
        from transformers import LlamaForCausalLM  # noqa: F401
    else:
        if torch.cuda.is_available():
            tune_quickly()
        import fla.models  # noqa: F401
    vocab = 96 if smoke else VOCAB

    def ask(what: str, first: list[tuple[float, float]]) -> None:
        print(json.dumps({"asks": what, "first": first}), flush=True)
        sys.stdin.readline()

    while line := sys.stdin.readline():
        cell, clock = cell_of(line), Clock(smoke, ask)
        torch.manual_seed(0)
        found = PHASES[cell.phase](cell, clock, vocab)
        print(json.dumps({**found, "device": clock.name()}), flush=True)
        gc.collect()  # a model that is left would count as the next cell's memory
        if clock.device.type == "cuda":
            torch.cuda.empty_cache()


def tune_quickly() -> None:
    """Triton's tuning for peers: all variants compiled at once, timed shortly and undisturbed.

    Variants that take longer than `SLOW` to compile are left out.
    """
    import fcntl

    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    was_run, was_checked, was_timed = Autotuner.run, Autotuner.check_disk_cache, Autotuner._bench

    def run(self: Any, *args: Any, **options: Any) -> Any:
        self.launched = args, {k: v for k, v in options.items() if k not in ("grid", "warmup")}
        return was_run(self, *args, **options)

    def check_disk_cache(self: Any, key: Any, configs: Any, bench: Callable[[], None]) -> Any:
        def compiled_and_timed() -> None:
            self.left_out = set()
            with suppress(Exception):  # what cannot be compiled is told by the launch
                self.left_out = compile_at_once(self.fn, *self.launched, configs)
            bench()

        return was_checked(self, key, configs, compiled_and_timed)

    def bench(self: Any, *args: Any, config: Any, **options: Any) -> Any:
        if config in getattr(self, "left_out", ()):
            return [float("inf")] * 3
        return was_timed(self, *args, config=config, **options)

    def timed(call: Callable[[], object], quantiles: Any) -> Any:
        with (Path(os.environ["TRITON_CACHE_DIR"]).parent / "tuning").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return do_bench(call, warmup=5, rep=20, quantiles=quantiles)

    Autotuner.run, Autotuner.check_disk_cache, Autotuner._bench = run, check_disk_cache, bench
    Autotuner.do_bench = property(lambda _: timed)


def compile_at_once(kernel: Any, args: Any, options: dict[str, Any], configs: Any) -> set[Any]:
    """Compiles a kernel for every config; those that are not done in time are returned."""
    import triton

    from statetrack.ops._triton.ahead import _make_kernel

    threads = []
    late = set(configs)

    def make(config: Any, job: Any, keep: Callable[[Any], None]) -> None:
        with suppress(Exception):
            keep(_make_kernel(job))
        late.discard(config)

    with triton.AsyncCompileMode(None) as mode:
        for config in configs:

            def take(key: str, job: Any, keep: Any, config: Any = config) -> None:
                given = (config, job, keep)
                threads.append(threading.Thread(target=make, args=given, daemon=True))

            mode.submit = take
            before = len(threads)
            kernel.warmup(*args, grid=(1,), **options, **config.all_kwargs())
            if len(threads) == before:  # made before
                late.discard(config)
    for thread in threads:
        thread.start()
    for _ in range(int(10 * SLOW)):  # not by a clock: this process may be stopped meanwhile
        if not late:
            break
        time.sleep(0.1)
    return late.copy()


class Child:
    """A process for the cells of a group.

    What it says, or None when it has ended, is put into `said` beside itself.
    """

    def __init__(
        self, group: list[Cell], said: Said, *, smoke: bool, caches: Path, tuned: Path | None
    ) -> None:
        self.left, self.said, self.died = list(group), said, False
        self.until = float("inf")
        self.stops: list[tuple[float, float]] = []
        self.first: list[tuple[float, float]] = []
        self.waits_since: float | None = None  # for room
        self.has_room = self.is_warm = False
        cell = group[0]
        env = os.environ | {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        if cell.who == "ours":
            place = caches / re.sub(r"\W+", "_", cell.title)
        else:
            place = tuned or caches / "peers"
        place.mkdir(parents=True, exist_ok=True)
        env |= {
            "TRITON_CACHE_DIR": str(place / "triton"),
            "TRITON_CACHE_AUTOTUNING": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        }
        asked = [sys.executable, __file__, "--child", cell.who, *(["--smoke"] if smoke else [])]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            asked,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            process_group=0,  # with those that compile for it
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.begun = time.monotonic()

    @property
    def cell(self) -> Cell:
        return self.left[0]

    @property
    def gib(self) -> float:
        return self.cell.gib if self.has_room else self.cell.few_gib

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                if line.startswith("{"):  # peers print other things too
                    self.said.put((self, json.loads(line)))
        self.said.put((self, None))

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it died early, and is about to say so
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def ask(self) -> None:
        """Has it begin with the first of the cells that are left."""
        self.until = time.monotonic() + LIMIT[self.cell.who]
        self.has_room = self.is_warm = False
        self._tell(json.dumps(asdict(self.cell)))

    def wait_for_room(self) -> None:
        self.waits_since = time.monotonic()

    def give_room(self) -> None:
        assert self.waits_since is not None
        self.until += time.monotonic() - self.waits_since
        self.waits_since, self.has_room = None, True
        self.go_on()

    def go_on(self) -> None:
        """Ends its waiting."""
        self._tell("")

    def _signal(self, which: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, which)

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)
        self.stops.append((time.monotonic(), float("inf")))

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        begun, now = self.stops[-1][0], time.monotonic()
        self.stops[-1] = begun, now
        self.until += now - begun

    def stopped_in_first_step(self) -> float:
        """Seconds of its first step in which it was stopped."""
        return sum(
            max(0.0, min(ended, b) - max(begun, a))
            for begun, ended in self.first
            for a, b in self.stops
        )

    def end(self) -> str:
        """Ends the process; what it said last of errors."""
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.reader.join()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with self.errors:
            self.errors.seek(0)
            tail = [line.strip() for line in self.errors if line.strip()]
        reason = next((line for line in reversed(tail) if "Error" in line), "")
        return (reason or (tail[-1] if tail else f"exit {self.process.returncode}"))[:300]


class Bench:
    """Processes side by side, in the order of their cells, and one alone while it is timed."""

    def __init__(
        self,
        cells: list[Cell],
        out: Path,
        *,
        seconds: float,
        smoke: bool,
        at_once: int,
        tuned: Path | None = None,
    ) -> None:
        self.cells, self.out, self.smoke, self.at_once = cells, out, smoke, at_once
        self.tuned, self.tuned_before = tuned, tuned is not None and tuned.exists()
        self.seconds, self.until = seconds, time.monotonic() + seconds
        self.starting = self.ended = False
        self.said: Said = queue.Queue()
        self.running: list[Child] = []
        self.ahead: dict[str, Child] = {}  # that import for a group which has to wait
        self.alone: list[list[Cell]] = []  # that had no memory beside others
        self.found: dict[str, dict[str, Any]] = {}
        self.common = {"versions": versions(), "date": datetime.date.today().isoformat()}

    def run(self) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as place:
            try:
                self._run(in_groups(self.cells), Path(place), self.at_once)
                groups, self.alone = self.alone, []
                self._run(groups, Path(place), 1)
            finally:  # also of a call that is ended: a process that is stopped would stay for ever
                for child in (*self.running, *self.ahead.values()):
                    child.end()
        return self.rows()

    def _run(self, groups: list[list[Cell]], caches: Path, at_once: int) -> None:
        waiting = list(groups)
        while waiting or self.running:
            while (group := next((g for g in waiting if self._fits(g, at_once)), None)) is not None:
                waiting.remove(group)
                if time.monotonic() < self.until:
                    self._start(group, caches)
                else:
                    if (child := self.ahead.pop(group[0].title, None)) is not None:
                        child.end()
                    for cell in group:
                        self._note(cell, {"reason": f"not begun within {self.seconds:.0f} s"})
            self._give_room()
            for group in waiting[: AHEAD if at_once > 1 else 0]:
                self._prepare(group, caches)
            if self.running:
                self._hear()

    def _prepare(self, group: list[Cell], caches: Path) -> None:
        """Has a process import what a group needs."""
        if group[0].title in self.ahead:
            return
        self.starting = True
        child = Child(group, self.said, smoke=self.smoke, caches=caches, tuned=self.tuned)
        self.ahead[group[0].title] = child
        self.starting = False
        if self.ended:
            sys.exit(1)

    def _start(self, group: list[Cell], caches: Path) -> None:
        self._prepare(group, caches)
        child = self.ahead.pop(group[0].title)
        self.running.append(child)
        child.begun = time.monotonic()
        if child.died:
            self._over(child, hangs=False)
        else:
            child.ask()

    def end(self, *_: Any) -> None:
        """Ends the call, but not in the middle of a start: that process would stay."""
        self.ended = True
        if not self.starting:
            sys.exit(1)

    def _fits(self, group: list[Cell], at_once: int) -> bool:
        """Whether there is room for it; a peer's kernels are tuned by one process, for all."""
        if not self.running:
            return True
        cell = group[0]
        same = not self.tuned_before and any(
            one.cell.who == "fla"
            and (one.cell.model, one.cell.phase == "train") == (cell.model, cell.phase == "train")
            for one in self.running
        )
        gib = sum(child.gib for child in self.running) + cell.few_gib
        return len(self.running) < at_once and gib <= ROOM and not same

    def _give_room(self) -> None:
        """Lets those go on for whose memory there is room, or one if all wait."""
        for child in [one for one in self.running if one.waits_since is not None]:
            others = sum(one.gib for one in self.running if one is not child)
            if others + child.cell.gib <= ROOM or not any(one.has_room for one in self.running):
                child.give_room()

    def _hear(self) -> None:
        """Waits for what a process says next and does what follows from it."""
        busy = [one for one in self.running if one.waits_since is None]
        soonest = min(busy, key=lambda child: child.until)
        until = min(soonest.until, self.until)
        try:
            child, message = self.said.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            self._over(soonest, hangs=True)
            return
        if child not in self.running:
            child.died = True  # the last words of one that was ended, or failed to import
            return
        child.is_warm = child.is_warm or message is not None
        if message is not None and message.get("asks") == "room":
            child.wait_for_room()
            return
        if message is not None and "asks" in message:
            child.first = message["first"]
            try:
                message = self._timed(child)
            except queue.Empty:
                self._over(child, hangs=True)
                return
        if message is None:
            self._over(child, hangs=False)
            return
        if self.tuned_before and child.cell.who != "ours":
            message["first_step_s"] = None
        else:
            message["first_step_s"] -= child.stopped_in_first_step()
        self._note(child.left.pop(0), message, child)
        if child.left:
            child.ask()
        else:
            self.running.remove(child)
            child.end()

    def _timed(self, child: Child) -> dict[str, Any] | None:
        """What a process measures while the others are stopped."""
        others = [one for one in (*self.running, *self.ahead.values()) if one is not child]
        for one in others:
            one.stop()
        if others:
            time.sleep(PAUSE)
        kept = []
        try:
            child.go_on()
            while (found := self.said.get(timeout=self._left(child)))[0] is not child:
                kept.append(found)
            return found[1]
        finally:
            for one in others:
                one.resume()
            for found in kept:
                self.said.put(found)

    def _left(self, child: Child) -> float:
        return max(0.0, min(LIMIT[child.cell.who], self.until - time.monotonic()))

    def _over(self, child: Child, *, hangs: bool) -> None:
        """Ends a process that failed; the cells behind the one that did begin anew."""
        beside = len(self.running) > 1
        self.running.remove(child)
        cell, *rest = child.left
        reason = child.end()
        if hangs and time.monotonic() >= self.until:
            reason = f"not done when the {self.seconds:.0f} s were over"
        elif hangs:
            reason = f"no result within {LIMIT[cell.who]:.0f} s"
        if hangs and not child.is_warm:
            reason += ", kernels still compiled or tuned"
        if beside and "OutOfMemory" in reason:
            self.alone.append(child.left)
            print(f"        {cell.title}: no memory beside others, once more later", flush=True)
            return
        self._note(cell, {"reason": reason}, child)
        if rest:
            self.alone.append(rest)

    def _note(self, cell: Cell, found: dict[str, Any], child: Child | None = None) -> None:
        self.found[cell.title] = found
        self.out.write_text(json.dumps(self.rows(), indent=1) + "\n")
        shown = found.get("reason") or f"{found['tokens_per_s']:,.0f} tokens/s"
        begun = time.monotonic() if child is None else child.begun
        print(f"{time.monotonic() - begun:6.1f} s  {cell.title}: {shown}", flush=True)

    def rows(self) -> list[dict[str, Any]]:
        """What is measured so far, in the order of the cells."""
        measured = ("tokens_per_s", "ms", "peak_mb", "first_step_s", "mfu", "reason", "device")
        blank = dict.fromkeys(measured)
        return [
            {"work": cell.work, "phase": cell.phase, "who": cell.who}
            | blank
            | self.found[cell.title]
            | self.common
            for cell in self.cells
            if cell.title in self.found
        ]


# ---------------------------------------------------------------------------------- the profile


KINDS = {
    "loss": r"softmax|cross_entropy|nll",
    "mixer": r"^_(?!convol)\w*kernel|selective|delta|linear_attention",
    "convolution": r"convolution|_conv",
    "product": r"gemm|nvjet|cutlass|cublas|splitK|gemv|wgmma|::dot",
    "attention": r"flash|fmha|attention|sdpa",
    "optimiser": r"multi_tensor|FusedAdam",
    "compiled elementwise": r"^triton_",
    "copies": r"Memcpy|Memset|copy_kernel",
}
"""The first that a kernel's name matches."""


def kind_of(kernel: str) -> str:
    return next((k for k, words in KINDS.items() if re.search(words, kernel)), "elementwise")


def shares(kernels: list[tuple[str, float, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """Time by kind and by name, from (name, begin, end), and what no kernel ran in as "idle"."""
    by_kind: dict[str, float] = {}
    by_name: dict[str, float] = {}
    for name, begin, end in kernels:
        by_name[name] = by_name.get(name, 0.0) + end - begin
        by_kind[kind_of(name)] = by_kind.get(kind_of(name), 0.0) + end - begin
    idle, reached = 0.0, None
    for _, begin, end in sorted(kernels, key=lambda one: one[1]):
        if reached is not None and begin > reached:
            idle += begin - reached
        reached = end if reached is None else max(reached, end)
    by_kind["idle"] = idle
    return by_kind, by_name


def profile(cell: Cell, out: Path, *, smoke: bool) -> None:
    """Which kernels the steps of a cell spend their time in, as a text."""
    import torch

    clock, vocab = Clock(smoke), 96 if smoke else VOCAB
    steps = 3
    if cell.phase == "train":
        model, step = trained(cell, clock, vocab)
        inside: Any = nullcontext()
    else:
        from statetrack.models import generation

        model = build_ours(cell.model, vocab, torch.bfloat16, clock.device)
        prompts = torch.randint(vocab, (cell.batch, cell.length), device=clock.device)
        writing = generation.stream(model, prompts, max_new_tokens=10**4)
        inside, steps = torch.no_grad(), 32

        def step() -> Any:
            return next(writing)

    with inside:
        for _ in range(2 * steps):
            step()
        memory = _memory(step, clock) if cell.phase == "train" else ""
        on_gpu = clock.device.type == "cuda"
        kind = torch.profiler.ProfilerActivity.CUDA if on_gpu else None
        activities = [torch.profiler.ProfilerActivity.CPU, *([kind] if kind else [])]
        with torch.profiler.profile(activities=activities) as profiler:
            seconds = clock.seconds(lambda: [step() for _ in range(steps)])
    device = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    kernels = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == device and not event.name.startswith("Optimizer.step")
    ]
    by_kind, by_name = shares(kernels)
    lines = [f"{cell.title}: {1e3 * seconds / steps:.3f} ms a step under the profiler", memory, ""]
    for table, many in ((by_kind, 99), (by_name, 60)):
        total = sum(table.values())
        for name, spent in sorted(table.items(), key=lambda one: -one[1])[:many]:
            count = sum(1 for kernel in kernels if kernel[0] == name)
            times = f"{count / steps:7.1f} x" if count else " " * 9
            lines.append(f"{spent / steps / 1e3:9.3f} ms {spent / total:6.1%} {times} {name[:110]}")
        lines.append("")
    out.write_text("\n".join(lines))
    print("\n".join(lines[: 4 + len(by_kind)]), flush=True)
    del model


def _memory(step: Callable[[], Any], clock: Clock) -> str:
    """What is allocated between steps and at most."""
    clock.forget_peak()
    step()
    clock.wait()
    peak = clock.peak_mb()
    if peak is None:
        return ""
    import torch

    between = torch.cuda.memory_allocated() / 2**30
    return f"at most {peak / 1024:.2f} GiB, between steps {between:.2f} GiB"


# ------------------------------------------------------------------------------- table and plots


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each work and phase: ours, the peer, and how many times as fast ours is."""
    lines = [
        f"{'phase':8}{'work':38}{'who':13}{'tokens/s':>10}{'ms':>10}{'GiB':>7}{'first s':>9}"
        f"{'MFU':>7}{'ratio':>7}"
    ]
    ours = {(row["phase"], row["work"]): row for row in rows if row["who"] == "ours"}
    for row in rows:
        key = f"{row['phase']:8}{row['work']:38}{row['who']:13}"
        if row["tokens_per_s"] is None:
            lines.append(f"{key}{'-':>10}  {row['reason']}")
            continue
        mine = ours.get((row["phase"], row["work"]))
        compared = row["who"] != "ours" and mine and mine["tokens_per_s"]
        ratio = f"{mine['tokens_per_s'] / row['tokens_per_s']:.2f}" if compared and mine else ""
        peak = "" if row["peak_mb"] is None else f"{row['peak_mb'] / 1024:.1f}"
        first = "" if row["first_step_s"] is None else f"{row['first_step_s']:.1f}"
        mfu = "" if row["mfu"] is None else f"{row['mfu']:.1%}"
        lines.append(
            f"{key}{row['tokens_per_s']:10,.0f}{row['ms']:10.3f}{peak:>7}"
            f"{first:>9}{mfu:>7}{ratio:>7}"
        )
    return "\n".join(lines)


def markdown(rows: list[dict[str, Any]]) -> str:
    """The same for a page: a line for each work, ours beside the peer's and the goal."""
    lines = [
        "| | ours | MFU | GiB | first step | peer | GiB | ours / peer | goal |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for (phase, work), sides in by_work(rows).items():
        ours, peer = sides.get("ours"), sides.get("peer")
        share = f"{ours['mfu']:.0%}" if ours and ours["mfu"] else ""
        mine, other = _shown(ours), _shown(peer)
        whose = f" {peer['who']}" if peer and peer["tokens_per_s"] else ""
        ratio = times_faster(sides)
        lines.append(
            f"| {phase} {work} | {mine[0]} | {share} | {mine[1]} | {mine[2]} "
            f"| {other[0]}{whose} | {other[1]} | {f'{ratio:.2f}' if ratio else ''} "
            f"| {goal_of(phase, work)} |"
        )
    return "\n".join(lines)


def by_work(rows: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """The rows of "ours" and of the "peer", by phase and work."""
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        side = "ours" if row["who"] == "ours" else "peer"
        found.setdefault((row["phase"], row["work"]), {})[side] = row
    for (phase, work), sides in found.items():
        wide = found.get((phase, work.removesuffix(NARROW)), {})
        if "peer" in wide:
            sides["peer"] = wide["peer"]
    return found


def goal_of(phase: str, work: str) -> str:
    return GOALS.get(f"{phase} {work.removesuffix(NARROW)}", "")


def times_faster(sides: dict[str, dict[str, Any]]) -> float | None:
    speeds = [sides.get(side, {}).get("tokens_per_s") for side in ("ours", "peer")]
    return speeds[0] / speeds[1] if speeds[0] and speeds[1] else None


def _shown(row: dict[str, Any] | None) -> tuple[str, str, str]:
    """Speed or the reason why there is none, GiB, seconds."""
    if row is None:
        return "", "", ""
    if row["tokens_per_s"] is None:
        return row["reason"].replace("|", "/"), "", ""
    speed = f"{row['tokens_per_s'] / 1e3:.1f}k tokens/s"
    if row["phase"] == "decode":
        speed = f"{row['ms']:.2f} ms a token"
    peak = "" if row["peak_mb"] is None else f"{row['peak_mb'] / 1024:.1f}"
    first = "" if row["first_step_s"] is None else f"{row['first_step_s']:.0f} s"
    return speed, peak, first


def on_page(rows: list[dict[str, Any]], files: list[Path], pictures: list[Path]) -> str:
    """What stands on the page between the two marks: what was measured, pictures, the table."""
    works = by_work(rows)
    dates = ", ".join(dict.fromkeys(row["date"] for row in rows))
    numbers: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, number in row["versions"].items():
            numbers.setdefault(name, {})[number] = None
    words = ", ".join(f"{name} {' and '.join(found)}" for name, found in numbers.items())
    device = next((row["device"] for row in rows if row["device"]), "no device")
    sources = ", ".join(f"[{file.name}](../../benchmarks/results/{file.name})" for file in files)
    said = headline(works)
    faster = {work: ratio for work, sides in works.items() if (ratio := times_faster(sides))}
    for phase, verb in (("train", "trains"), ("prefill", "reads a prompt"), ("decode", "decodes")):
        ratios = [ratio for (one, _), ratio in faster.items() if one == phase]
        if ratios:
            between = " to ".join(dict.fromkeys(f"{f(ratios):.2f}" for f in (min, max)))
            said.append(f"Ours {verb} {between} times as fast as its peer.")
    missed = [text for text in map(_missed, works, works.values()) if text]
    reached = {" ".join(work) for work in works}.difference(missed)
    missed = [text for text in missed if not text.endswith(NARROW) and text + NARROW not in reached]
    said += [f"Short of a goal: {'; '.join(missed)}."] if missed else []
    shown = [f"![{WHAT[file.stem]}](../images/{file.name})" for file in pictures]
    source = f"{dates}, {device}, {words} (records: {sources})."
    return "\n\n".join([" ".join(said), *shown, markdown(rows), source])


def headline(works: dict[tuple[str, str], dict[str, dict[str, Any]]]) -> list[str]:
    """What the first model does, in a sentence for each side."""
    said = []
    for side, whose in (("ours", "The DeltaNet of 374M parameters"), ("peer", "fla's")):
        trained = works.get(("train", "DeltaNet 374M B16 T2048"), {}).get(side)
        written = works.get(("decode", "DeltaNet 374M B1"), {}).get(side)
        words = []
        if trained and trained["tokens_per_s"]:
            words.append(
                f"trains at {trained['tokens_per_s'] / 1e3:.0f} thousand tokens a second in "
                f"{trained['peak_mb'] / 1024:.1f} GiB, {trained['mfu']:.0%} of what the chip's "
                "matrix products could do"
            )
        if written and written["tokens_per_s"]:
            words.append(f"writes a token in {written['ms']:.2f} ms")
        if words:
            said.append(f"{whose} {', and '.join(words)}.")
    return said


def _missed(work: tuple[str, str], sides: dict[str, dict[str, Any]]) -> str | None:
    """The work, where what was measured is short of its goal."""
    goal, ours = goal_of(*work), sides.get("ours")
    if not goal or ours is None or ours["tokens_per_s"] is None:
        return None
    ratio = times_faster(sides)
    for words in goal.split(", "):
        number = float(re.findall(r"[\d.]+", words)[0])
        reached = {
            "k": ours["tokens_per_s"] >= 1e3 * number,
            " GiB": (ours["peak_mb"] or 0.0) <= 1024 * number,
            " s": (ours["first_step_s"] or 0.0) <= number,
            " ms": ours["ms"] <= number,
            " times the peer": ratio is None or ratio >= number,
        }
        if not reached[re.sub(r".*[\d.]+", "", words)]:
            return " ".join(work)
    return None


def put_on_page(page: Path, text: str) -> None:
    """Replaces what stands between the two marks of a page."""
    before, found, rest = page.read_text().partition(MARKS[0])
    _, ended, after = rest.partition(MARKS[1])
    if not (found and ended):
        raise SystemExit(f"{page} lacks the marks {MARKS[0]} and {MARKS[1]}")
    page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


def _sweep(line: str) -> str:
    """What a line and that of its peer share: model and what is fixed."""
    return line.partition(": ")[2]


def plot(rows: list[dict[str, Any]], images: Path) -> list[Path]:
    """Training tokens/s against length, at one number of tokens a step, and against batch.

    A side needs three points; whatever the other has is drawn beside it.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    lines: dict[str, dict[str, dict[int, float]]] = {"length": {}, "batch": {}}
    for row in rows:
        size = re.fullmatch(r"(.*) B(\d+) T(\d+)", row["work"])
        if not size or row["phase"] != "train" or row["tokens_per_s"] is None:
            continue
        model, b, t = size[1], int(size[2]), int(size[3])
        for picture, x, fixed in (
            ("length", t, f"{b * t:,} tokens a step"),
            ("batch", b, f"sequences of {t:,} tokens"),
        ):
            line = f"{row['who']}: {model}, {fixed}"
            lines[picture].setdefault(line, {})[x] = row["tokens_per_s"] / 1e3
    made = []
    for picture, found in lines.items():
        swept = {_sweep(line) for line, points in found.items() if len(points) > 2}
        found = {line: points for line, points in found.items() if _sweep(line) in swept}
        if not found:
            continue
        figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
        for line, points in found.items():
            style = "o-" if line.startswith("ours") else "s--"
            axes.semilogx(*zip(*sorted(points.items()), strict=True), style, label=line, base=2)
            for x, y in points.items():
                axes.annotate(
                    f"{y:.0f}", (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=8
                )
        axes.set_xticks(sorted({x for points in found.values() for x in points}))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.set_xlabel("tokens of a sequence" if picture == "length" else "sequences a step")
        axes.set_ylabel("thousand tokens a second, training")
        axes.set_ylim(0, 1.12 * max(max(points.values()) for points in found.values()))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower center", fontsize=8)
        made.append(images / f"lm_against_{picture}.png")
        figure.savefig(made[-1], dpi=120)
        pyplot.close(figure)
    return made


# ---------------------------------------------------------------------------------------- main


def versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "triton", "transformers", "flash-linear-attention"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    peer = importlib.util.find_spec("fla")
    if peer is not None and peer.origin is not None:  # a checkout has a number, but no metadata
        number = re.search(r'__version__ = "(.*)"', Path(peer.origin).read_text())
        found.setdefault("flash-linear-attention", number[1] if number else "unknown")
    return found


def in_groups(chosen: list[Cell]) -> list[list[Cell]]:
    """Cells that share a process: a model's decoding and prefill. Training has one for each."""
    groups: list[list[Cell]] = []
    for cell in chosen:
        last = groups[-1][-1] if groups else None
        alike = last is not None and (last.model, last.who) == (cell.model, cell.who)
        if alike and last is not None and "train" not in (last.phase, cell.phase):
            groups[-1].append(cell)
        else:
            groups.append([cell])
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="substrings of phase|work|who, by commas")
    parser.add_argument("--who", default="", help="ours, fla or transformers")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for all cells together")
    parser.add_argument("--at-once", type=int, default=1, help="processes that warm up together")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, also on a CPU")
    parser.add_argument("--sweep", action="store_true", help="against length and batch too")
    parser.add_argument("--blocks", action="store_true", help="record no step of ours")
    parser.add_argument("--tuned", type=Path, help="keeps what peers tune, for a later call")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path, metavar="FILE", help="of the first chosen cell")
    parser.add_argument("--plot", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, smoke=args.smoke)
        return
    if args.plot:
        rows = [row for file in args.plot for row in json.loads(file.read_text())]
        docs = Path(__file__).parents[1] / "docs"
        pictures = plot(rows, docs / "images")
        put_on_page(docs / "measurements" / "lm.md", on_page(rows, args.plot, pictures))
        print(table(rows), *pictures, sep="\n")
        return
    more = sweep() if args.sweep else []
    everything = smoke() if args.smoke else in_order([*cells(), *more])
    wanted = args.only.split(",")
    chosen = [
        replace(cell, recorded=not args.blocks)
        for cell in everything
        if any(words in cell.title for words in wanted) and args.who in cell.who
    ]
    if not chosen:
        raise SystemExit(f"no cell has {args.only!r} and {args.who!r}")
    if args.profile:
        profile(chosen[0], args.profile, smoke=args.smoke)
        return
    today = datetime.date.today().isoformat()
    out = args.out or Path(__file__).parent / "results" / f"lm_{today}.json"
    out.parent.mkdir(exist_ok=True)
    bench = Bench(
        chosen,
        out,
        seconds=args.seconds,
        smoke=args.smoke,
        at_once=args.at_once,
        tuned=args.tuned and args.tuned.absolute(),
    )
    signal.signal(signal.SIGTERM, bench.end)
    print(table(bench.run()))


if __name__ == "__main__":
    main()
