"""Packages that come with an extra: imported where they are used, named where they are missing."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["missing", "needs"]


@contextmanager
def needs(what: str, package: str, extra: str) -> Iterator[None]:
    """For the imports of a package that may not be installed: says what needs it and its extra.

    >>> with needs("a picture", "matplotlib", "plot"):
    ...     import not_there
    Traceback (most recent call last):
        ...
    ImportError: a picture needs matplotlib: pip install 'statetrack[plot]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing(what, package, extra) from error


def missing(what: str, package: str, extra: str) -> ImportError:
    """The error for a package that is not installed: the same everywhere."""
    text = f"{what} needs {package}: pip install 'statetrack[{extra}]'"
    return ImportError(text, name=package)
