"""Links to files of the repository that are no pages: the site gets a copy, to be read as text."""

import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.osutil import relative_uri

LOGGER = logging.getLogger(__name__)
FOLDER = "files"


class LinkToCopy(SphinxTransform):
    """Turns a download, which a browser would save under a strange name, into a link to a copy."""

    default_priority = 5  # before Sphinx collects downloads

    def apply(self, **options: Any) -> None:
        root = Path(self.env.srcdir)
        here = self.app.builder.get_target_uri(self.env.docname)
        for node in list(self.document.findall(addnodes.download_reference)):
            _, absolute = self.env.relfn2path(node["reftarget"], self.env.docname)
            if not Path(absolute).is_file():
                LOGGER.warning("a link to %s, which does not exist", node["reftarget"])
                continue
            path = Path(absolute).resolve().relative_to(root)
            wanted: set[str] = self.env.metadata[self.env.docname].setdefault("files", set())
            wanted.add(path.as_posix())
            link = nodes.reference("", "", *node.children, internal=True)
            link["refuri"] = relative_uri(here, copy_of(path.as_posix()))
            node.replace_self(link)


def copy_of(path: str) -> str:
    """Where the copy lies; .txt makes every browser show it."""
    return f"{FOLDER}/{path}.txt"


def copy_files(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    wanted = {path for data in app.env.metadata.values() for path in data.get("files", ())}
    for path in sorted(wanted):
        target = Path(app.outdir, copy_of(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(app.srcdir, path), target)


def write_entrance(app: Sphinx, error: Exception | None) -> None:
    """index.html at the top, which leads to docs/index.html."""
    if error is None and app.builder.format == "html":
        page = app.builder.get_target_uri(app.config.root_doc)
        Path(app.outdir, "index.html").write_text(
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>statetrack</title>'
            f'<meta http-equiv="refresh" content="0; url={page}"></head>'
            f'<body><p><a href="{page}">statetrack</a></p></body></html>\n'
        )


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(LinkToCopy)
    app.connect("build-finished", copy_files)
    app.connect("build-finished", write_entrance)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
