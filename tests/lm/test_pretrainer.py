"""The executor that pretrains: the right gradients, whatever way a step is cut; clear refusals."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack.lm import (
    Manifest,
    PretrainConfig,
    PretrainEvaluationConfig,
    PretrainOptimizerConfig,
    sources_of,
    tokenize,
)
from statetrack.lm.batches import Reader, rows_of
from statetrack.lm.pretrainer import Pretrainer
from statetrack.lm.sampler import Sampler
from statetrack.models import CausalLM
from statetrack.runs import Record
from statetrack.training import Engine, NonFiniteLoss, train
from tests.helpers import relative_error
from tests.lm import corpus


def executor(config: PretrainConfig) -> Pretrainer:
    found = Engine([config]).executor
    assert isinstance(found, Pretrainer)
    return found


def weights(one: Pretrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in one.model.parameters()])


def losses(records: list[Record], split: str = "train") -> list[float]:
    return [r.value for r in records if (r.split, r.metric, r.overall) == (split, "loss", True)]


def test_the_first_step_by_hand(manifest: Manifest) -> None:
    """AdamW's first update is lr · sign(gradient), up to eps; the loss is the mean over tokens."""
    config = corpus.config(
        manifest,
        optimizer=PretrainOptimizerConfig(lr=1e-2, weight_decay=0.0, clip_norm=None, eps=0.0),
        schedule={"shape": "constant", "warmup": 0.0},
    )
    one = executor(config)
    model = CausalLM(config.model, generator=torch.Generator().manual_seed(0))
    reader = Reader(manifest, "train", 32)
    sampler = Sampler(reader.windows, batch=4, seed=0)
    rows = reader.rows(rows_of(sampler, 0, 0, 4))
    scores, _ = model(rows.tokens)
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), rows.targets.flatten())
    loss.backward()
    before = weights(one)
    stretch = one.step(0, 1)
    assert stretch.losses[0] == [pytest.approx(loss.item(), rel=1e-5)]
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]
    assert stretch.grad_norm[0] == pytest.approx(gradient.norm().item(), rel=1e-4)
    clear = gradient.abs() > 1e-5 * gradient.abs().max()
    change = (weights(one) - before)[clear]
    assert relative_error(change, -1e-2 * gradient[clear].sign()) < 1e-3


@pytest.mark.parametrize("mixer", ["DeltaNet", "Mamba"])
@pytest.mark.parametrize(
    "way",
    [{"micro_batch": 1}, {"micro_batch": 3, "batch": 6}, {"recompute": True}],
    ids=["micro batches", "uneven", "recompute"],
)
def test_ways_that_change_no_number(way: dict[str, Any], mixer: str, manifest: Manifest) -> None:
    config = corpus.config(
        manifest, z_loss=1e-3, model=corpus.model(mixer), batch=way.get("batch", 4)
    )
    usual, other = executor(config), executor(dataclasses.replace(config, **way))
    first, second = usual.step(0, 2), other.step(0, 2)
    assert second.losses[0] == pytest.approx(first.losses[0], rel=1e-5)
    assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-3)


@pytest.mark.parametrize("carry", [False, True])
def test_packed_documents_are_read_alone(carry: bool, manifest: Manifest) -> None:
    """Every token's loss is that of its document alone, or of what the row has read of it."""
    config = corpus.config(manifest, documents="packed", carry_state=carry)
    one = executor(config)
    model = CausalLM(config.model, generator=torch.Generator().manual_seed(0))
    seen: dict[int, list[int]] = {row: [] for row in range(4)}
    cuts = 0
    for step in range(3):
        windows = rows_of(one.sampler, step, 0, 4)
        rows = one.reader.rows(windows)
        mine = one._backward(rows.tokens, rows.targets, slice(0, 4))
        wanted = []
        for row in range(4):
            documents = [list(seen[row]) if carry else []]
            skip = len(documents[0])
            for token in rows.tokens[row].tolist():
                if token == manifest.end and documents[-1]:
                    documents.append([])
                documents[-1].append(token)
            cuts += len(documents) - 1
            seen[row] = documents[-1]
            scores = torch.cat([model(torch.tensor([one]))[0][0] for one in documents])[skip:]
            wanted.append(torch.nn.functional.cross_entropy(scores, rows.targets[row]).item())
        assert mine.tolist() == pytest.approx(wanted, rel=1e-4)
    assert cuts > 1


def test_a_carried_state_is_not_differentiated(manifest: Manifest) -> None:
    config = corpus.config(manifest, carry_state=True)
    one = executor(config)
    one.step(0, 2)
    assert one.carried is not None
    values = [value for layer in one.carried for value in layer.values()]
    assert all(not value.requires_grad for value in values)
    assert any(value.abs().sum() > 0 for value in values)


def test_it_learns_and_validates(manifest: Manifest) -> None:
    config = corpus.config(
        manifest,
        steps=60,
        log_every=20,
        checkpoint_every=None,
        evaluation={"every": 20, "windows": 4},
    )
    records = list(train(config))
    train_losses, held_out = losses(records), losses(records, "validation")
    assert train_losses[-1] < 0.8 * train_losses[0]
    assert held_out[-1] < held_out[0]
    domains = {r.domain for r in records if r.split == "validation" and r.domain}
    assert domains == {"code", "prose"}
    ends = {r.length for r in records if r.length}
    assert ends == {1, 2, 4, 8, 16, 32}
    names = {r.metric for r in records if r.split == "machine"}
    assert names == {"tokens_per_s", "mfu", "memory_gb"}


def test_validation_is_the_loss_of_its_windows(manifest: Manifest) -> None:
    config = corpus.config(manifest)
    one = executor(config)
    (judged,) = one.judge("validation")
    rows = {r.domain: r.value for r in judged.records(0, every_length=False)}
    reader = Reader(manifest, "validation", 32)
    for domain in ("code", "prose"):
        chosen = [w for w in one.validation.windows if w.domain == domain]
        assert len(chosen) == 3
        part = reader.rows(chosen)
        wanted, _ = one.model.losses(part.tokens, part.targets)
        assert rows[domain] == pytest.approx(wanted.mean().item(), rel=1e-5)
    assert rows[None] == pytest.approx((rows["code"] + rows["prose"]) / 2)
    assert judged.reaches(rows[None]) and not judged.reaches(rows[None] * 0.99)


def test_a_good_loss_ends_the_run(manifest: Manifest) -> None:
    engine = Engine([corpus.config(manifest, stop_at=100.0)])
    list(engine)
    assert engine.solved == [True] and engine.step == 4


def test_a_good_loss_needs_text_to_validate_on(tmp_path: Path, manifest: Manifest) -> None:
    assert corpus.config(manifest).validates
    short = PretrainEvaluationConfig(length=10**6)
    assert not corpus.config(manifest, evaluation=short).validates
    nothing = corpus.shards(tmp_path, hold_out=[])
    assert not corpus.config(nothing).validates
    with pytest.raises(ValueError, match="stop_at=1.0 is about the validation text"):
        Engine([corpus.config(nothing, stop_at=1.0)])


def spoil(one: Pretrainer, step: int, factor: float) -> None:
    """Multiplies the loss of a step, most of all that of row 2."""
    original, train_step = one._backward, one._train_step
    now = [-1]

    def remember(at: int, sums: torch.Tensor) -> Any:
        now[0] = at
        return train_step(at, sums)

    one._train_step = remember  # type: ignore[method-assign]

    def backward(mine: Any, piece: slice, share: float) -> torch.Tensor:
        each = original(mine, piece, share)
        if now[0] == step:
            for p in one.model.parameters():
                p.grad = p.grad * factor  # type: ignore[operator]
            row = torch.zeros_like(each)
            row[2] = 1
            return torch.where(row > 0, each * factor * 4, each)
        return each

    one._backward = backward  # type: ignore[method-assign]


def test_a_loss_that_is_no_number_names_its_data(manifest: Manifest) -> None:
    engine = Engine([corpus.config(manifest)])
    one = engine.executor
    assert isinstance(one, Pretrainer)
    spoil(one, 3, math.nan)
    list(engine)
    error = engine.failed[0]
    assert isinstance(error, NonFiniteLoss) and engine.step == 4
    culprit = one.reader.where(one.sampler.window(3, 2))
    assert f"became nan at step 3 (learning rate 0.00" in str(error)  # noqa: F541
    assert f"The step read {culprit}, " in str(error) and "and 1 other windows" in str(error)


@pytest.mark.parametrize("skip", [False, True])
def test_a_spike_is_reported_and_skipped_by_choice(
    skip: bool, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    config = corpus.config(
        manifest,
        steps=40,
        log_every=20,
        checkpoint_every=None,
        skip_spikes=skip,
        evaluation={"every": 40, "windows": 1},
    )
    engine = Engine([config])
    one = engine.executor
    assert isinstance(one, Pretrainer)
    spoil(one, 30, 100.0)
    rows = [row for part in engine for row in part[0]]
    (spike,) = [row for row in rows if row.metric == "spike"]
    assert spike.step == 31 and spike.value > 50
    said = capsys.readouterr().err
    what = "was skipped" if skip else "is a spike"
    assert f"statetrack: step 30 {what}: its loss is" in said
    assert one.reader.where(one.sampler.window(30, 2)) in said
    assert one.updates == (39 if skip else 40)


MUON = PretrainOptimizerConfig(kind="muon")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": dataclasses.replace(corpus.model(), vocab_size=256)}, "they do not belong together"),
    ({"data_sha256": "0" * 64}, "another hash"),
    ({"batch": 5000}, "fewer than the batch of 5000"),
    ({"mixture": {"cod": 1.0}}, "mixture has 'cod'"),
    ({"mixture": {"code": 1.0}}, "mixture says nothing of 'prose': 0 leaves its text out"),
    ({"context_parallel": 2}, "context_parallel=2 must divide the number of processes, which is 1"),
    ({"context_parallel": 3}, "length=32 must be a multiple of context_parallel=3"),
    ({"context_parallel": 2, "documents": "packed"}, "'packed' cannot be cut in time"),
    ({"carry_state": True, "model": corpus.model("Attention")}, "carry_state needs layers"),
    ({"compile": "step"}, "compile='step' is for one GPU, not for the device cpu"),
    ({"compile": "step", "documents": "packed"}, "which documents='packed' does not allow"),
    ({"compile": "step", "skip_spikes": True}, "which skip_spikes does not allow"),
    ({"compile": "step", "optimizer": MUON}, "which optimizer.kind='muon' does not allow"),
    ({"compile": "step", "context_parallel": 2}, "which context_parallel does not allow"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused_before_the_first_step(
    changes: dict[str, Any], message: str, manifest: Manifest
) -> None:
    with pytest.raises(ValueError, match=message):
        executor(corpus.config(manifest, **changes))


def test_a_domain_too_short_to_be_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = corpus.write_text(tmp_path / "text")
    (text / "tiny").mkdir()
    (text / "tiny/a.txt").write_text("short")
    sources = sources_of([text], by_folder=True)
    found = tokenize(sources, tmp_path / "shards", tokenizer=corpus.with_end(), workers=0)
    executor(corpus.config(found, batch=2))
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "the domain 'tiny'" in said and "is never read" in said
    shares = {"code": 1.0, "prose": 0.0, "tiny": 1.0}
    with pytest.raises(ValueError, match="'tiny' of .* has no sequence of 32 tokens: give it more"):
        executor(corpus.config(found, mixture=shares))
    executor(corpus.config(found, mixture=shares | {"tiny": 0.0}))
    assert not capsys.readouterr().err


def test_bf16_and_compiled_options_reach_the_model(manifest: Manifest) -> None:
    full = executor(corpus.config(manifest)).step(0, 1).losses[0]
    half = executor(corpus.config(manifest, precision="bf16")).step(0, 1).losses[0]
    assert full != half and half == pytest.approx(full, rel=1e-2)
    assert executor(corpus.config(manifest, recompute=True)).model.backbone.gradient_checkpointing


@pytest.mark.parametrize("mixer", ["DeltaNet", "Mamba", "Attention"])
def test_a_residual_stream_in_bf16_is_near_that_in_fp32(mixer: str, manifest: Manifest) -> None:
    """It reaches the last norm; losses are those of fp32 but for rounding; weights stay fp32."""
    config = corpus.config(manifest, precision="bf16", model=corpus.model(mixer))
    usual, narrow = (
        executor(dataclasses.replace(config, residual_precision=one)) for one in ("fp32", "bf16")
    )
    seen: list[torch.dtype] = []
    assert narrow.model.backbone.norm is not None
    narrow.model.backbone.norm.register_forward_pre_hook(
        lambda _, given: seen.append(given[0].dtype)
    )
    first, second = usual.step(0, 3), narrow.step(0, 3)
    assert set(seen) == {torch.bfloat16}
    assert first.losses != second.losses
    assert second.losses[0] == pytest.approx(first.losses[0], rel=1e-2)
    assert {p.dtype for p in narrow.model.parameters()} == {torch.float32}


COMPILED = """
import sys
from statetrack.lm import Manifest
from statetrack.training import Engine
from tests.lm import corpus

for compile in ("no", "blocks"):
    config = corpus.config(Manifest.read(sys.argv[1]), compile=compile)
    print(*Engine([config]).executor.step(0, 2).losses[0])
"""


@pytest.mark.slow
def test_compiled_blocks(manifest: Manifest) -> None:
    """In a process of its own: the checks of shapes here cannot be compiled."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(manifest.folder)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    usual, compiled = ([float(x) for x in line.split()] for line in done.stdout.splitlines())
    assert compiled == pytest.approx(usual, rel=1e-4)


def test_a_missing_shard_is_named(manifest: Manifest, tmp_path: Path) -> None:
    own = corpus.shards(tmp_path)
    config = corpus.config(own)
    (own.folder / "train/code/00000.bin").unlink()
    with pytest.raises(ValueError, match="train/code/00000.bin is missing"):
        executor(config)


SEVERAL = """
import sys

from torch._dynamo.testing import CompileCounterWithBackend

from statetrack.models import backbone
from statetrack.training import Engine
from tests.lm import corpus

backbone._keeping_less = counter = CompileCounterWithBackend("aot_eager")
for least in (0.0, -1.0):
    model = corpus.model(eigen_range=(least, 1.0))
    one = Engine([corpus.config(sys.argv[1], compile="blocks", model=model)]).executor
    one.step(0, 1)
    one.judge("validation")
    one.step(1, 1)
    print(counter.frame_count)
"""


def test_every_model_of_a_process_is_compiled_for_itself(manifest: Manifest) -> None:
    """A graph for the blocks and one for the last norm; evaluation, of other sizes, has none."""
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, str(manifest.folder)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "4"]
