"""Configuration of the documentation site."""

import inspect
import shutil
import sys
import urllib.request

from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

import amc_pymc

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
ROOT = DOCS.parent

project = "amc_pymc"
author = "The amc_pymc developers"
copyright = author
version = release = amc_pymc.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "numpydoc",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
highlight_language = "none"  # blocks of code name their language

# Pages. Notebooks are shown as they are stored; the tests execute them.
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "off"
suppress_warnings = ["mystnb.unknown_mime_type"]
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Reference.
add_module_names = False
autodoc_typehints = "none"  # docstrings give the types
autosummary_generate = True
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False

# Appearance.
html_theme = "pydata_sphinx_theme"
html_title = "amc_pymc"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_theme_options = {
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}
html_sidebars = {"index": [], "start": [], "choose": [], "faq": [], "glossary": []}


def inventory(name: str, address: str) -> Path | None:
    """Return the file of another project's objects, fetched once; None without a network."""
    file = DOCS / "_build" / "inventories" / f"{name}.inv"
    if file.exists():
        return file
    try:
        with urllib.request.urlopen(f"{address}objects.inv", timeout=5) as answer:
            content = answer.read()
    except OSError:
        return None
    if not content.startswith(b"# Sphinx inventory"):
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


# Names of other projects are links where the inventories can be fetched, and plain text elsewhere.
_others = {
    "pymc": "https://www.pymc.io/projects/docs/en/stable/",
    "arviz": "https://python.arviz.org/en/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "scipy": "https://docs.scipy.org/doc/scipy/",
    "xarray": "https://docs.xarray.dev/en/stable/",
}
_files = {name: inventory(name, address) for name, address in _others.items()}
intersphinx_mapping = {n: (_others[n], str(file)) for n, file in _files.items() if file}


def copy_notebooks() -> None:
    """Copy the example notebooks into the source folder, where Sphinx finds them."""
    folder = DOCS / "examples"
    folder.mkdir(exist_ok=True)
    for file in (ROOT / "examples").glob("*.ipynb"):
        copy = folder / file.name
        if not copy.exists() or copy.read_bytes() != file.read_bytes():
            shutil.copyfile(file, copy)


def write_variables() -> None:
    """Write the tables of variables of results, which a page includes."""
    from variables import tables

    file = DOCS / "api" / "generated" / "variables.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(tables(), encoding="utf-8")


def step_signature(app, what, name, obj, options, signature, annotation):
    """Return the arguments of a step method, which PyMC's ``__new__`` hides from autodoc."""
    if what != "class" or not (signature or "").startswith("(*args"):
        return None
    parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare)), annotation


#: Commands that docutils does not know, and what it knows in their place.
_COMMANDS = {r"\dots": r"\ldots", r"\big/": "/", r"\middle|": r"\mid"}


def visit_formula(translator, node) -> None:
    """Write a formula as MathML, which browsers show without a script or a network."""
    display = isinstance(node, nodes.math_block)
    text = node.astext()
    for unknown, known in _COMMANDS.items():
        text = text.replace(unknown, known)
    try:
        formula = tex2mathml(text, as_block=display)
    except MathError as error:
        logging.getLogger(__name__).warning("%s in the formula %s", error, text, location=node)
        formula = text
    translator.body.append(f'<div class="formula">{formula}</div>' if display else formula)
    raise nodes.SkipNode


def setup(app):
    """Connect what this file defines to Sphinx."""
    app.add_html_math_renderer("mathml", (visit_formula, None), (visit_formula, None))
    copy_notebooks()
    write_variables()
    app.connect("autodoc-process-signature", step_signature)
