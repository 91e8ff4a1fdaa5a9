"""What Sphinx's HTML lacks for screen readers."""

from typing import Any

from sphinx.application import Sphinx

CAPTION = 'class="caption" role="heading"'
PARAMETER = '<em class="sig-param">'


def mend(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Captions of the menu get a level; lists of parameters are no lists of definitions."""
    tree = context["furo_navigation_tree"]
    context["furo_navigation_tree"] = tree.replace(CAPTION, f'{CAPTION} aria-level="2"')
    if "body" in context:
        context["body"] = (
            context["body"]
            .replace(f"<dl>\n<dd>{PARAMETER}", f'<dl role="none">\n<dd>{PARAMETER}')
            .replace(f"<dd>{PARAMETER}", f'<dd role="none">{PARAMETER}')
        )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", mend, priority=950)  # after the theme has made the tree
    return {"parallel_read_safe": True, "parallel_write_safe": True}
