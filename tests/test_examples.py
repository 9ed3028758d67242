"""Every file of examples/ runs as it stands, in a workdir of its own."""

import os
import pathlib
import subprocess
import sys

import in_process
import pytest

ROOT = pathlib.Path(__file__).parents[1]
# Its workers import the file, so it is the program of a process of its own.
WITH_WORKERS = ROOT / "examples" / "own_objective.py"
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("own_*.py")) if path != WITH_WORKERS]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = in_process.script(path, f"--workdir={tmp_path}")
    assert printed.strip() or list(tmp_path.iterdir())  # some start a binary, which prints by itself


def test_runs_with_workers(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", str(WITH_WORKERS)]
    done = subprocess.run(
        [*command, f"--workdir={tmp_path}"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip()
