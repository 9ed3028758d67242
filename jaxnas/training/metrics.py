"""Records of a run as JSON lines that a resumed run writes as if it had never stopped."""

from __future__ import annotations

import json
import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any, Self

from jaxnas.training.workdir import plain

_logger = logging.getLogger(__name__)


class JsonlWriter:
    """An append-only file of JSON records, one a line, ordered by a counter such as the step.

    A run that was killed after its checkpoint at step k has lines beyond k, and perhaps half a
    line. Opened with `resume=k`, those are cut off; the resumed run writes them again, so the file
    ends byte for byte as if nothing had happened. Records must therefore not hold the time of day
    nor a rate; those belong on the terminal (`progress.py`).
    """

    def __init__(self, path: str | os.PathLike, resume: int | None = None, counter: str = "step") -> None:
        """Opens the file.

        Args:
          path: the file; its directory exists.
          resume: keep records whose counter is at most this; None starts an empty file.
          counter: the integer key that every record has and that never decreases.

        Raises:
          ValueError: a line before the last one is not a record of this kind.
        """
        self.path = pathlib.Path(path)
        self.counter = counter
        self._last: int | None = None
        kept = b""
        if resume is not None and self.path.exists():
            kept = self._kept(self.path.read_bytes(), resume)
        self._file = open(self.path, "ab")
        self._file.truncate(len(kept))

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends a record; NaN and the infinities are written as null.

        Raises:
          ValueError: the counter is missing, not an integer, or smaller than the last one.
        """
        record = plain(record)
        count = record.get(self.counter)
        if type(count) is not int or (self._last is not None and count < self._last):
            after = "" if self._last is None else f" not below {self._last}, the one before"
            raise ValueError(
                f"a record of {self.path.name} needs an integer {self.counter!r}{after}: "
                f"got {count!r} in {record}"
            )
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        # Handed to the system at once: a kill of this process loses no line.
        self._file.flush()
        self._last = count

    def sync(self) -> None:
        """Makes the lines so far survive a loss of power; call it before saving a checkpoint."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _kept(self, content: bytes, resume: int) -> bytes:
        """The leading lines whose counter is at most `resume`."""
        lines = content.splitlines(keepends=True)
        end = 0
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                count = json.loads(line)[self.counter]
                if type(count) is not int:
                    raise TypeError(f"{self.counter} is {count!r}")
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"line {number} of {self.path} is not a JSON record with an integer "
                    f"{self.counter!r}: {line[:80]!r}. Move the file away or mend that line, "
                    "then start again."
                ) from error
            if count > resume:
                break
            self._last = count
            end += len(line)
        dropped = len(content) - end
        if dropped:
            _logger.info("%s: cut %d bytes beyond %s %d", self.path, dropped, self.counter, resume)
        return content[:end]


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads the records of a file; half a line at its end, left by a killed run, is ignored.

    Raises:
      ValueError: another line is not JSON; the message names the line.
    """
    records = []
    for number, line in enumerate(pathlib.Path(path).read_bytes().split(b"\n")[:-1], start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"line {number} of {path} is not JSON: {line[:80]!r}") from error
    return records
