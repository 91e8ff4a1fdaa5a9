"""The playground, a page of its own beside the documentation, with an entry in the menu."""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from statetrack.playground import write_page

FOLDER = "docs/playground"
ENTRY = (
    '<p class="caption" role="heading"><span class="caption-text">Try</span></p>'
    '<ul><li class="toctree-l1"><a class="reference internal" href="{}">Playground</a></li></ul>'
)


def add_entry(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    link = ENTRY.format(context["pathto"](f"{FOLDER}/index.html", 1))
    tree = context["furo_navigation_tree"]
    context["furo_navigation_tree"] = tree.replace("<p ", f"{link}<p ", 1)


def write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        write_page(Path(app.outdir, FOLDER))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", add_entry, priority=900)  # after the theme has made the tree
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
