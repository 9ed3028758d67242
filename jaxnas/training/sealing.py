"""A seal on a directory: a manifest of sizes and digests that shows any later change."""

from __future__ import annotations

import hashlib
import json
import pathlib

from jaxnas.training.workdir import fsync, write_json_atomic

MANIFEST = "manifest.json"


class Damaged(Exception):
    """A sealed directory is not as it was; the message says what changed first."""


def seal(directory: pathlib.Path) -> None:
    """Puts all files of a directory safely on disk, and then their manifest beside them."""
    files = {}
    for path in sorted(directory.rglob("*")):
        fsync(path)
        if path.is_file():
            entry = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
            files[path.relative_to(directory).as_posix()] = entry
    write_json_atomic(directory / MANIFEST, {"files": files})


def verify(directory: pathlib.Path) -> list[str]:
    """Compares a sealed directory with its manifest.

    Returns:
      The names of the files that were sealed; files that were added since are not looked at.

    Raises:
      Damaged: a file is missing, shorter, longer or different, or the manifest is.
    """
    try:
        files = json.loads((directory / MANIFEST).read_bytes())["files"]
        entries = [(name, int(of["bytes"]), str(of["sha256"])) for name, of in files.items()]
    except FileNotFoundError as error:
        raise Damaged(f"{MANIFEST} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{MANIFEST} is not readable") from error
    for name, size, digest in entries:
        path = directory / name
        if not path.is_file():
            raise Damaged(f"{name} is missing")
        if path.stat().st_size != size:
            raise Damaged(f"{name} has {path.stat().st_size} bytes instead of {size}")
        try:
            changed = _sha256(path) != digest
        except OSError as error:
            raise Damaged(f"{name} cannot be read: {error.strerror}") from error
        if changed:
            raise Damaged(f"the content of {name} has changed")
    return list(files)


def _sha256(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
