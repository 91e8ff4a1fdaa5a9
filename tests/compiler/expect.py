"""What several test files of the compiler expect."""

from collections.abc import Callable

import pytest


def expect_one_line(act: Callable[[], object], *parts: str) -> None:
    with pytest.raises(ValueError) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
