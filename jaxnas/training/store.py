"""The files of a training: checkpoints, records and times, which agree with each other after any end."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from jaxnas import files
from jaxnas.processes import check_shared, is_first
from jaxnas.training.checkpoint import Checkpointer
from jaxnas.training.deciding import compared_with
from jaxnas.training.divergence import DIVERGED, MENDS, Course
from jaxnas.training.metrics import JsonlWriter, check_unchanged
from jaxnas.training.state import TrainState

_log = logging.getLogger(__name__)
CHECKPOINTS, TIMES, RECORDS = "checkpoints", "times.json", "metrics.jsonl"


def interrupted(workdir: files.Path) -> str:
    """How far the training in a workdir had come when it was stopped, as "step 2,226 of 3,000".

    Returns:
      The words; "" where the training is complete, or there is none.
    """
    folder = files.as_path(workdir) / CHECKPOINTS
    if not folder.is_dir():
        return ""
    with Checkpointer(folder) as checkpointer:
        found = checkpointer.standing()
    if found is None or found[1].get("complete"):
        return ""
    steps = found[1].get("decided_by", {}).get("training", {}).get("steps")
    return f"step {found[0]:,}" + (f" of {steps:,}" if steps else "")


class Store:
    """Writes and reads what a training keeps; without a folder it keeps nothing.

    Only the first of several processes writes records and times; all of them write checkpoints. It is a
    context manager, which waits for the last save when it is left.

    Attributes:
      folder: of the training; None for no files.
      course: of the loss, up to the last step that was looked at.
    """

    def __init__(
        self,
        workdir: str | os.PathLike | None,
        config: Mapping[str, Any],
        may_differ: tuple[str, ...],
        decided_by: Mapping[str, Any] | None = None,
    ) -> None:
        """A store in `workdir` of a training with this config.

        Args:
          workdir: the folder; None for no files.
          config: compared with that of a checkpoint.
          may_differ: fields that may differ.
          decided_by: what decides the weights, see `deciding`; compared too.
        """
        self.folder: pathlib.Path | None = None if workdir is None else files.as_path(workdir)
        self.course = Course()
        self._config, self._may_differ = config, may_differ
        self._decided_by = files.plain(decided_by or {})
        self._records: JsonlWriter | None = None
        self._laps: JsonlWriter | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Store:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            check_shared(self.folder)
            self._checkpointer = self._stack.enter_context(Checkpointer(self.folder / CHECKPOINTS))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def begun(self) -> bool:
        """Whether a training in this folder has saved something, so that `restore` may resume it."""
        folder = None if self.folder is None else self.folder / CHECKPOINTS
        return folder is not None and folder.is_dir() and any(folder.iterdir())

    def restore(self, state: TrainState) -> tuple[TrainState, int, bool]:
        """The last state that was saved, its step, and whether the training is complete.

        Records behind that step are cut off, since they are written again.

        Args:
          state: of a training that begins; returned, with step 0, if nothing was saved.

        Raises:
          ConfigMismatch: a checkpoint of another config.
          ValueError: records that were changed.
        """
        if self.folder is None:
            return state, 0, False
        mended = (self.folder / DIVERGED).exists()
        may_differ = (*self._may_differ, *MENDS) if mended else self._may_differ
        differ = compared_with(self._decided_by)
        restored = self._checkpointer.restore(state, self._config, may_differ, differ=differ)
        if restored is None:
            if is_first():
                self._open(None, None)
            return state, 0, False
        step, state, metadata = restored
        digest, self.course = metadata.get("records"), Course(*metadata.get("course", ()))
        if metadata.get("complete"):
            check_unchanged(self.folder / RECORDS, digest)
            return state, step, True
        if is_first():
            self._open(step, digest)
        return state, step, False

    def _open(self, resume: int | None, digest: str | None) -> None:
        assert self.folder is not None
        self._records = JsonlWriter(self.folder / RECORDS, resume=resume, digest=digest)
        path = self.folder / "times.jsonl"
        try:
            self._laps = JsonlWriter(path, resume=resume)
        except ValueError as error:  # no result depends on times
            _log.warning("%s It is begun anew.", error)
            self._laps = JsonlWriter(path)

    def record(self, values: Mapping[str, Any]) -> None:
        """Appends a line to metrics.jsonl."""
        if self._records is not None:
            self._records.write(values)

    def lap(self, values: Mapping[str, Any]) -> None:
        """Appends a line to times.jsonl."""
        if self._laps is not None:
            self._laps.write(values)

    def save(self, step: int, state: TrainState, complete: bool, score: float | None) -> None:
        """Saves a checkpoint in the background; of a complete training it waits for it.

        Args:
          step: how many steps were done.
          state: behind them.
          complete: whether they are all.
          score: of the state, by which the best one is kept; None if it was not measured.

        Raises:
          NotFinite: a state with weights that are not finite, which is not saved.
        """
        if self.folder is not None:
            digest = None if self._records is None else self._records.digest
            metadata = {
                "config": dict(self._config),
                "decided_by": self._decided_by,
                "complete": complete,
                "records": digest,
                "course": dataclasses.astuple(self.course),
            }
            self._checkpointer.save(step, state, metadata, state.finite(), score)
            if complete:
                self._checkpointer.wait()

    def last_before(self, step: int) -> int | None:
        """The last checkpoint before a step, after those from it on are removed; None if there is none."""
        if self.folder is None:
            return None
        return self._checkpointer.cut(step)

    def finish(self, times: Mapping[str, float]) -> None:
        """Writes the times of a complete training, and removes the note of a divergence that was mended."""
        if self.folder is not None and is_first():
            files.write_json(self.folder / TIMES, dict(times))
            (self.folder / DIVERGED).unlink(missing_ok=True)  # without it, another config is refused again

    def times(self) -> dict[str, float] | None:
        """What `finish` wrote; None if it wrote nothing."""
        path = None if self.folder is None else self.folder / TIMES
        return files.read_json(path) if path is not None and path.is_file() else None
