"""From examples to an exact network, in one command."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from statetrack.cli import show

if TYPE_CHECKING:
    from statetrack.compiler import CompiledRNN
    from statetrack.runs import Run
    from statetrack.tasks import Task

__all__ = ["exact"]

TRIED = (64, 256, 1024)
"""Lengths at which both networks are tried on random sequences."""
SEQUENCES = 64


def exact(
    run: Path | None = None,
    *,
    task: str = "parity_dense",
    steps: int = 500,
    width: int = 32,
    heads: int = 2,
    householders: int | None = None,
    longest: int = 16,
    lr: float = 5e-3,
    seed: int = 0,
    out: Path = Path("exact"),
) -> int:
    """Train on examples, extract the machine that was learnt, compile it, prove it.

    The trained model is right for a while, the compiled network after words of any length. It takes
    a minute on two CPU cores. The machine is written to OUT/machine.json, the network to
    OUT/network, the run to a folder in OUT, and what was found to OUT/exact.json, which `statetrack
    archive` and `statetrack report` take.

    Parameters
    ----------
    run
        The folder of a run that has been trained already; the options about training are then not
        allowed.
    task
        What the examples show, see `statetrack tasks`: parity_dense, z3, s3_swaps, s5_swaps.
    steps
        Updates of the weights.
    width
        Features of a token in the model.
    heads
        Heads of its layer.
    householders
        Factors of its transitions for each token; by default as many as the compiled network of
        the task's machine has (2 for z3 and s3), one if it has none.
    longest
        The longest example.
    lr
        The learning rate.
    seed
        Of the weights and of the examples.
    out
        The folder to write.
    """
    from statetrack import compiler
    from statetrack.analysis import extract, horizon
    from statetrack.analysis.exact_file import Right, exact_record, write_exact
    from statetrack.runs.folder import run_at

    training = (task, steps, width, heads, householders, longest, lr, seed)
    out.mkdir(parents=True, exist_ok=True)
    if run is None:
        print(f"1. train on examples of {task} of up to {longest} letters", flush=True)
        trained = _trained(out, *training)
    elif training != _defaults():
        raise ValueError(f"options about training do not go with {run}, which is trained already")
    else:
        print(f"1. {run} is trained already", flush=True)
        trained = run_at(run)
    learns = trained.config.learns
    print("2. extract the machine that it has learnt", flush=True)
    found = extract(trained)
    print(found)
    right = horizon(trained.model(), learns, TRIED, sequences=SEQUENCES)
    if found.machine is None:
        rows = [Right(length, right[length], None) for length in TRIED]
        kept = write_exact(exact_record(trained, found, None, rows), out)
        print("there is no machine to compile: train longer, or with more heads or Householders")
        print(f"Record: {kept}")
        return 1
    found.save(out / "machine.json")
    print("3. compile it and prove the network", flush=True)
    network = compiler.compile(found.machine)
    network.save(out / "network")
    proof = compiler.prove(network)
    print(f"{network.plan.method}: {network.plan.cost}; {proof}")
    rows = [Right(length, right[length], _right(network, length)) for length in TRIED]
    kept = write_exact(exact_record(trained, found, (network, proof), rows), out)
    broken = found.breaks
    tried = f"agreed to {found.trusted_to} letters"
    tried += "" if broken is None else f", wrong after {len(broken.word)}"
    proved = "any length, proved" if proof.wrong is None else f"wrong after {len(proof.wrong)}"
    show.table(
        f"{learns.name}: random sequences without a mistake",
        ["network", *(f"right at {length}" for length in TRIED), "every word tried"],
        [
            ["trained", *(show.number(row.trained, "{:.0%}") for row in rows), tried],
            ["compiled", *(show.number(row.compiled, "{:.0%}") for row in rows), proved],
        ],
    )
    print(f"Machine: {out / 'machine.json'}\nNetwork: {out / 'network'}/\nRun: {trained.folder}/")
    print(f"Record: {kept}")
    return 0 if proof.wrong is None else 1


def _defaults() -> tuple[object, ...]:
    """Of the options about training: all but the run and the folder to write."""
    options = inspect.signature(exact).parameters.items()
    return tuple(one.default for name, one in options if name not in ("run", "out"))


def _trained(
    out: Path,
    task: str,
    steps: int,
    width: int,
    heads: int,
    householders: int | None,
    longest: int,
    lr: float,
    seed: int,
) -> "Run":
    """One layer of the delta rule, trained on examples."""
    from statetrack import tasks
    from statetrack.models import BackboneConfig, TaggerConfig
    from statetrack.models.config import Mixer
    from statetrack.sweep.progress import Progress
    from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig
    from statetrack.training import run as train

    learns = tasks.get(task)
    factors = _needed(learns) if householders is None else householders
    options = {"num_heads": heads, "conv_size": 0, "num_householders": factors}
    config = RunConfig(
        task=task,
        model=TaggerConfig(
            vocab_size=learns.vocab_size,
            num_classes=learns.num_classes,
            backbone=BackboneConfig(
                mixers=(Mixer.of(("DeltaProduct", options)),), d_model=width, mlp="none"
            ),
        ),
        steps=steps,
        batch=64,
        lengths=(longest if learns.fixed_length else min(3, longest), longest),
        optimizer=OptimizerConfig(lr=lr),
        evaluation=EvaluationConfig(every=steps, size=64),
        log_every=min(50, steps),
        checkpoint_every=None,
        seed=seed,
        data_seed=seed,
    )
    with Progress() as progress:
        progress.begin([config], out)
        return train(config, out, watcher=progress)


def _needed(learns: "Task") -> int:
    """Householders a token that are enough for the machine of a task in a compiled network."""
    from statetrack import compiler

    if learns.machine is None:
        return 1
    return max(1, compiler.compile(learns.machine).plan.cost.householders)


def _right(network: "CompiledRNN", length: int) -> float:
    """The share of random words that a compiled network follows without a mistake."""
    import numpy as np
    import torch

    machine = network.machine
    words = np.random.default_rng(0).integers(0, machine.num_letters, (SEQUENCES, length))
    states = network(torch.from_numpy(words)).numpy()
    return float((states == machine.run(words)).all(axis=1).mean())
