"""The artifact of a run: the network of its headline as one folder, and the page that loads it."""

from __future__ import annotations

import os
from typing import Any

import jaxnas
from jaxnas import files
from jaxnas.artifacts import PREPROCESSING, exported_batch
from jaxnas.hf.prunable import PrunableNetwork
from jaxnas.report import findings, page
from jaxnas.tasks import Task

SUBNET = "subnet"


def publish(workdir: str | os.PathLike) -> None:
    """Makes the network of the headline that of `subnet/`, and writes the page of the run anew.

    Once the found architecture was trained alone, in retrained/ of the workdir of the search, that is the
    network with these weights. Call it after `retrain`; the binary does.
    """
    root, run = files.as_path(workdir), findings.read_run(workdir)
    if (chosen := findings.retrained(run)) is not None:
        source = root / "retrained" / chosen.folder / SUBNET
        paths = sorted(path for path in source.iterdir() if not files.is_leftover(path))  # subnet.json last
        files.replace_folder(root / SUBNET, {path.name: path for path in paths})
    page.write(root)


def save(workdir: os.PathLike, task: Task, net: Any, variables: Any) -> int | None:
    """Saves a network in `subnet/`: weights, exported program and preprocessing; or a checkpoint as one.

    Returns the batch size that the program takes; None for any.
    """
    folder = files.as_path(workdir) / SUBNET
    if isinstance(net, PrunableNetwork):
        net.save(folder, variables)
        return None
    details = files.plain(dict(task.details()))
    jaxnas.save_subnet(folder, net, variables, task.inputs, extra=details)
    files.write_json(folder / PREPROCESSING, files.plain(dict(task.preprocessing())))
    return exported_batch(jaxnas.export_subnet(folder, net, variables, task.inputs))
