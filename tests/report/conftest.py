"""The plans of the paper's tables are hundreds of configs: all tests share them."""

import functools

import pytest

from statetrack.experiments import summary

PLANNED = functools.cache(summary._plan)


@pytest.fixture(autouse=True)
def plans_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "_plan", PLANNED)
