"""Heads and tokens: the numbers are those of beta, and every class is counted once."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from statetrack.experiments import language_heads
from statetrack.experiments.language_heads import (
    FIRST,
    HeadSettings,
    held_out,
    look_at_heads,
    windows_of,
)
from statetrack.lm import Manifest, load_text
from statetrack.lm.token_classes import CLASSES, class_of
from statetrack.models import CausalLM
from tests.lm import corpus

SETTINGS = HeadSettings(windows=3, length=40, least=3, piece=12)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return corpus.shards(tmp_path_factory.mktemp("heads"))


def build(low: float = -1.0) -> CausalLM:
    config = corpus.model(eigen_range=(low, 1.0))
    return CausalLM(config, generator=torch.Generator().manual_seed(1)).eval()


def looked(
    model: CausalLM, manifest: Manifest, settings: HeadSettings = SETTINGS
) -> dict[str, Any]:
    windows = held_out(manifest, settings)
    text = load_text(manifest.folder)
    return look_at_heads(model, text, windows, settings, end=manifest.end)


def test_values_are_one_less_beta(manifest: Manifest) -> None:
    model = build()
    found = looked(model, manifest)
    assert [(one["layer"], one["head"]) for one in found["heads"]] == [
        (layer, head) for layer in (1, 2) for head in (0, 1)
    ]
    assert found["tokens"] == {"code": 120, "prose": 120}
    # the first layer reads normed embeddings: beta by hand, from the layer's own projection
    from statetrack.lm.shards import Part

    block = model.backbone.blocks[0]
    seen: list[torch.Tensor] = []
    for domain in ("code", "prose"):
        part = Part(manifest, "validation", domain)
        step = (len(part) - 40) // 2
        for i in range(3):
            tokens = torch.from_numpy(part.read(i * step, 40))
            x = block.mixer_norm(model.embedding(tokens[None]))[0]
            seen.append(1 - 2 * torch.sigmoid(x @ block.mixer.beta_proj.weight.T))
    values = torch.cat(seen).detach()
    for head in (0, 1):
        one, expected = found["heads"][head], values[:, head]
        assert one["mean"] == pytest.approx(float(expected.mean()), abs=2e-4)
        assert one["below_0"] == pytest.approx(float((expected < 0).float().mean()), abs=1e-5)
        assert sum(one["histogram"]) == one["count"] == 240
        for kind in ("by_domain", "by_class"):
            assert sum(part["count"] for part in one[kind].values()) == 240
        lowest = one["tokens"][0]
        assert lowest["count"] >= 3
        assert all(lowest["mean"] <= other["mean"] for other in one["tokens"])
    assert set(found["by_class"]) <= {*CLASSES, FIRST}
    assert len(found["examples"]) == 4
    for example in found["examples"]:
        assert len(example["tokens"]) == 12 and len(example["heads"]) == 4
        assert all(len(head["values"]) == 12 for head in example["heads"])


def test_very_many_heads_are_counted_together(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    each = looked(model, manifest)
    monkeypatch.setattr(language_heads, "MOST_HEADS", 1)
    together = looked(model, manifest)
    assert each["heads"] and each["examples"]
    assert not together["heads"] and not together["examples"]
    for kind in ("all", "by_class", "by_domain", "tokens"):
        assert together[kind] == each[kind]
    assert each["all"]["count"] == sum(one["count"] for one in each["heads"])
    mean = sum(one["below_0"] for one in each["heads"]) / 4
    assert each["all"]["below_0"] == pytest.approx(mean, abs=1e-5)


def test_no_head_of_the_usual_range_is_negative(manifest: Manifest) -> None:
    found = looked(build(0.0), manifest)
    assert found["all"]["below_0"] == 0.0 and found["all"]["lowest"] >= 0.0


def test_the_first_token_of_a_document_is_a_class(manifest: Manifest) -> None:
    long = dataclasses.replace(SETTINGS, length=300, windows=2)
    found = looked(build(), manifest, long)
    from statetrack.lm.shards import Part

    ends = follows = 0
    for domain in ("code", "prose"):
        part = Part(manifest, "validation", domain)
        count = min(2, len(part) // 300)
        step = (len(part) - 300) // max(1, count - 1)
        for i in range(count):
            row = part.read(i * step, 300).tolist()
            ends += row.count(manifest.end)
            follows += row[:-1].count(manifest.end)
    assert follows > 0
    assert found["by_class"][FIRST]["tokens"] == follows
    assert found["by_class"]["end of document"]["tokens"] == ends


def test_too_little_text_is_told(manifest: Manifest) -> None:
    much = dataclasses.replace(SETTINGS, length=10**6)
    with pytest.raises(ValueError, match="no held-out text of 1000000 tokens"):
        held_out(manifest, much)


def test_text_of_ones_own_is_cut_like_shards(manifest: Manifest) -> None:
    text = load_text(manifest.folder)
    rows = windows_of(["ab", "cde" * 30], text, dataclasses.replace(SETTINGS, length=10))
    assert [len(row) for row in rows] == [10, 10, 10]
    assert rows[0].tolist()[:4] == [*text.encode("ab"), text.end, *text.encode("c")]
    assert rows[-1].tolist() == [*text.encode("cdecdecde"), text.end]
    (short,) = windows_of(["abc"], text, SETTINGS)
    assert short.tolist() == [*text.encode("abc"), text.end]
    with pytest.raises(ValueError, match="no text to read"):
        windows_of([], text, SETTINGS)
    found = look_at_heads(build(), text, {"mine": rows, "short": [short]}, SETTINGS, end=text.end)
    assert found["tokens"] == {"mine": 30, "short": 4}
    assert sum(one["count"] for one in found["heads"][0]["by_class"].values()) == 34
    alone = look_at_heads(build(), text, {"mine": rows}, SETTINGS, end=None)
    assert FIRST not in alone["by_class"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "end of document"),
        (b"\n\n", "newline or indent"),
        (b"    ", "newline or indent"),
        (b"):\n", "newline or indent"),
        (b' "', "quote"),
        (b"['", "quote"),
        (b" [", "opening bracket"),
        (b")", "closing bracket"),
        (b"foo(", "opening bracket"),
        (b" 42", "digits"),
        (b" while", "keyword"),
        (b" whilst", "word"),
        (b"_name", "word"),
        (b"don't", "word"),
        (b" ->", "punctuation"),
        (b"\xc3", "other"),
        ("é".encode(), "other"),
        (b"3rd", "other"),
        (b" ", "other"),
    ],
)
def test_classes(text: bytes | None, expected: str) -> None:
    assert class_of(text) == expected


def test_lowest_of_other_layers(tmp_path: Path) -> None:
    from statetrack.analysis.spectra import eigenvalues_on, lowest_on

    for mixer, options in (("GLA", {"num_heads": 2}), ("DeltaProduct", {"num_heads": 2})):
        config = corpus.model(mixer, **options)
        model = CausalLM(config, generator=torch.Generator().manual_seed(0)).eval()
        words = [torch.arange(9), torch.arange(20, 33)]
        every = eigenvalues_on(model, words)
        for name, lowest in lowest_on(model, words).items():
            expected = every[name].real.amin(-1).float()
            assert lowest.shape == expected.shape == (22, 2)
            torch.testing.assert_close(lowest, expected)
