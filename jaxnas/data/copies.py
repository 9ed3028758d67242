"""Copies of what lies in an object store, for whatever reads files of this machine only."""

from __future__ import annotations

import importlib
import os
import pathlib

from absl import logging

from jaxnas import files


def data_root(data_dir: str | os.PathLike | None) -> pathlib.Path:
    """The folder of prepared data; None is TFDS's own default, ~/tensorflow_datasets."""
    if data_dir is None:
        from tensorflow_datasets.core import constants  # Imported here: TFDS takes a while.

        data_dir = constants.DATA_DIR
    return files.as_path(data_dir).expanduser()


def local_copy(path: str | os.PathLike, below: str = "") -> pathlib.Path:
    """A file or a folder on this machine: the given one, or a copy of what lies in an object store.

    A copy is made once, in $XDG_CACHE_HOME/jaxnas/copies (~/.cache/jaxnas/copies), in a folder named by a
    digest of the address and of the names, sizes and generations of the objects: changed objects are copied
    anew, and a copy is there whole or not at all. Old copies are not removed.

    Args:
      path: on this machine, or gs://bucket/folder.
      below: part of a folder that is needed, as a path in it; "" for all.

    Raises:
      FileNotFoundError: there are no such objects.
      OSError: they changed while they were copied, or cannot be copied.
    """
    path = files.as_path(path).expanduser()
    if not files.is_remote(path):
        return path
    root = os.fspath(path).removeprefix("gs://").rstrip("/")
    store = importlib.import_module("fsspec").filesystem("gcs")

    def objects() -> dict[str, tuple[int, str]]:
        """Sizes and generations by name; a name that ends with a slash stands for an empty folder."""
        found = store.find(f"{root}/{below}".rstrip("/"), detail=True)
        return {
            name: (about["size"], str(about.get("generation")))
            for name, about in sorted(found.items())
            if about["type"] == "file" and not name.endswith("/")
        }

    there = objects()
    if not there:
        raise FileNotFoundError(f"there is nothing in {path / below if below else path}.")
    digest = files.digest(repr((root, there)).encode())
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxnas" / "copies"
    kept = cache / digest
    if not kept.exists():
        size = sum(size for size, _ in there.values())
        logging.warning("Copying %d objects of %s, %.1f MB, to %s", len(there), path, size / 1e6, kept)
        with files.temporary_folder(kept) as own:
            new = own / "copy"
            to = [str(new / path.name / name.removeprefix(root).lstrip("/")) for name in there]
            for place in to:
                os.makedirs(os.path.dirname(place), exist_ok=True)
            store.get(list(there), to)
            if objects() != there:
                raise OSError(f"{path} was changed while it was copied. Start again.")
            files.commit_folder(new, kept)
    return kept / path.name
