"""The documentation site: `make docs` builds it with Sphinx from the Markdown of the repository.

The source folder is the root of the repository, not docs/, so that a link between two pages, or to
the README of an op, is the same in the repository and on the site.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT / "src")]

import statetrack  # noqa: E402  (from this repository, installed or not)

project = "statetrack"
version = release = statetrack.__version__
copyright = "the authors of statetrack, MIT licence"
language = "en"

root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "results/README.md",
    "src/statetrack/ops/*/README.md",
]
exclude_patterns = [".*", "build", "dist", "demo", "runs", "tests", "benchmarks", "docs/_*"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "repository_files",
    "mathml",
    "flowchart",
    "accessible",
    "reference",
    "notebooks",
    "playground",
]

# Markdown
myst_enable_extensions = ["attrs_block", "colon_fence", "dollarmath", "html_image"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
myst_links_external_new_tab = False
suppress_warnings = [
    "myst.header",  # READMEs of ops may begin at any level
    "ref.python",  # an attribute in a docstring may have the name of another one
]

# Tutorials run when the site is built; one that fails stops the build.
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True
nb_execution_show_tb = True

# The reference. Docstrings put code between single backticks, as Markdown does.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
add_module_names = False
toc_object_entries_show_parents = "hide"

# HTML, without anything from elsewhere
html_theme = "furo"
html_title = "statetrack"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_math_renderer = "mathml"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
copybutton_selector = "div:is(.highlight-python, .highlight-console, .highlight-ipython3) pre"
copybutton_exclude = ".linenos, .gp, .go"
