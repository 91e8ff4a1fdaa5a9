"""Tutorials: a kernel that says nothing but what goes wrong, and a notebook to download."""

import logging
import os
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from myst_nb.core.read import read_myst_markdown_notebook
from sphinx.application import Sphinx

KERNELS = Path(__file__).parents[1] / "_kernel"
SOURCE = Path(__file__).parents[2] / "src"


def is_tutorial(app: Sphinx, docname: str) -> bool:
    return app.env.metadata[docname].get("file_format") == "mystnb"


def link_notebook(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """A line below the title of a tutorial."""
    if is_tutorial(app, docname):
        name = f"{docname.rpartition('/')[2]}.ipynb"
        link = nodes.reference("", "Download it as a notebook", refuri=name, internal=True)
        title = next(doctree.findall(nodes.title))
        title.parent.insert(1, nodes.paragraph("", "", link, nodes.Text("."), classes=["notebook"]))


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        for docname in filter(lambda name: is_tutorial(app, name), app.env.found_docs):
            text = Path(app.env.doc2path(docname)).read_text()
            nbformat.write(read_myst_markdown_notebook(text), Path(app.outdir, f"{docname}.ipynb"))


def setup(app: Sphinx) -> dict[str, Any]:
    os.environ["JUPYTER_PATH"] = str(KERNELS)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    logging.getLogger("traitlets").setLevel(logging.WARNING)
    app.connect("doctree-resolved", link_notebook)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
