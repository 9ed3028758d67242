"""A training's checkpoints, metrics and timings, kept consistent across crashes, and its divergence."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import operator
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnas import files
from jaxnas.processes import check_shared, is_first, on_host
from jaxnas.recipes.recipe import TrainState
from jaxnas.training.checkpoint import Checkpointer
from jaxnas.training.deciding import compared_with
from jaxnas.training.step import Setup

_log = logging.getLogger(__name__)
LAPS = "times.jsonl"
CHECKPOINTS, TIMES, RECORDS, DIVERGED = "checkpoints", "times.json", "metrics.jsonl", "diverged.json"
# The settings that may be changed after a training has diverged.
MENDS = ("training.learning_rate", "training.clip", "training.warmup_steps")


class DivergedError(RuntimeError):
    """The loss or a gradient is no longer finite, or the loss has left its course."""


@dataclasses.dataclass(frozen=True)
class Course:
    """Running statistics of a loss, which detect divergence while values are still finite.

    A loss is bad above 10 times its best smoothed value, twice the first one, and 10: less may be a hard
    batch, or the beginning of fine-tuning. Three bad steps in a row make the smoothed loss bad, in which a
    loss counts as at most 4 times the limit. A training that diverges did so at step `since`, from 1, from
    which all losses were suspicious: above twice the first one and 3 times the best smoothed one.
    """

    first: float | None = None
    smoothed: float = 0.0
    best: float = 0.0
    since: int = 0
    last: float = 0.0

    def after(self, step: int, loss: float) -> Course:
        """The course after a step; a loss that is not finite, of a step that was skipped, does not count."""
        if not math.isfinite(loss):
            return self
        if self.first is None:
            return Course(loss, loss, loss, last=loss)
        limit = self.limit
        smoothed = 0.9 * self.smoothed + 0.1 * min(loss, 4 * limit)
        suspicious = loss > max(2 * abs(self.first), 3 * abs(self.best))
        since = (self.since or step) if suspicious else 0
        return Course(self.first, smoothed, min(self.best, smoothed), since, loss)

    @property
    def limit(self) -> float:
        """The loss above which one is bad."""
        return max(10 * abs(self.best), 2 * abs(self.first or 0.0), 10.0)

    @property
    def bad(self) -> bool:
        """Whether the last loss is bad, so that weights are not saved."""
        return self.last > self.limit

    @property
    def ruined(self) -> bool:
        """Whether the training has diverged."""
        return self.smoothed > self.limit


class JsonlWriter:
    """An append-only file of JSON records, one per line, ordered by their "step".

    A run that was killed after its checkpoint at step k has lines beyond k, and perhaps half a line. With
    `resume=k` they are cut off; the resumed run writes them again, so the file ends byte for byte as if the
    run had not been interrupted. Records must therefore not hold the time of day nor a rate. None begins an
    empty file. Lines that were lost or changed since the writer that had this `digest` raise a ValueError.
    """

    def __init__(self, path: files.Path, resume: int | None = None, digest: str | None = None) -> None:
        self.path, self._last, kept = files.as_path(path), None, 0
        records = files.read_lines(self.path, ("step",)) if resume is not None else []
        for record in records:
            if (step := self._step(record)) > (resume or 0):
                break
            self._last, kept = step, kept + 1
        if records and not kept:
            digest = None  # The file was deleted, and has none of the records that the digest is of.
        data = self.path.read_bytes() if self.path.exists() else b""
        written = b"".join(data.splitlines(keepends=True)[:kept])
        check_unchanged(self.path, digest, written)
        self._digest = hashlib.sha256(written)
        files.truncate_lines(self.path, kept)

    @property
    def digest(self) -> str:
        """Digest of the whole file."""
        return self._digest.hexdigest()[:16]

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends a record and syncs it to disk; non-finite numbers become null."""
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
    """Raises ValueError if records are not those that were written; a missing file is accepted.

    Without a digest nothing is compared; `written` is the part of the file that is, None for all of it.
    """
    path = files.as_path(path)
    if digest is None or not path.exists():
        return
    if files.digest(path.read_bytes() if written is None else written) != digest:
        raise ValueError(
            f"{path} is not what the training wrote up to its last checkpoint: lines were lost or changed. "
            "Restore the file, or delete it to resume without those records."
        )


def interrupted(workdir: files.Path) -> str:
    """The progress of an unfinished training in a workdir, as "step 2,226 of 3,000"; else ""."""
    folder = files.as_path(workdir) / CHECKPOINTS
    if not folder.is_dir():
        return ""
    with Checkpointer(folder, reads=True) as checkpointer:
        found = checkpointer.standing()
    if found is None or found[1].get("complete"):
        return ""
    steps = found[1].get("decided_by", {}).get("training", {}).get("steps")
    return f"step {found[0]:,}" + (f" of {steps:,}" if steps else "")


class Store:
    """Writes and reads the files of a training; without a folder it keeps nothing.

    Only the first of several processes writes records and times; all of them write checkpoints. Leaving the
    context waits for the last save.

    Args:
      workdir: the folder; None for no files.
      decided_by: the fingerprint of the training, see `deciding`, compared with that of a checkpoint.
      may_differ: names in it that may differ.
    """

    def __init__(
        self, workdir: files.Path | None, decided_by: Mapping[str, Any], may_differ: tuple[str, ...] = ()
    ) -> None:
        self.folder: pathlib.Path | None = None if workdir is None else files.as_path(workdir)
        self.begun, self.course = False, Course()
        self._decided_by, self._may_differ = files.plain(decided_by), may_differ
        self._writers: dict[str, JsonlWriter] = {}

    def __enter__(self) -> Store:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            check_shared(self.folder)
            checkpoints = self.folder / CHECKPOINTS
            self.begun = checkpoints.is_dir() and any(checkpoints.iterdir())
            self._checkpointer = Checkpointer(checkpoints)
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            self._checkpointer.close()

    def restore(self, state: TrainState) -> tuple[TrainState, int, bool]:
        """The last saved state, or the given first one; its step, and whether the training is complete.

        Records beyond that step are cut off, since they are written again. See `Checkpointer.restore`.
        """
        if self.folder is None:
            return state, 0, False
        mended = (self.folder / DIVERGED).exists()
        differ = compared_with(self._decided_by, (*self._may_differ, *(MENDS if mended else ())))
        step, state, metadata = self._checkpointer.restore(state, differ) or (None, state, {})
        digest, self.course = metadata.get("records"), Course(*metadata.get("course", ()))
        if metadata.get("complete"):
            check_unchanged(self.folder / RECORDS, digest)
        elif is_first():
            self._writers[RECORDS] = JsonlWriter(self.folder / RECORDS, step, digest)
            try:
                self._writers[LAPS] = JsonlWriter(self.folder / LAPS, step)
            except ValueError as error:  # no result depends on times
                _log.warning("%s It is begun anew.", error)
                self._writers[LAPS] = JsonlWriter(self.folder / LAPS)
        return state, step or 0, bool(metadata.get("complete"))

    def write(self, name: str, values: Mapping[str, Any]) -> None:
        """Appends a line to metrics.jsonl or times.jsonl."""
        if name in self._writers:
            self._writers[name].write(values)

    def save(self, step: int, state: TrainState, complete: bool, score: float | None) -> None:
        """Saves a checkpoint in the background, or at once if the training is complete.

        The best state stays by its score, higher is better, None if it was not measured. Raises `NotFinite`
        for a state that is not finite, which is not saved.
        """
        if self.folder is not None:
            metadata = {
                "decided_by": self._decided_by,
                "complete": complete,
                "records": self._writers[RECORDS].digest if self._writers else None,
                "course": dataclasses.astuple(self.course),
            }
            self._checkpointer.save(step, state, metadata, state.finite(), score)
            if complete:
                self._checkpointer.wait()

    def check_steps(self, setup: Setup, flags: Sequence[tuple[range, Any, Any, Any]]) -> None:
        """Moves the course on, and raises DivergedError for a step at which the training diverged.

        `flags` are of each call the numbers of its steps from 0, whether each was finite (bool, [steps] or
        []), the architectures that they trained, or None, and their losses.
        """
        for numbers, finite, _, losses in flags:
            finite, losses = np.atleast_1d(finite), np.atleast_1d(losses)  # [steps of the call]
            for number, is_finite, loss in zip(numbers, finite, losses, strict=True):
                self.course = self.course.after(number + 1, float(loss)) if is_finite else self.course
                if not is_finite or self.course.ruined:
                    step = self.course.since if is_finite else number + 1
                    raise self.diverged(step, setup, _archs_of(step, flags))

    def diverged(self, step: int, setup: Setup, archs: Any = None) -> DivergedError:
        """The error of a step, from 1, which is recorded in the folder.

        Where the loss left its course, checkpoints from the first suspicious step on are removed. `archs` are
        a batch of the hard architectures that the step trained, if they are known.
        """
        course, good = self.course, None
        if self.folder is not None:
            good = self._checkpointer.cut(course.since - 1 if course.bad else step)
        trained = [] if archs is None else setup.net.space.to_dicts(archs)
        if self.folder is not None and is_first():
            record = {"step": step, "architectures": trained, "seed": setup.seed}
            files.write_json(self.folder / DIVERGED, record)
        which = f" It trained {json.dumps(files.plain(trained[0]))}." if len(trained) == 1 else ""
        what = f"The loss or a gradient of step {step} is not finite."
        if course.bad:
            figures = f"the loss is {course.last:.3g}, and was {course.best:.3g} at its best."
            what = f"The training diverged at step {step}: {figures}"
        kept = (
            "There is no checkpoint before it" if good is None else f"Checkpoint {good} is good and is kept"
        )
        advice = (
            f"{kept}: start again with the same workdir and a smaller training.learning_rate, with "
            "training.clip=1, or with a longer training.warmup_steps, and the run resumes from what is kept."
        )
        if step == 1:
            advice = (
                "These are the weights that training began with, so no rate mends it. Look for numbers in "
                "the data that are not finite or very large, and for tokens beyond the sizes of the network: "
                "Flax makes NaN of a token that an embedding has no row for."
            )
        return DivergedError(f"{what}{which} {advice}")

    def finish(self, times: Mapping[str, float]) -> None:
        """Writes the times of a complete training, and removes the note of a divergence that was mended."""
        if self.folder is not None and is_first():
            files.write_json(self.folder / TIMES, dict(times))
            (self.folder / DIVERGED).unlink(missing_ok=True)  # without it, other settings raise again

    def times(self) -> dict[str, float] | None:
        """The times that `finish` wrote; None if it wrote none."""
        path = None if self.folder is None else self.folder / TIMES
        return files.read_json(path) if path is not None and path.is_file() else None


def _archs_of(step: int, flags: Sequence[tuple[range, Any, Any, Any]]) -> Any:
    for numbers, _, archs, _ in flags:
        if step - 1 in numbers:
            row = numbers.index(step - 1) if len(numbers) > 1 else ...
            return jax.tree.map(operator.itemgetter(row), on_host(archs))
    return None  # trained before the last look
