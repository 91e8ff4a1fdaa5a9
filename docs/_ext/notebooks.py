"""Each tutorial as a notebook to download, beside its page."""

from pathlib import Path

import nbformat
from myst_nb.core.config import NbParserConfig
from myst_nb.core.read import read_myst_markdown_notebook
from sphinx.application import Sphinx


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    for docname, data in app.env.metadata.items():
        if "kernelspec" in data:
            text = Path(app.env.doc2path(docname)).read_text()
            notebook = read_myst_markdown_notebook(text, NbParserConfig())
            nbformat.write(notebook, Path(app.outdir, f"{docname}.ipynb"))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
