"""Sphinx builds the documentation with these settings: `make docs`."""

import importlib.util
import inspect
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import jaxnas  # noqa: E402

project, author, copyright = "jaxnas", "The jaxnas authors", "The jaxnas authors"
version = release = jaxnas.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
# Attributes are rows of a list, not entries, which would double those of dataclass fields.
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Notebooks keep the outputs of their last run; `make test-nightly` runs them.
nb_execution_mode = "off"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "sphinx_book_theme"
html_title = "jaxnas"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "navbar_persistent": [],  # the sidebar has the field already
    "show_toc_level": 2,
    "use_fullscreen_button": False,
}
toc_object_entries_show_parents = "hide"

# A page of the reference for each of these modules that exists, with all its public names.
REFERENCE = {
    "jaxnas": "spaces, supernets, costs, extraction",
    "jaxnas.training": "fit, evaluate, resume",
    "jaxnas.recipes": "which architectures a step trains",
    "jaxnas.search": "strategies and searches",
    "jaxnas.runs": "search, select, finish, retrain",
    "jaxnas.tasks": "data, loss and metrics",
    "jaxnas.data": "data sets",
    "jaxnas.supernets": "supernets of published systems",
    "jaxnas.spaces": "published search spaces",
    "jaxnas.elastic": "elastic layers",
    "jaxnas.hf": "Hugging Face checkpoints",
    "jaxnas.predictors": "models of scores",
    "jaxnas.tabular": "tables of trained networks",
    "jaxnas.proxies": "zero-cost proxies",
    "jaxnas.latency": "timing networks",
    "jaxnas.trackers": "figures of runs elsewhere",
    "jaxnas.executors": "workers",
    "jaxnas.nnx": "networks as Flax NNX modules",
    "jaxnas.evosax": "evolution strategies of evosax",
    "jaxnas.onnx": "networks as ONNX files",
    "jaxnas.optuna": "studies and samplers",
    "jaxnas.report": "pages of runs",
    "jaxnas.experiments": "configs",
    "jaxnas.testing": "checks of networks",
}


def importable(path):
    """Whether there is a module, and what it is a bridge to is installed."""
    try:
        return importlib.util.find_spec(path) is not None and bool(importlib.import_module(path))
    except ImportError:
        return False


REFERENCE = {path: title for path, title in REFERENCE.items() if importable(path)}


def public_names(module):
    """The public names of a module that are no modules: its `__all__`, or what it defines."""
    own = [name for name, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", [name for name in own if name[0] != "_"])
    return sorted(
        (name for name in names if not inspect.ismodule(getattr(module, name))), key=lambda name: name.lower()
    )


def write_reference(app):
    """Writes docs/api/<module>.rst: a table of the names, then an entry for each."""
    for path, title in REFERENCE.items():
        module = importlib.import_module(path)
        names = public_names(module)
        title = f"{path}: {title}"
        lines = [title, "=" * len(title), "", f".. automodule:: {path}", "   :no-members:", ""]
        lines += [f".. currentmodule:: {path}", "", ".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {name}" for name in names] + [""]
        for name in names:
            found = getattr(module, name)
            kind = "class" if inspect.isclass(found) else "function" if callable(found) else "data"
            lines += [f".. auto{kind}:: {name}", *(["   :members:"] if kind == "class" else []), ""]
        page, text = HERE / "api" / f"{path}.rst", "\n".join(lines)
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def names_of_reference():
    """The entry of each name that a docstring may write, such as `search.Evolution` and `Evolution`."""
    entries = {}
    for path in REFERENCE:
        for name in public_names(importlib.import_module(path)):
            entry = f"{path}.{name}"
            for written in {entry, entry.removeprefix("jaxnas."), name}:
                entries[written] = None if written in entries else entry
    return {written: entry for written, entry in entries.items() if entry}


def to_restructured_text(app, what, path, found, options, lines):
    """Rewrites a docstring as reStructuredText: its `names` and its indented code."""
    entries = names_of_reference()

    def name_or_code(match):
        entry = entries.get(match[1])
        return f":py:obj:`{match[1]} <{entry}>`\\ " if entry else f"``{match[1]}``\\ "

    rewritten, code, example = [], False, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        last = rewritten[-1] if rewritten else ""
        if 0 < indent < 4 and last[:1].isalnum() and not last.endswith(":"):
            line, indent = line.lstrip(), 0  # a paragraph goes on
        example = line.lstrip().startswith(">>>") or (example and bool(line))
        begins = indent >= 4 and rewritten[-1:] == [""] and not example
        before = next((x for x in reversed(rewritten) if x), "")
        if begins and not code and before[:1].strip():
            rewritten += ["::", ""]
            code = True
        elif line and indent < 4:
            code = False
        if not code and not example:
            # "first, second: ..." describes two arguments; Napoleon would take the first for a type.
            line = re.sub(
                r"^( +\*?(?!\w*Error)\w+), (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", r"\1: and `\2`: ", line
            )
            parts = re.split(r"(`[^`]+`)", line)
            parts[::2] = [re.sub(r"(?<=\S)\*|\*(?=\S)|\||(?<=\w)_(?!\w)", r"\\\g<0>", x) for x in parts[::2]]
            line = re.sub(r"(?<![`\w])`([^`]+)`(?!`)", name_or_code, "".join(parts))
        rewritten.append(line)
        if line.strip() == "Returns:":
            # Napoleon would take a sentence up to its colon for the type.
            rewritten.append(" " * (indent + 2) + r"\ ")
    lines[:] = rewritten


def setup(app):
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference)
    app.connect("autodoc-process-docstring", to_restructured_text, priority=400)
