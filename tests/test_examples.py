"""Every file of examples/ runs as it stands."""

import ast
import functools
import os
import pathlib
import subprocess
import sys

import in_process
import numpy as np
import pytest
import tiers
from PIL import Image

import jaxnas
from jaxnas import Choice, Space, runs, search, training

ROOT = pathlib.Path(__file__).parents[1]
# Its workers import the file, so it is the program of a process of its own.
WITH_WORKERS = ROOT / "examples" / "own_objective.py"
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("own_*.py")) if path != WITH_WORKERS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the examples run: one makes the table of another."""
    return tmp_path_factory.mktemp("examples")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_runs(path, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert in_process.script(path).strip()
    assert (folder / "runs" / path.stem).is_dir()


@pytest.mark.parametrize("library", tiers.nightly("equinox"))
def test_any_network(library, tmp_path, monkeypatch):
    """From a network without jaxnas to the found one on the disk, by a few steps and architectures."""
    monkeypatch.chdir(tmp_path)
    training_of, search_of = training.Training, runs.Search
    monkeypatch.setattr(training, "Training", lambda **given: training_of(**given | {"steps": 10}))
    monkeypatch.setattr(jaxnas, "supernet", functools.partial(jaxnas.supernet, form="masked"))
    any_space = Space(any=Choice(1))  # the run's own space follows
    few = {"method": runs.ByStrategy(search.RandomSearch(any_space, evaluations=2, batch=2))}
    few["most_share"] = 1.0
    monkeypatch.setattr(runs, "Search", lambda *_, **given: search_of(**given | few))
    (tmp_path / "text.txt").write_text("Call me whatever you like. " * 400)
    in_process.script(ROOT / "examples" / f"any_{library}.py", "text.txt")
    assert (tmp_path / "runs" / f"any_{library}" / "subnet" / "model.stablehlo").is_file()


@pytest.mark.nightly
def test_first_tries_beat_a_linear_model(tmp_path, monkeypatch):
    """The digits at their size; pictures and texts of two kinds at a size that takes seconds."""

    def tried(name, *given):
        printed = in_process.script(ROOT / "examples" / f"first_{name}.py", *given).splitlines()[-1]
        return ast.literal_eval(printed.replace("a linear model:", ","))

    monkeypatch.chdir(tmp_path)
    found, linear = tried("digits")
    assert found["accuracy"] > 0.97 and found["accuracy"] > linear["test"]
    random = np.random.default_rng(0)
    for name, level in (("dark", 50), ("light", 200)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(60):
            picture = Image.fromarray(random.integers(level - 50, level + 50, (32, 32, 3), np.uint8))
            picture.save(tmp_path / "pictures" / name / f"{i}.png")
    rows = [f"{word} it is {number}\t{word}" for word in ("yes", "no") for number in range(60)]
    (tmp_path / "texts.tsv").write_text("\n".join(["text\tlabel", *rows]))
    usual = training.Training
    monkeypatch.setattr(training, "Training", lambda **given: usual(**given | {"steps": 40}))
    for name, given in (("pictures", "pictures"), ("sentences", "texts.tsv")):
        assert tried(name, given)[0]["accuracy"] > 0.9
        assert (tmp_path / "runs" / name / "report.html").is_file()


def test_runs_with_workers(tmp_path):
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", WITH_WORKERS, "--evaluations=8"]
    options = dict(env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True)
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "0 evaluations failed" in done.stdout
