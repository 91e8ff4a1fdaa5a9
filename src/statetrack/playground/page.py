"""The page: markup, style, scripts and machines in one file that fetches nothing.

What may run and what may be reached is said in its Content-Security-Policy: the one script that
stands in it, and for connections nothing, or the server that gave the page. Machines are JSON in a
block that is no script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from statetrack.automata import read
from statetrack.playground.entries import entry_of
from statetrack.playground.gallery import GALLERY, found

__all__ = ["entries_of", "entry", "policy", "render", "write_page"]

SCRIPTS = ("runtime.js", "draw.js", "page.js")


def entry(text: str, alphabet: str | None = None) -> dict[str, Any]:
    """What the page shows of the machine that a text means."""
    return entry_of(read(text, alphabet), text, None if alphabet else found(text))


def entries_of(texts: Iterable[str]) -> list[dict[str, Any]]:
    """The same of several."""
    return [entry(text) for text in texts]


def write_page(path: str | Path, first: dict[str, Any] | None = None) -> Path:
    """Writes the page with the whole gallery, and `first` before it; returns its path.

    A path that ends in .html or .htm is the file; any other is a folder, and the file is its
    index.html.
    """
    path = Path(path)
    file = path if path.suffix.lower() in (".html", ".htm") else path / "index.html"
    entries = [] if first is None else [first]
    asked = {one["text"] for one in entries}
    entries += entries_of(one.text for one in GALLERY if one.text not in asked)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(render(entries), encoding="utf-8")
    return file


def render(entries: Sequence[dict[str, Any]], secret: str | None = None) -> str:
    """The page with these machines; with the `secret` of a server it asks that one for others."""
    data = {
        "entries": list(entries),
        "gallery": [
            {"text": one.text, "title": one.title, "about": one.about, "kind": one.kind}
            for one in GALLERY
        ],
        "trained": json.loads(_file("trained.json")),
        "secret": secret,
    }
    parts = {
        "policy": policy(secret is not None),
        "style": _file("page.css"),
        "data": _in_script(data),
        "script": _script(),
    }
    page = _file("page.html")
    for name, text in parts.items():
        assert page.count(f"@@{name}@@") == 1
        before, after = page.split(f"@@{name}@@")
        page = before + text + after
    return page


def policy(server: bool) -> str:
    """The Content-Security-Policy: its own script, its own style, and no one to talk to."""
    digest = hashlib.sha256(_script().encode()).digest()
    rules = {
        "default-src": "'none'",
        "script-src": f"'sha256-{base64.b64encode(digest).decode()}'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "connect-src": "'self'" if server else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


@cache
def _script() -> str:
    return "\n" + "\n".join(_file(name) for name in SCRIPTS)


@cache
def _file(name: str) -> str:
    return resources.files("statetrack.playground").joinpath(name).read_text(encoding="utf-8")


def _in_script(data: object) -> str:
    """JSON that cannot end the block it stands in, whatever its texts say."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
