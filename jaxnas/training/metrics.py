"""Records of a run as JSON lines that a resumed run writes as if it had never stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from jaxnas import files


class JsonlWriter:
    """An append-only file of JSON records, one a line, ordered by their "step".

    A run that was killed after its checkpoint at step k has lines beyond k, and perhaps half a
    line. Opened with `resume=k`, those are cut off; the resumed run writes them again, so the file
    ends byte for byte as if nothing had happened. Records must therefore not hold the time of day
    nor a rate; those belong on the terminal (`progress.py`).
    """

    def __init__(self, path: files.Path, resume: int | None = None, digest: str | None = None) -> None:
        """Cuts the file to what the run goes on from.

        Args:
          path: the file; its directory exists.
          resume: keep records whose step is at most this; None starts an empty file.
          digest: that the writer of before had where the file is cut; None compares nothing.

        Raises:
          ValueError: a line before the last one is not a record of this kind, or lines were lost or changed;
            nothing is cut.
        """
        self.path = files.as_path(path)
        self._last: int | None = None
        kept = 0
        records = files.read_lines(self.path, ("step",)) if resume is not None else []
        for record in records:
            if self._step(record) > (resume or 0):
                break
            self._last = record["step"]
            kept += 1
        if records and not kept:
            digest = None  # The file was deleted, and has none of the records that the digest is of.
        data = self.path.read_bytes() if self.path.exists() else b""
        written = b"".join(data.splitlines(keepends=True)[:kept])
        check_unchanged(self.path, digest, written)
        self._digest = hashlib.sha256(written)
        files.truncate_lines(self.path, kept)

    @property
    def digest(self) -> str:
        """Of all that the file holds."""
        return self._digest.hexdigest()[:16]

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends a record and puts it safely on disk; NaN and the infinities become null.

        Raises:
          ValueError: the step is missing, not an integer, or smaller than the last one.
        """
        record = files.plain(record)
        self._last = self._step(record)
        files.append_lines(self.path, [record])
        self._digest.update((json.dumps(record) + "\n").encode())

    def _step(self, record: Mapping[str, Any]) -> int:
        step = record.get("step")
        if type(step) is not int or (self._last is not None and step < self._last):
            after = "" if self._last is None else f" not below {self._last}, the one before"
            raise ValueError(
                f"a record of {self.path} needs an integer 'step'{after}: got {step!r} in {record}"
            )
        return step


def check_unchanged(path: files.Path, digest: str | None, written: bytes | None = None) -> None:
    """Checks that records are those that were written; a file that is not there is not missed.

    Args:
      path: of the records.
      digest: of the writer; None compares nothing.
      written: the part of the file that is compared; None for all of it.

    Raises:
      ValueError: lines were lost or changed.
    """
    path = files.as_path(path)
    if digest is None or not path.exists():
        return
    if files.digest(path if written is None else written) != digest:
        raise ValueError(
            f"{path} is not what the training wrote up to its last checkpoint: lines were lost or changed. "
            "Bring the file back, or delete it to go on without those records."
        )
