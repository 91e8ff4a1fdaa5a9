"""Sequences end to end in one row, or in groups, give every run the losses of its padded batch."""

import pytest
import torch

from statetrack import ops, tasks
from statetrack.models import Tagger, paper_config
from statetrack.tasks import IGNORE
from statetrack.training import Engine, packing
from statetrack.training.eager import Eager
from statetrack.training.packing import by_length, in_rows, narrow, packed, room_for
from tests.layers.foreign import Leaky
from tests.training import tiny

RUNS, BATCH = 2, 6


def a_batch(name: str) -> tasks.Batch:
    generators = [tasks.generator(name, "train", seed, "cpu") for seed in range(RUNS)]
    return tasks.get(name).sample_streams(BATCH, 20, min_length=3, generators=generators)


@pytest.mark.parametrize("name", ["parity", "mod_arithmetic_brackets"])
@pytest.mark.parametrize("spare", [0, 1, 9, None])
def test_every_sequence_lies_in_its_piece(name: str, spare: int | None) -> None:
    """Whether the rows are full, have some tokens left or as many as padded ones."""
    batch = a_batch(name)
    sizes = batch.num_tokens.view(RUNS, BATCH)
    room = batch.tokens[:BATCH].numel() if spare is None else int(sizes.sum(1).max()) + spare
    got = packed(batch, runs=RUNS, room=room)
    assert got.tokens.shape == (RUNS, 1, room) and got.offsets is not None
    for run in range(RUNS):
        packing = ops.Packing(got.offsets[run], got.longest)
        with ops.check_values():  # the offsets rise from 0 to the end, no piece is too long
            ops.short_convolution(torch.zeros(1, room, 1), torch.ones(1, 1), cu_seqlens=packing)
        for b in range(BATCH):
            first, end = got.offsets[run, 0, b : b + 2]
            row = batch.tokens[run * BATCH + b, : sizes[run, b]]
            assert torch.equal(got.tokens[run, 0, first : first + len(row)], row)
            assert first + len(row) <= end and got.read_at[run, 0, b] == first + len(row) - 1


@pytest.mark.parametrize("mixer", ["DeltaNet", "Mamba"])
def test_the_same_scores_as_padded(mixer: str) -> None:
    batch = a_batch("parity")
    config = paper_config(mixer, vocab_size=3, num_layers=2, d_model=16)
    model = Tagger(config, generator=torch.Generator().manual_seed(0)).double()
    rows = in_rows(batch, runs=RUNS)
    ends = packed(batch, runs=RUNS, room=batch.tokens[:BATCH].numel() - 5)
    assert ends.offsets is not None
    for run in range(RUNS):
        alone, _ = model(rows.tokens[run], read_at=rows.read_at[run])
        together, _ = model(
            ends.tokens[run],
            read_at=ends.read_at[run],
            cu_seqlens=ops.Packing(ends.offsets[run], ends.longest),
        )
        torch.testing.assert_close(together[0], alone[:, 0], rtol=1e-9, atol=1e-12)
        assert torch.equal(ends.targets[run, 0], rows.targets[run, :, 0])


def test_what_does_not_fit_is_not_asked() -> None:
    batch = a_batch("parity")
    sizes = batch.num_tokens.view(RUNS, BATCH)
    room = int(sizes[:, :-1].sum(1).max())  # the last sequence of at least one run is cut
    got = packed(batch, runs=RUNS, room=room)
    fits = sizes.cumsum(1) <= room
    assert not fits.all()
    assert torch.equal(got.targets[:, 0] != IGNORE, fits)
    assert got.offsets.max() == room and got.read_at.max() < room


def test_room_is_for_ragged_batches_alone() -> None:
    task = tasks.get("parity")
    room = room_for(task, 1024, (3, 40))
    assert room is not None and 1024 * 21.5 < room < 0.65 * 1024 * 40
    generator = tasks.generator("parity", "train", 0, "cpu")
    for _ in range(20):
        drawn = task.sample(1024, 40, min_length=3, generator=generator)
        assert drawn.num_tokens.sum() < room
    assert room_for(task, 1024, (40, 40)) is None
    assert room_for(task, 4, (3, 40)) is None  # too few to be sure of an average


def test_layers_that_do_not_pack_say_so() -> None:
    config = paper_config(Leaky, vocab_size=3, num_layers=1, d_model=16)
    model = Tagger(config, generator=torch.Generator().manual_seed(0))
    tokens = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="Leaky does not take packed sequences"):
        model(tokens, cu_seqlens=ops.Packing(torch.tensor([[0, 2, 4]]), 2))


@pytest.mark.parametrize("name, dense", [("s5", True), ("parity", False)])
def test_a_layout_keeps_its_place(name: str, dense: bool) -> None:
    first, second = (in_rows(a_batch(name), runs=RUNS) for _ in range(2))
    kept = first.clone()
    assert kept.tokens.data_ptr() != first.tokens.data_ptr() and kept.longest == first.longest
    place = kept.tokens.data_ptr()
    second.tokens.add_(1)
    kept.copy_(second)
    assert kept.tokens.data_ptr() == place
    assert torch.equal(kept.tokens, second.tokens) and torch.equal(kept.targets, second.targets)
    assert (kept.read_at is None) == dense


def test_groups_hold_every_sequence_once_and_little_padding() -> None:
    batch = a_batch("mod_arithmetic_brackets")
    groups = by_length(batch, 5)
    assert [len(group.tokens) for group in groups] == [5, 5, 2]
    found = []
    for group in groups:
        assert group.tokens.shape[1] == int(group.num_tokens.max())
        for tokens, targets, size in zip(
            group.tokens, group.targets, group.num_tokens, strict=True
        ):
            found.append((tokens[:size].tolist(), targets[:size].tolist()))
    sizes = batch.num_tokens
    rows = zip(batch.tokens, batch.targets, sizes, strict=True)
    given = [(tokens[:size].tolist(), targets[:size].tolist()) for tokens, targets, size in rows]
    assert sorted(found) == sorted(given)
    assert [len(tokens) for tokens, _ in found] == sorted(sizes.tolist())


def test_only_large_and_ragged_batches_go_in_groups() -> None:
    task, generator = tasks.get("parity"), torch.Generator().manual_seed(0)
    ragged = task.sample(256, 40, min_length=3, generator=generator)
    even = task.sample(256, 40, min_length=38, generator=generator)
    assert len(narrow(ragged, 128)) == 4 and narrow(ragged, 8) == [ragged]
    assert narrow(even, 128) == [even]


@pytest.mark.parametrize("task", ["parity", "parity_dense"])
@pytest.mark.parametrize("mixer", ["DeltaNet", "Mamba", "SLSTM"])
def test_a_step_in_groups_is_the_same_step(
    task: str, mixer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(task=task, model=tiny.model(mixer), batch=11, lengths=(3, 20))
    steps = []
    for work in (packing.GROUP_WORK, 1):
        monkeypatch.setattr(packing, "GROUP_WORK", work)
        one = Engine([config]).executor
        assert isinstance(one, Eager)
        one.model.double()
        batch = one.feed.next()
        assert len(narrow(batch, 8)) == (4 if work == 1 else 1)
        monkeypatch.setattr(one.feed, "next", lambda batch=batch: batch)
        loss, right, norm = one._train_step(0)
        gradients = [weight.grad for weight in one.model.parameters()]
        steps.append([loss, right.double(), norm, *gradients])
    torch.testing.assert_close(steps[1], steps[0], rtol=1e-9, atol=1e-12)
