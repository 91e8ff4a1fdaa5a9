"""audit.json: the typed object, its text, and what is refused."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from statetrack.analysis import RunAudit, read_audit
from statetrack.analysis.audit_file import (
    NEAR_MINUS_ONE,
    Accuracy,
    Extent,
    Lowest,
    write_audit,
)
from statetrack.analysis.spectra import Dot
from statetrack.runs import Run
from tests.analysis.audits import fields


def test_the_object_has_the_names_of_the_file(tmp_path: Path) -> None:
    found = RunAudit.from_dict(fields())
    (layer,) = found.layers
    assert layer.heads_below[NEAR_MINUS_ONE] == (1,)
    assert layer.lowest_by_token["1"] == Lowest(lowest=-1.0, head=1)
    assert layer.low_heads[0].by_token["0"] == Extent(least=-0.95, greatest=1.0)
    assert found.spectrum[1] == Dot(layer=1, real=1.0, imag=0.0, share=0.75)
    assert found.horizon.accuracy[1] == Accuracy(length=512, share=0.75)
    assert found.horizon.exact_to == {0.99: 256, 1.0: None}
    assert found.lowest == -1.0
    assert found == RunAudit.from_dict(fields()) and hash(found) == hash(RunAudit(**fields()))
    with pytest.raises(FrozenInstanceError):
        found.tokens = 11  # type: ignore[misc]
    with pytest.raises(TypeError):
        layer.heads_below[NEAR_MINUS_ONE] = ()  # type: ignore[index]
    path = write_audit(Run(tmp_path), found)
    assert path.read_text() == json.dumps(fields()) + "\n"


def test_the_text() -> None:
    assert str(RunAudit.from_dict(fields())).splitlines() == [
        "on a sample of 10 tokens; what is not seen on them is not ruled out",
        "backbone.blocks.0.mixer (DeltaNet): real parts -1.0000 to 1.0000, largest modulus 1.0000",
        "  heads below -0.9: 2 of 2 (0, 1)",
        "  heads below -0.99: 1 of 2 (1)",
        "theorem 1: met by layer, token 1, head 1: -1.0000",
        "theorem 2: not met on the tokens read",
        "length    256: 1.0000 right",
        "length    512: 0.7500 right",
        "at least 99% of 4 right up to length 256",
        "all of 4 right at none of these lengths",
    ]


def damaged(*where: str | int, to: Any) -> str:
    """`fields` as JSON with one value changed; `...` takes it away."""
    found = fields()
    *path, last = where
    place: Any = found
    for key in path:
        place = place[key]
    if to is ...:
        del place[last]
    else:
        place[last] = to
    return json.dumps(found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expecting value"),
        ("[1]", r"it must be an object, not \[1\]"),
        ("{}", "RunAudit needs tokens, layers"),
        (json.dumps(fields())[:-20], "Expecting"),
        ("[" * 100_000, "recursion"),
        (b"\xff\xfe{", "codec"),
        (damaged("tokens", to=...), "RunAudit needs tokens"),
        (damaged("tokens", to="ten"), "tokens='ten' must be a whole number"),
        (damaged("tokenz", to=1), "no field 'tokenz'"),
        (damaged("layers", 0, "lowest", to=...), "LayerSpectrum needs lowest"),
        (damaged("layers", 0, "lowest", to=float("nan")), "lowest=nan must be a number"),
        (damaged("layers", 0, "heads_below", "-0.99", to=...), "must have -0.9 and -0.99"),
        (damaged("layers", 0, "heads_below", "low", to=[]), "must be a mapping of numbers"),
        (damaged("layers", 0, "heads_below", "-0.99", to=[0.5]), "must be a whole number"),
        (damaged("layers", 0, "lowest_by_token", "0", to=[1.0]), "must be 2 values"),
        (damaged("layers", 0, "low_heads", 0, to=3), "low_heads.*must be a LowHead"),
        (damaged("spectrum", 0, to=[1, 2.0]), "spectrum.*must be 4 values"),
        (damaged("theorem1", "weak", to=1), "Finding: weak=1 must be True or False"),
        (damaged("horizon", to=None), "horizon=None must be a Horizon"),
        (damaged("horizon", "exact_to", "1", to=...), "must have 0.99 and 1"),
        (damaged("horizon", "accuracy", to={"256": 1.0}), "accuracy.*must be a list"),
    ],
)
def test_a_damaged_file_is_named_and_what_is_wrong(
    content: str | bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "audit.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as caught:
        read_audit(Run(tmp_path))
    said = str(caught.value)
    assert said.startswith(f"{tmp_path} is broken: audit.json cannot be read (")
    assert len(said) < 500 + len(str(tmp_path)) and "\n" not in said


def test_no_file_is_no_audit(tmp_path: Path) -> None:
    assert read_audit(Run(tmp_path)) is None
