"""Runs notebooks and keeps their outputs: `python ../docs/run_notebooks.py linen nnx`, in an empty folder."""

import os
import pathlib
import sys

import nbclient
import nbformat

FOLDER = pathlib.Path(__file__).parent / "notebooks"


def run(path, folder, timeout=3600):
    """The notebook with the outputs of a run in a folder, where it finds its files and writes its own.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell raised an error.
    """
    notebook = nbformat.read(path, as_version=4)
    root = str(FOLDER.parents[1])
    environment = os.environ | {
        "PYTHONPATH": root,
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(folder)),
    }
    client = nbclient.NotebookClient(notebook, timeout=timeout, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times, which differ from run to run
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("text/html", None)
        if cell.cell_type == "code":  # what is logged, such as progress, is no result
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main():
    """Runs the notebooks that are named, or all of them, in the current folder."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if path.stem in sys.argv[1:] or len(sys.argv) == 1:
            nbformat.write(run(path, pathlib.Path.cwd()), path)


if __name__ == "__main__":
    main()
