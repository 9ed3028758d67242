"""Records of a run as JSON lines that a resumed run writes as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxnas import files


class JsonlWriter:
    """An append-only file of JSON records, one a line, ordered by a counter such as the step.

    A run that was killed after its checkpoint at step k has lines beyond k, and perhaps half a
    line. Opened with `resume=k`, those are cut off; the resumed run writes them again, so the file
    ends byte for byte as if nothing had happened. Records must therefore not hold the time of day
    nor a rate; those belong on the terminal (`progress.py`).
    """

    def __init__(self, path: files.Path, resume: int | None = None, counter: str = "step") -> None:
        """Cuts the file to what the run goes on from.

        Args:
          path: the file; its directory exists.
          resume: keep records whose counter is at most this; None starts an empty file.
          counter: the integer key that every record has and that never decreases.

        Raises:
          ValueError: a line before the last one is not a record of this kind; nothing is cut.
        """
        self.path = files.as_path(path)
        self.counter = counter
        self._last: int | None = None
        kept = 0
        if resume is not None:
            for record in files.read_lines(self.path, (counter,)):
                if self._count(record) > resume:
                    break
                self._last = record[counter]
                kept += 1
        files.truncate_lines(self.path, kept)

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends a record and puts it safely on disk; NaN and the infinities become null.

        Raises:
          ValueError: the counter is missing, not an integer, or smaller than the last one.
        """
        record = files.plain(record)
        self._last = self._count(record)
        files.append_lines(self.path, [record])

    def _count(self, record: Mapping[str, Any]) -> int:
        count = record.get(self.counter)
        if type(count) is not int or (self._last is not None and count < self._last):
            after = "" if self._last is None else f" not below {self._last}, the one before"
            raise ValueError(
                f"a record of {self.path} needs an integer {self.counter!r}{after}: got {count!r} in {record}"
            )
        return count
