"""Language models: text to token shards, and pretraining on them."""

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from statetrack.cli import show
from statetrack.cli.options import Flag, choose_device, expect_nothing_beside, pairs_of

if TYPE_CHECKING:
    from statetrack.lm import PretrainConfig

__all__ = ["Recipe", "pretrain", "pretrain_config", "tokenize"]

OUTPUT = Parameter(group=Group("Output", sort_key=6))
VOCAB_SIZE = 32_000


def tokenize(
    *sources: str,
    out: Path,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    end: str = "<|endoftext|>",
    by_folder: Flag = False,
    hold_out: list[str] | None = None,
    hold_out_share: float = 0.0,
    workers: int | None = None,
    launcher: Literal["processes", "ray"] = "processes",
) -> int:
    """Turns text into token shards for pretraining. Interrupted, the same command goes on.

    Parameters
    ----------
    sources
        Text files, .jsonl files with a "text" in every line, or folders of them; each is a domain
        of its own. code=FOLDER gives the domain a name.
    out
        The folder to write: shards, tokenizer.json and manifest.json.
    tokenizer
        A tokenizer.json, or bytes for one token a byte; by default one is trained on the text.
    vocab_size
        Tokens of the tokenizer that is trained; by default 32000.
    end
        The token of the tokenizer that ends a document.
    by_folder
        The sub-folders of every folder are domains.
    hold_out
        Text for validation instead of training, as a pattern of domain/name: code/project/*; may be
        repeated.
    hold_out_share
        The share of projects (the first folders of a domain, or the "project" of a line) that is
        for validation.
    workers
        Processes; by default one for each core.
    launcher
        processes on this machine, or ray on the cluster that Ray finds.
    """
    from statetrack import lm

    if not sources:
        raise ValueError("give text files or folders of them")
    if tokenizer is not None and vocab_size is not None:
        raise ValueError(f"--tokenizer {tokenizer} has its own tokens: leave out --vocab-size")
    manifest = lm.tokenize(
        lm.sources_of(sources, by_folder=by_folder),
        out,
        tokenizer=None if tokenizer is None else _tokenizer(tokenizer),
        vocab_size=VOCAB_SIZE if vocab_size is None else vocab_size,
        end=end,
        hold_out=hold_out or (),
        hold_out_share=hold_out_share,
        workers=workers,
        launcher=launcher,
        progress=_progress(),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    for split, domains in manifest.splits.items():
        for domain, shards in domains.items():
            tokens = sum(one.tokens for one in shards)
            size = sum(one.text_bytes for one in shards)
            documents = sum(one.documents for one in shards)
            print(
                f"{split:11} {domain:16} {tokens:14,} tokens {documents:10,} texts "
                f"{size / tokens:6.2f} bytes a token"
            )
    if not manifest.domains("validation"):
        print(
            "no text is held out for validation: --hold-out or --hold-out-share chooses some",
            file=sys.stderr,
        )
    print(f"Shards: {out}")
    return 0


def _tokenizer(given: str) -> Any:
    from statetrack import lm

    if given != "bytes":
        return lm.Text.read(given)
    text = lm.Text.of_bytes()
    text.tokenizer.add_special_tokens(["<|endoftext|>"])
    return text


def _progress() -> Callable[[int, int, int], None]:
    line = show.LiveLine()

    def tell(done: int, of: int, tokens: int) -> None:
        line(f"  {done / 1e6:.1f} of {of / 1e6:.1f} MB, {tokens:,} tokens", last=done == of)

    return tell


@Parameter(name="*", group=Group("Model", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class Model:
    """What is trained."""

    size: str = "20M"
    """20M, 60M, 340M or 1.3B: a recipe, which every other option may change."""
    model: str = "DeltaNet"
    """The layer of every block, see `statetrack layers`."""
    eigen_range: tuple[float, float] | None = None
    """The range of the transition's eigenvalues, as in -1 1 or 0 1; by default the layer's own."""
    option: tuple[str, ...] | None = None
    """An option of the layer, as in num_heads=2; may be repeated. With a range of -1 1 delta rules
    have predicted text better with beta_start=0.5."""
    width: int | None = None
    """Features of a token between the blocks."""
    layers: int | None = None
    """Number of blocks."""
    tied: Flag = False
    """The head shares the weights of the token table."""


@Parameter(name="*", group=Group("Data", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class Data:
    """What is read."""

    batch: int | None = None
    """Sequences of a step, over all processes."""
    length: int | None = None
    """Tokens of a sequence."""
    documents: Literal["joined", "packed"] | None = None
    """joined reads the text as it is; packed begins every document with an empty state."""
    carry_state: Flag = False
    """A sequence goes on with the state that the one before it has left."""
    mixture: tuple[str, ...] | None = None
    """The share of a domain, as in code=0.7; may be repeated. By default as much as there is."""
    seed: int = 0
    """Of the initial weights and of the order of the data."""


@Parameter(name="*", group=Group("Optimiser", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """How it is learnt."""

    steps: int | None = None
    """Updates of the weights."""
    optimizer: Literal["adamw", "muon"] | None = None
    """muon is for the matrices of the blocks, the rest stays with AdamW."""
    lr: float | None = None
    """Learning rate at its peak."""
    weight_decay: float | None = None
    """Of matrices."""
    clip_norm: float | None = None
    """Bound on the norm of the gradient; by default 1."""
    schedule: Literal["cosine", "wsd", "constant"] | None = None
    """How the rate falls: wsd stays at the peak until the last fifth of the steps."""
    warmup: float | None = None
    """Share of the steps in which the learning rate rises."""
    z_loss: float | None = None
    """Weight of the square of log Z, which keeps scores small; 1e-4 is usual."""
    skip_spikes: Flag = False
    """Leave out updates whose loss stands out; otherwise they are only reported."""


@Parameter(name="*", group=Group("Machine", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class Machine:
    """What changes memory and speed, and numbers by rounding alone."""

    precision: Literal["fp32", "bf16"] | None = None
    """bf16 keeps fp32 weights."""
    residual_precision: Literal["fp32", "bf16"] | None = None
    """Of the residual stream; bf16 is faster, keeps less, and rounds what blocks add to 8 bits."""
    micro_batch: int | None = None
    """Sequences that one process reads at once; by default all of its share."""
    recompute: Flag = False
    """Activation checkpointing: less memory, a third more work."""
    compile: Literal["blocks", "step"] | None = None
    """blocks: every block by torch.compile. step: and a whole step as one CUDA graph."""
    context_parallel: int | None = None
    """Processes that share each sequence, cut in time: for sequences too long for one."""
    peak_tflops: float | None = None
    """Of one device, for the MFU; by default it is measured."""


@Parameter(name="*", group=Group("Evaluation", sort_key=5))
@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What it is judged by."""

    eval_every: int | None = None
    """Steps between two looks at the validation text."""
    eval_windows: int | None = None
    """Sequences of every domain that are looked at."""
    log_every: int | None = None
    """Steps between two rows of the records."""
    checkpoint_every: int | None = None
    """Steps between two checkpoints."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run as the command line describes it."""

    model: Model = Model()
    data: Data = Data()
    optimiser: Optimiser = Optimiser()
    machine: Machine = Machine()
    evaluation: Evaluation = Evaluation()


DEFAULT = Recipe()


def pretrain(
    shards: Path | None = None,
    *,
    recipe: Recipe = DEFAULT,
    config: Annotated[Path | None, OUTPUT] = None,
    show_config: Annotated[Flag, OUTPUT] = False,
    out: Annotated[Path, OUTPUT] = Path("runs"),
    device: Annotated[str | None, OUTPUT] = None,
    tensorboard: Annotated[Flag, OUTPUT] = False,
    wandb: Annotated[str | None, OUTPUT] = None,
) -> int:
    """Pretrain a language model on token shards, in a folder named by its configuration.

    A run that is there already is not trained again, one that was interrupted goes on. Several
    processes share one run: `torchrun --nproc-per-node 8 -m statetrack lm pretrain ...`. The
    folder of a finished run is a model for `lm generate` and `lm evaluate`.

    Parameters
    ----------
    shards
        A folder that `statetrack lm tokenize` has written.
    config
        A config.json of another run, instead of all of the above; with SHARDS the text is there.
    show_config
        Print the config and train nothing.
    out
        Where run folders go.
    device
        cpu or cuda; by default GPUs if there are any.
    tensorboard
        Also write TensorBoard events into the run folder.
    wandb
        Also log to this Weights & Biases project.
    """
    from statetrack.runs import ranks
    from statetrack.runs.folder import config_file
    from statetrack.runs.labels import label
    from statetrack.runs.mirrors import TensorBoard, WeightsAndBiases
    from statetrack.runs.records import Sink
    from statetrack.sweep.progress import Progress, Silent
    from statetrack.training import run

    if config is not None:
        expect_nothing_beside(config, recipe)
    elif shards is None:
        raise ValueError("give a folder of shards, which `statetrack lm tokenize` writes")
    with ranks.join(choose_device(device)) as where:
        chosen = ranks.once(lambda: _chosen(shards, recipe, config))
        if show_config:
            if ranks.is_first():
                print(json.dumps(config_file(chosen), indent=1, sort_keys=True))
            return 0
        mirrors: list[Sink] = []
        if tensorboard and ranks.is_first():
            mirrors.append(TensorBoard(out / chosen.fingerprint / "tensorboard"))
        if wandb is not None and ranks.is_first():
            mirrors.append(WeightsAndBiases(chosen, project=wandb, folder=out))
        out.mkdir(parents=True, exist_ok=True)  # a mistake in it is told before anything else
        if not ranks.is_first():
            run(chosen, out, device=where, watcher=Silent())
            return 0
        with Progress() as progress:
            progress.begin([chosen], out)
            try:
                finished = run(chosen, out, device=where, mirrors=mirrors, watcher=progress)
            except KeyboardInterrupt:
                folder = out / chosen.fingerprint
                raise KeyboardInterrupt(show.stopped(folder, chosen.steps)) from None
    print(label(chosen))
    for name in ("train", "validation"):
        value = finished.last("loss", name)
        if value is not None:
            print(f"  {name:12}loss {value:.4f}")
    speed = finished.last("tokens_per_s", "machine")
    if speed is not None:
        print(f"  {speed:,.0f} tokens/s, MFU {finished.last('mfu', 'machine'):.1%}")
    print(f"Records, config, weights and tokenizer: {finished.folder}/")
    return 0


def _chosen(shards: Path | None, recipe: Recipe, config: Path | None) -> "PretrainConfig":
    from statetrack.runs.folder import read_config

    if config is None:
        assert shards is not None
        return pretrain_config(shards, recipe)
    found: Any = read_config(config)
    if found.KIND != "lm":
        raise ValueError(f"{config} is the config of a {found.KIND}, not of a language model")
    return found if shards is None else dataclasses.replace(found, data=str(shards))


def pretrain_config(shards: Path, recipe: Recipe) -> "PretrainConfig":
    """The run that `recipe` describes: a named size, and what was given besides."""
    from statetrack.cli.train import layer_options
    from statetrack.lm import recipes as named

    model, data, how, judge = recipe.model, recipe.data, recipe.optimiser, recipe.evaluation
    options = layer_options(model.option or (), model.eigen_range)
    usual = named.pretrain_config(
        shards, model.size, model.model, mixer_options=options, tie_embeddings=model.tied
    )
    given = {
        "batch": data.batch,
        "length": data.length,
        "documents": data.documents,
        "carry_state": data.carry_state or None,
        "mixture": data.mixture and _shares(data.mixture),
        "steps": how.steps,
        "z_loss": how.z_loss,
        "skip_spikes": how.skip_spikes or None,
        "precision": recipe.machine.precision,
        "residual_precision": recipe.machine.residual_precision,
        "micro_batch": recipe.machine.micro_batch,
        "recompute": recipe.machine.recompute or None,
        "compile": recipe.machine.compile,
        "context_parallel": recipe.machine.context_parallel,
        "peak_tflops": recipe.machine.peak_tflops,
        "log_every": judge.log_every,
        "checkpoint_every": judge.checkpoint_every,
    }
    changes = _without_none(given)
    optimizer = _without_none(
        {
            "kind": how.optimizer,
            "lr": how.lr,
            "weight_decay": how.weight_decay,
            "clip_norm": how.clip_norm,
        }
    )
    schedule = _without_none({"shape": how.schedule, "warmup": how.warmup})
    evaluation = _without_none({"every": judge.eval_every, "windows": judge.eval_windows})
    return dataclasses.replace(
        usual,
        model=_resized(usual.model, model.width, model.layers),
        optimizer=dataclasses.replace(usual.optimizer, **optimizer),
        schedule=dataclasses.replace(usual.schedule, **schedule),
        evaluation=dataclasses.replace(usual.evaluation, **evaluation),
        seed=data.seed,
        data_seed=data.seed,
        **changes,
    )


def _resized(model: Any, width: int | None, layers: int | None) -> Any:
    """The model with another width, its MLP in proportion, or another number of blocks."""
    backbone = model.backbone
    changes: dict[str, Any] = {}
    if width is not None:
        ratio = backbone.mlp_dim / backbone.d_model
        changes |= {"d_model": width, "mlp_dim": max(1, round(ratio * width))}
    if layers is not None:
        changes["mixers"] = tuple(backbone.mixers[i % len(backbone.mixers)] for i in range(layers))
    return dataclasses.replace(model, backbone=dataclasses.replace(backbone, **changes))


def _shares(pairs: tuple[str, ...]) -> dict[str, float]:
    """
    >>> _shares(("code=0.7", "prose=0.3"))
    {'code': 0.7, 'prose': 0.3}
    """
    found = {}
    for name, share in pairs_of("--mixture", pairs, "domain=share").items():
        try:
            found[name] = float(share)
        except ValueError:
            raise ValueError(f"--mixture {name}={share}: the share must be a number") from None
    return found


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
