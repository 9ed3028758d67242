"""The documents: their Python examples run, their links lead somewhere, and they stay short."""

import itertools
import pathlib
import re

import hf_checkpoints
import in_process
import pytest
from PIL import Image

from jaxnas.experiments.configs import CONFIGS

ROOT = pathlib.Path(__file__).parents[1]
DOCUMENTS = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "BUILD_NOTES", "CHANGELOG")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


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


def test_links_files_programs_and_configs_exist():
    """A file of the package may be named from the package on, as `elastic/loop.py`."""
    missing = []
    for path in DOCUMENTS:
        text = path.read_text()
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
