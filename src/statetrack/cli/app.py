"""The entry point: the table of commands, and what becomes of a mistake."""

import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from statetrack._amx import avoid_amx_trap

__all__ = ["build", "commands", "main"]

HELP = """State tracking with linear RNNs.

`--import MODULE` (or FILE.py) loads code of yours first, which may register layers and tasks.
`--debug` shows the traceback of a mistake.
"""
WHOLE = re.compile(r"[-+]?[0-9]+")
LONGEST = 100
"""Characters of an argument that a message repeats."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. 0: it worked; 1: a run failed; 2: a mistake, told in one line."""
    avoid_amx_trap()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        import cyclopts
    except ImportError:
        return _say("the command line needs cyclopts and rich: pip install 'statetrack[cli]'")
    try:
        words = _import_foreign(words)
        return int(
            build()(words, exit_on_error=False, print_error=False, result_action="return_value")
            or 0
        )
    except KeyboardInterrupt as interrupt:
        return _say(str(interrupt) or "stopped", 130)
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (cyclopts.CycloptsError, ValueError, OSError, ImportError, RuntimeError) as error:
        if debug:
            raise
        return _say(_told(error, words), 1 if _diverged(error) else 2)
    except Exception as error:
        if type(error).__name__ == "Elsewhere":  # another process of the same run has told it
            return 2
        if debug:
            raise
        kind = type(error).__name__
        return _say(f"{kind}: {_told(error, words)} (not foreseen; --debug shows where)")


def _import_foreign(words: Sequence[str]) -> list[str]:
    """Imports what follows every `--import`, and returns the other words.

    Workers start with the same search path, so they find the module too.
    """
    left, rest = [], iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option != "--import":
            left.append(word)
            continue
        name = value if equals else next(rest, "")
        if not name:
            raise ValueError("--import needs the name of a module, or the path of a .py file")
        path = Path(name)
        is_file = path.suffix == ".py"
        if is_file and not path.is_file():
            raise ValueError(f"--import {name}: there is no such file")
        sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
        importlib.import_module(path.stem if is_file else name)
    return left


def commands() -> tuple[Callable[..., int], ...]:
    """Every command; a new one is a function in a file beside this one, and a line here."""
    from statetrack.cli.archive import archive
    from statetrack.cli.audit import audit
    from statetrack.cli.certify import certify, polish
    from statetrack.cli.exact import exact
    from statetrack.cli.extract import extract
    from statetrack.cli.lists import layers, tasks
    from statetrack.cli.machines import compile, explain, run
    from statetrack.cli.playground import playground
    from statetrack.cli.report import report
    from statetrack.cli.reproduce import demo, reproduce
    from statetrack.cli.train import train

    return (
        demo,
        train,
        reproduce,
        report,
        archive,
        explain,
        compile,
        run,
        playground,
        audit,
        extract,
        exact,
        polish,
        certify,
        tasks,
        layers,
    )


def groups() -> dict[str, tuple[str, tuple[Callable[..., int], ...]]]:
    """Commands of two words: what the first stands for, and every second one."""
    from statetrack.cli.lm import convert, evaluate, generate
    from statetrack.cli.pretrain import pretrain, tokenize

    about = "Language models: tokenize text, pretrain, generate text, measure loss, convert."
    return {"lm": (about, (tokenize, pretrain, generate, evaluate, convert))}


def build() -> Any:
    """The cyclopts app with every command."""
    import cyclopts

    import statetrack

    app = cyclopts.App(
        name="statetrack",
        help=HELP,
        version=statetrack.__version__,
        help_format="markdown",
        suppress_keyboard_interrupt=False,
        default_parameter=cyclopts.Parameter(negative=(), converter=_as_written),
    )
    for command in commands():
        app.command(command)
    for name, (about, members) in groups().items():
        group = cyclopts.App(name=name, help=about)
        for command in members:
            group.command(command)
        app.command(group)
    app.register_install_completion_command()
    return app


def _as_written(hint: Any, tokens: Sequence[Any]) -> Any:
    """The value of an option as cyclopts reads it, but `1.5` is no 2 and `none` no default."""
    import cyclopts

    return cyclopts.convert(hint, tokens, converter=_one_word)


def _one_word(kind: Any, word: str) -> Any:
    import cyclopts

    if kind is type(None) or (kind is int and not WHOLE.fullmatch(word)):
        raise ValueError
    try:
        return cyclopts.convert(kind, (word,))
    except cyclopts.CoercionError:
        raise ValueError from None  # without words: cyclopts then names the option and the word


def _diverged(error: BaseException) -> bool:
    """Whether a run diverged, which is no mistake in the command."""
    if not isinstance(error, RuntimeError):
        return False
    from statetrack.training import NonFiniteLoss

    return isinstance(error, NonFiniteLoss)


def _told(error: BaseException, words: Sequence[str]) -> str:
    """The error in one line, long arguments cut."""
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    else:
        text = str(error) or type(error).__name__
    return " ".join(cut_arguments(text, words).split())


def cut_arguments(text: str, words: Sequence[str]) -> str:
    """`text` with every over-long word of `words`, and its parts around `=` and `:`, cut.

    The path of something that exists stays whole.

    >>> text = cut_arguments("unknown task 'aaa...'".replace("...", "a" * 500), ["a" * 503])
    >>> len(text), text[-4:]
    (116, "aa…'")
    """
    pieces = {piece.strip() for word in words for piece in (word, *re.split("[=:]", word))}
    for piece in sorted(pieces, key=len, reverse=True):
        if os.path.exists(piece):
            continue
        for shown in (piece, repr(piece)[1:-1]):
            if len(shown) > LONGEST:
                text = text.replace(shown, shown[:LONGEST] + "…")
    return text


def _say(message: str, code: int = 2) -> int:
    print(f"statetrack: {message}", file=sys.stderr)
    return code
