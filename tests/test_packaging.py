"""What is installed: typed, with one command, and importable wherever Python is started."""

import pathlib
import shutil
import signal
import subprocess
import sys
import zipfile

import in_process

from jaxnas.experiments import __main__ as command

ROOT = pathlib.Path(__file__).parents[1]
PAGE = [f"jaxnas/report/{name}" for name in ("__init__.py", "page.html", "page.css", "page.js")]
BUILD = """
from setuptools import build_meta
build_meta.build_wheel("wheel")
build_meta.build_editable("editable")
"""


def test_wheels(tmp_path):
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("jaxnas/__init__.py", "jaxnas/py.typed", "jaxnas/experiments/__init__.py", *PAGE):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run([sys.executable, "-c", BUILD], cwd=tmp_path, check=True, capture_output=True)
    (wheel,), (editable,) = (tmp_path.glob(f"{kind}/*.whl") for kind in ("wheel", "editable"))
    with zipfile.ZipFile(wheel) as found:
        assert {"jaxnas/py.typed", "jaxnas/experiments/__init__.py", *PAGE} < set(found.namelist())
        (entries,) = (name for name in found.namelist() if name.endswith("entry_points.txt"))
        assert "jaxnas = jaxnas.experiments.__main__:main" in found.read(entries).decode()
    with zipfile.ZipFile(editable) as found:  # A folder on the path: a finder would come behind a clone.
        (path,) = (name for name in found.namelist() if name.endswith(".pth"))
        assert pathlib.Path(found.read(path).decode().strip()) == tmp_path


def test_the_command_runs_the_binaries():
    mistyped = in_process.call(command.main, "evaluate", "--config=autoformer_digit", "--workdir=none")
    unknown = in_process.call(command.main, "serach")
    for done, *names in ((mistyped, "autoformer_digits"), (unknown, "'serach'", "search")):
        assert done.status == 2 and all(name in done.stderr for name in names), done
        assert "Traceback" not in done.stderr
    listed = in_process.call(command.main).stdout
    assert all(name in listed for name in (*command.BINARIES, "autoformer_digits", "evolution"))


def test_an_interrupt_while_a_binary_imports_ends_it():
    started = [sys.executable, "-X", "importtime", "-m", "experiments.search", "--help"]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(started, cwd=ROOT, **pipes) as run:
        assert any("numpy" in line for line in run.stderr)  # the most is still to be imported
        run.send_signal(signal.SIGINT)
        assert "Traceback" not in run.stderr.read()
    assert run.returncode == -signal.SIGINT
