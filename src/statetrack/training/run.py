"""`run` and `run_together`: training in run folders, skipped, resumed or started."""

import contextlib
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statetrack import ops
from statetrack.layers import Layer
from statetrack.runs import checkpoints, ranks
from statetrack.runs.checkpoints import Checkpoint
from statetrack.runs.environment import environment
from statetrack.runs.errors import write_error
from statetrack.runs.folder import Run
from statetrack.runs.records import Record, Sink
from statetrack.runs.warn import warn
from statetrack.runs.writer import Follower, Writer, claim
from statetrack.training.engine import Engine, NonFiniteLoss
from statetrack.training.executor import Executor
from statetrack.training.stacked import Stacked, can_stack
from statetrack.training.start import Weights, start_in, started, weights_digest

__all__ = ["run", "run_together"]

Watcher = Callable[[Any, list[Record]], None]
"""Called with the config and the new rows each time a run reports."""


def run(
    config: Any,
    root: Path | str = "runs",
    *,
    device: torch.device | str = "cpu",
    mirrors: Sequence[Sink] = (),
    watcher: Watcher | None = None,
    start: Mapping[str, Tensor] | None = None,
) -> Run:
    """Trains `config` in `root`/fingerprint: skipped if finished there, resumed if interrupted.

    Killed at any moment and called again, it ends with the same records and weights as if it had
    never been killed (bit for bit on the CPU with the same number of threads). Ctrl-C saves a
    checkpoint at the next report and then stops. A failure leaves its traceback in error.txt and is
    raised; a finished run whose files have changed since is refused. `mirrors` get every record
    that this call makes. On a GPU a tagger is compiled, and its step is one CUDA graph.

    `config` is of any kind. Where several processes train one run (see `runs.ranks`), all of them
    call this.

    `start` are weights to start from, as `model.state_dict()` has them, of a tagger. They are kept
    in the folder, and `config.start` says which they are, so it is another run. Where it is the
    fingerprint of a run instead, that run must have finished in `root`.
    """
    config = started(config, start)
    (done,), (error,) = _run([config], root, None, torch.device(device), mirrors, watcher, start)
    if error is not None:
        raise error
    return done


def run_together(
    configs: Sequence[Any],
    root: Path | str = "runs",
    *,
    device: torch.device | str = "cpu",
    watcher: Watcher | None = None,
) -> list[Run]:
    """Trains configs that can be stacked at once, each in a folder of its own, as `run` would.

    Finished ones are skipped; interrupted ones go on together from the newest checkpoint they have
    in common, and end with the same numbers up to the order of additions. A run that diverges keeps
    its error and stops no other; any other failure is kept in every folder and raised.
    """
    executor = Stacked if all(map(can_stack, configs)) else None
    done, _ = _run(configs, root, executor, torch.device(device), (), watcher)
    return done


Begun = tuple[Path, Any, Checkpoint | None]
"""A run's folder, its config, and where it goes on from."""


def _run(
    configs: Sequence[Any],
    root: Path | str,
    executor: type[Executor] | None,
    device: torch.device,
    mirrors: Sequence[Sink],
    watcher: Watcher | None,
    start: Mapping[str, Tensor] | None = None,
) -> tuple[list[Run], list[NonFiniteLoss | None]]:
    """Trains them all to their ends; which of them have diverged."""
    errors: dict[Path, NonFiniteLoss] = {}
    with contextlib.ExitStack() as claims:
        runs = [Run(Path(root) / config.fingerprint) for config in configs]
        done = ranks.once(lambda: _claimed(configs, root, claims))
        pending = [(r.folder, c) for r, c in zip(runs, configs, strict=True) if r.name not in done]
        try:
            weights = {folder: start_in(folder, config, start) for folder, config in pending}
            queue = _common_starts([(folder, c, _newest(folder, c)) for folder, c in pending])
            while queue:
                begun = queue.pop(0)
                if watcher is not None:  # on a GPU compiling takes long, before the first report
                    for _, config, _ in begun:
                        watcher(config, [])
                engine = Engine(
                    [config for _, config, _ in begun],
                    device=device,
                    executor=executor,
                    starts=[weights[folder] for folder, _, _ in begun],
                )
                if any(config.LARGE for _, config, _ in begun):
                    ranks.once(partial(_expect_room, begun[0][0], engine))
                older = _restore(engine, begun, device)
                if older is not None:
                    queue[:0] = _common_starts(older)
                    continue
                _train(engine, begun, weights, device, mirrors, watcher)
                for (folder, _, _), error in zip(begun, engine.failed, strict=True):
                    if error is not None:
                        errors[folder] = error
                        if ranks.is_first():
                            write_error(folder, f"{type(error).__name__}: {error}\n")
        except Exception:
            for folder, _ in pending:
                if folder not in errors and ranks.is_first():
                    with contextlib.suppress(OSError):  # on a full disk the first error counts
                        write_error(folder, traceback.format_exc())
            raise
    return runs, [errors.get(one.folder) for one in runs]


def _claimed(configs: Sequence[Any], root: Path | str, claims: contextlib.ExitStack) -> set[str]:
    """Holds every run; the names of those that have finished."""
    runs = [claims.enter_context(claim(root, config)) for config in configs]
    return {run.name for run in runs if run.finished}


def _newest(folder: Path, config: Any, before: int | None = None) -> Checkpoint | None:
    return ranks.once(
        lambda: checkpoints.newest(folder, steps=config.steps, before=before, large=config.LARGE)
    )


def _expect_room(folder: Path, engine: Engine) -> None:
    """The disk has room for the checkpoints and the weights; better now than in an hour."""
    size = sum(value.nbytes for value in engine.executor.state(0).values())
    free = shutil.disk_usage(folder).free
    if free < (checkpoints.KEPT + 2) * size:
        raise OSError(
            f"{folder} is on a disk with {free / 1e9:.1f} GB left, and checkpoints of "
            f"{size / 1e9:.1f} GB need {(checkpoints.KEPT + 2) * size / 1e9:.1f}: make room, or "
            "give another folder"
        )


def _common_starts(begun: Sequence[Begun]) -> list[list[Begun]]:
    """Groups of runs that go on from the same step, as few as their checkpoints allow.

    A kill between two runs' checkpoints leaves some one checkpoint ahead; those go back to the one
    before, which they still have, or to the beginning.
    """
    least = min((_step_of(start) for _, _, start in begun), default=0)
    groups: dict[int, list[Begun]] = {}
    for folder, config, start in begun:
        if least == 0 and _step_of(start) == config.checkpoint_every:
            start = None
        elif _step_of(start) > least > 0:
            older = _newest(folder, config, before=least + 1)
            start = older if _step_of(older) == least else start
        groups.setdefault(_step_of(start), []).append((folder, config, start))
    return list(groups.values())


def _step_of(start: Checkpoint | None) -> int:
    return 0 if start is None else start.step


def _restore(engine: Engine, begun: Sequence[Begun], device: torch.device) -> list[Begun] | None:
    """Brings the runs of an engine to where they go on from.

    Where the engine cannot make anything of a checkpoint, it is spoilt for training: the runs are
    returned, with the checkpoint before that one.
    """
    for index, (folder, config, start) in enumerate(begun):
        if start is None:
            continue
        try:
            tensors = start.tensors
            if config.LARGE:
                tensors = engine.state(index)[0]
                checkpoints.read_into(folder, start.step, tensors)
            engine.restore(index, tensors, start.position)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            other_device = start.position.get("device", device.type) != device.type
            if other_device or isinstance(error, torch.OutOfMemoryError):
                raise
            path = checkpoints.place(folder, start.step)
            warn(f"checkpoint {path} is passed over: {type(error).__name__}: {error}")
            older = _newest(folder, config, before=start.step)
            return [*begun[:index], (folder, config, older), *begun[index + 1 :]]
    return None


def _train(
    engine: Engine,
    begun: Sequence[Begun],
    starts: Mapping[Path, Weights | None],
    device: torch.device,
    mirrors: Sequence[Sink],
    watcher: Watcher | None,
) -> None:
    """Trains the runs of an engine to their ends."""
    info = environment(device) | _sizes(engine.executor.model) | {"runs_together": len(begun)}
    info |= engine.executor.info()
    with (
        contextlib.ExitStack() as files,
        _patience() as told_to_stop,
        ops.record_backends() as backends,
    ):
        writers = [
            files.enter_context(
                contextlib.closing(
                    Writer(
                        folder,
                        info | _origin(starts[folder]),
                        start,
                        mirrors=mirrors,
                        beside=config.LARGE,
                    )
                    if ranks.is_first()
                    else Follower(folder)
                )
            )
            for folder, config, start in begun
        ]
        for new in engine:
            for index, rows in new.items():
                writers[index].write(rows)
                if watcher is not None:
                    watcher(begun[index][1], rows)
            stop = ranks.any_rank(told_to_stop())
            for index in new:
                if index not in engine.active:
                    weights = engine.executor.weights_of(index)
                    writers[index].finish(
                        weights,
                        step=engine.step,
                        solved=engine.solved[index],
                        backends=backends,
                        files=engine.executor.files(),
                    )
                elif stop or _is_due(begun[index][1], engine.step):
                    writers[index].keep(*engine.state(index))
            if stop:
                raise KeyboardInterrupt


def _origin(weights: Weights | None) -> dict[str, str]:
    """What run.json says of weights that were not drawn."""
    return {} if weights is None else {"start": weights_digest(weights)}


def _is_due(config: Any, step: int) -> bool:
    """Whether a run that has not ended keeps a checkpoint at `step`."""
    return config.checkpoint_every is not None and step % config.checkpoint_every == 0


@contextlib.contextmanager
def _patience() -> Iterator[Callable[[], bool]]:
    """Makes Ctrl-C, or a polite kill, wait until the runs rest at a report; whether there was one.

    A second one stops at once. Where someone else handles it, that is left alone.
    """
    told = threading.Event()
    usual: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }
    in_main = threading.current_thread() is threading.main_thread()  # others may not set handlers
    ours = [s for s, handler in usual.items() if in_main and signal.getsignal(s) is handler]

    def leave() -> None:
        for number in ours:
            signal.signal(number, usual[number])

    def handle(number: int, _: Any) -> None:
        leave()
        told.set()
        again = "press Ctrl-C again" if number == signal.SIGINT else "kill again"
        warn(f"a checkpoint is saved at the next report; {again} to stop at once")

    for number in ours:
        signal.signal(number, handle)
    try:
        yield told.is_set
    finally:
        leave()


def _sizes(model: torch.nn.Module) -> dict[str, int]:
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "state_size": sum(m.state_size for m in model.modules() if isinstance(m, Layer)),
    }
