"""Every file of examples/ runs as it stands, in a workdir of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = [pytest.param(path, id=path.stem) for path in sorted((ROOT / "examples").glob("own_*.py"))]


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES)
def test_runs(path, tmp_path):
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(path), f"--workdir={tmp_path}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip()
