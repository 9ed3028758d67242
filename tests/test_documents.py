"""The documents: the site builds, examples run, links lead somewhere, and they stay short."""

import doctest
import functools
import importlib
import itertools
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

import hf_checkpoints
import in_process
import jax
import pytest
from PIL import Image

import jaxnas
from jaxnas import Choice, Space, runs, search, training
from jaxnas.experiments.configs import CONFIGS

ROOT = pathlib.Path(__file__).parents[1]
DOCUMENTS = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "BUILD_NOTES", "CHANGELOG")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# What the examples of docstrings take as imported; the page of the reference says so.
IMPORTED = """
import jax, jaxnas
import jax.numpy as jnp
import numpy as np
from jaxnas import Choice, Depth, Size, Skip, Space
from jaxnas import data, predictors, recipes, runs, search, spaces, supernets, tabular, tasks, training
"""


def name_of(path):
    return str(path.relative_to(ROOT))


def python_of(text):
    """The Python blocks of a document, at the lines where they stand; all other lines are empty."""
    lines, inside = [], False
    for line in text.splitlines():
        fence = line.startswith("```")
        inside = line == "```python" if fence else inside
        lines.append(line if inside and not fence else "")
    return "\n".join(lines) + "\n"


def cells_of(path, kind):
    """The text of all cells of a kind."""
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


@pytest.fixture
def files(tmp_path):
    """A folder with the files of a reader, which the documents name."""
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(10):
            image = Image.new("RGB", (20, 18), (25 * number, 100, 200 if name == "cat" else 0))
            image.save(tmp_path / "pictures" / name / f"{number}.png")
    rows = itertools.product((16, 32, 64), ("conv", "attention"), (1, 2))
    lines = [f"{width},{op},{depth},{width / 64 - 0.1 * depth}" for width, op, depth in rows]
    (tmp_path / "results.csv").write_text("\n".join(["width,op,depth,accuracy", *lines]))
    reviews = [f"text number {i} is {word}\t{word}" for i in range(20) for word in ("good", "bad")]
    (tmp_path / "reviews.tsv").write_text("\n".join(["text\tlabel", *reviews]))
    (tmp_path / "book.txt").write_text("Call me whatever you like. " * 400)
    return tmp_path


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if "```python" in path.read_text()], ids=name_of)
def test_the_examples_run_in_their_order(path, files, monkeypatch):
    script = files / f"{path.stem}.py"  # A traceback names the line of the document.
    script.write_text(python_of(path.read_text()))
    if "hf.load" in path.read_text():
        hf_checkpoints.tiny(files / "smollm2")
    monkeypatch.chdir(files)
    in_process.script(script)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_run_with_few_steps(path, files, monkeypatch):
    """As `test_any_network`, from the first cell to the last."""
    code = "\n\n".join(cells_of(path, "code"))
    if "transformers" in code:
        pytest.importorskip("transformers", reason="the extra torch")
    pytest.importorskip("IPython", reason="the extra docs")
    hf_checkpoints.tiny(files / "smollm2")
    (files / "text.txt").write_text("Call me whatever you like. " * 4000)
    training_of, search_of = training.Training, runs.Search
    monkeypatch.setattr(training, "Training", lambda **given: training_of(**given | {"steps": 10}))
    monkeypatch.setattr(jaxnas, "supernet", functools.partial(jaxnas.supernet, form="masked"))
    drawn = search.RandomSearch(Space(any=Choice(1)), evaluations=2, batch=2)  # the run's own space follows

    def few(method=None, **settings):
        replaced = isinstance(method, runs.Replacements)
        return search_of(method if replaced else runs.ByStrategy(drawn), **settings | {"most_share": 1.0})

    monkeypatch.setattr(runs, "Search", few)
    monkeypatch.chdir(files)
    (files / "notebook.py").write_text(code)
    in_process.script(files / "notebook.py")


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebooks_run_as_they_stand(path, files):
    pytest.importorskip("nbclient", reason="the extra docs")
    hf_checkpoints.tiny(files / "smollm2")
    (files / "text.txt").write_text("Call me whatever you like. " * 4000)
    runpy.run_path(str(ROOT / "docs" / "run_notebooks.py"))["run"](path, files)


def test_docstrings_have_examples_that_hold(monkeypatch, tmp_path):
    """Each public name's docstring, if it has an example; many have."""
    monkeypatch.chdir(tmp_path)
    reference = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    run = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    printed, count = [], 0
    scope = {}
    exec(IMPORTED, scope)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        for path in reference["REFERENCE"]:
            module = importlib.import_module(path)
            for name in reference["public_names"](module):
                text = getattr(module, name).__doc__ or ""
                if ">>>" in text:
                    count += 1
                    test = doctest.DocTestParser().get_doctest(text, dict(scope), f"{path}.{name}", None, 0)
                    run.run(test, out=printed.append)
    assert not run.failures, "".join(printed)
    assert count >= 30


def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("sphinx", reason="the extra docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", tmp_path / "trees"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [*command, ROOT / "docs", tmp_path / "site"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    pages = {str(page.relative_to(tmp_path / "site")) for page in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "notebooks/linen.html", "api/jaxnas.search.html", "gallery.html"} < pages


def test_links_files_programs_and_configs_exist():
    """A file of the package may be named from the package on, as `elastic/loop.py`."""
    missing = []
    for path in (*DOCUMENTS, *NOTEBOOKS):
        text = path.read_text() if path.suffix == ".md" else "\n".join(cells_of(path, "markdown"))
        targets = re.findall(r"\]\(([^)\s]+)\)", text)
        local = {target.partition("#")[0] for target in targets if "://" not in target} - {""}
        named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", text))
        programs = re.findall(r"\b((?:experiments|jaxnas|benchmarks|tools)(?:\.\w+)+) --", text)
        named |= {name.replace(".", "/") + ".py" for name in programs}
        configs = set(re.findall(r"--config=(\w+)(?![\w./<])", text)) - set(CONFIGS)
        lost = {target for target in local if not (path.parent / target).exists()} | configs
        lost |= {file for file in named if not ((ROOT / file).exists() or (ROOT / "jaxnas" / file).exists())}
        missing += [(name_of(path), name) for name in lost]
    assert not missing


def test_names_of_jaxnas_in_the_documents_exist():
    """Such as `search.Evolution`, in text and tables."""
    modules = {name for name in jaxnas.__all__ if type(getattr(jaxnas, name)) is type(jaxnas)}
    packages, missing = "|".join(modules - {"nnx", "optuna"}), []  # whose names others have, too
    for path in (*set(DOCUMENTS) - {ROOT / "CHANGELOG.md", ROOT / "BUILD_NOTES.md"}, *NOTEBOOKS):
        text = path.read_text() if path.suffix == ".md" else "\n".join(cells_of(path, "markdown"))
        for dotted in re.findall(rf"`(?:jaxnas\.)?((?:{packages})\.(?!py|html)[A-Za-z]\w*)\b[^`/]*`", text):
            package, name = dotted.split(".")
            fields = {*dir(getattr(jaxnas, package)), *FIELDS.get(package, ())}
            if name not in fields:
                missing.append((name_of(path), dotted))
    assert not missing


# Packages whose names are fields of a config, too, as in `--set training.steps=300`.
FIELDS = {
    "training": training.Training.__dataclass_fields__,
    "search": runs.Search.__dataclass_fields__,
}


def test_the_readme_is_short_and_so_is_training_to_report_of_a_users_own_network_and_data():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) < 150
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (block,) = (block for block in blocks if "data.from_arrays" in block)
    assert "training.fit(" in block and "runs.search_and_finish(" in block
    assert len([line for line in block.splitlines() if line.strip()]) < 30


def test_the_documents_stay_within_their_budget_of_words():
    words = {name_of(path): len(path.read_text().split()) for path in DOCUMENTS}
    assert sum(words.values()) <= 15_000, words
