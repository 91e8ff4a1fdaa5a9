"""The picture of an audit."""

import pytest

from statetrack.analysis import audit
from statetrack.automata import read
from statetrack.compiler import compile


def test_every_layer_has_its_plane_and_its_gates() -> None:
    pytest.importorskip("matplotlib")
    figure = audit(compile(read("(a|b)*ab"), "cascade"), "abab").plot()
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == 4
    assert [title.split(": ")[1] for title in titles[:2]] == ["eigenvalues", "beta for each token"]
