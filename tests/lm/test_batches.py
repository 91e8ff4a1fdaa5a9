"""What a step reads: the right tokens, and documents where they begin."""

import torch

from statetrack.lm import Manifest
from statetrack.lm.batches import Reader, packing_of_documents, rows_of
from statetrack.lm.sampler import Sampler, Window
from statetrack.lm.shards import Part


def test_rows_are_the_text(manifest: Manifest) -> None:
    reader = Reader(manifest, "train", 10)
    text = Part(manifest, "train", "prose").read(0, 41)
    rows = reader.rows([Window("prose", 3), Window("code", 0)])
    assert rows.tokens[0].tolist() == text[30:40].tolist()
    assert rows.targets[0].tolist() == text[31:41].tolist()
    assert [reader.domains[i] for i in rows.domains] == ["prose", "code"]
    assert reader.windows["prose"] == (len(reader.parts["prose"]) - 1) // 10


def test_segments_are_the_rows(manifest: Manifest) -> None:
    rows = Reader(manifest, "train", 12).rows([Window("prose", 0), Window("code", 1)])
    parts = [rows.segment(index, 3) for index in range(3)]
    assert torch.equal(torch.cat([part.tokens for part in parts], dim=1), rows.tokens)
    assert torch.equal(torch.cat([part.targets for part in parts], dim=1), rows.targets)
    assert all(torch.equal(part.domains, rows.domains) for part in parts)


def test_streams_read_on(manifest: Manifest) -> None:
    reader = Reader(manifest, "train", 16)
    sampler = Sampler(reader.windows, batch=2, seed=0, streams=True)
    before = reader.rows(rows_of(sampler, 0, 0, 2))
    after = reader.rows(rows_of(sampler, 1, 0, 2))
    assert torch.equal(before.targets[:, -1], after.tokens[:, 0])


def test_a_document_begins_with_the_end_of_the_one_before() -> None:
    tokens = torch.tensor([[0, 1, 2, 0], [3, 0, 0, 4]])
    packing, first, last = packing_of_documents(tokens, 0)
    assert packing.offsets.tolist() == [[0, 3, 4, 5, 6, 8]]
    assert packing.longest == 3
    assert first.tolist() == [0, 2] and last.tolist() == [1, 4]
