"""Checkpoints: Orbax writes them; this file makes them safe to resume from.

Orbax commits a step at once, deletes old ones, and saves in the background, from several processes and to
remote paths. Added here:

* A step is restored only if every leaf has the checksum that it was saved with. Orbax notices a file that
  is missing or cut short, but not a bit that has flipped in an array or in its JSON. Checksums are computed
  where the arrays lie, in whatever shards: no process gathers a leaf.
* A damaged step is renamed to `corrupt-<step>`, and the step before it is restored.
* A step of another training or of a state of another form raises, with what differs.
* States that are not finite are not saved.
* Beside the latest steps the one of the best score stays. Scores are in the record that has a SHA-256.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from jaxnas import files

_logger = logging.getLogger(__name__)
_NO_ROOM = tuple(map(os.strerror, files.NO_ROOM))


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, or there are some and none can be restored."""


class ConfigMismatch(CheckpointError):
    """A checkpoint was made by another training; `differences` names the fields."""

    def __init__(self, message: str, differences: list[str]) -> None:
        super().__init__(message)
        self.differences = differences

    def __reduce__(self) -> tuple[Any, ...]:
        # What the base class gives calls `__init__` with the message alone.
        return type(self), (str(self), self.differences)


class NotFinite(CheckpointError):
    """A state was not saved because it holds a NaN or an infinity."""


class _Damaged(Exception):
    """The bytes of a step are not those that were saved."""


class Checkpointer:
    """The checkpoints of one run in a directory, also a remote one, such as gs://bucket/run.

    A state is any pytree of JAX arrays (sharded, typed keys), NumPy arrays and Python numbers. The latest
    `max_to_keep` steps stay beside that of the best score; with at least 2 there is one to fall back to. One
    that only `reads` leaves alone what another process is writing.
    """

    def __init__(self, directory: files.Path, max_to_keep: int = 3, *, reads: bool = False) -> None:
        self.directory = epath.Path(files.absolute(directory))
        self._scores: dict[int, float | None] = {}
        policy = _LatestAndBest(max_to_keep, self._by_score)
        self._options = ocp.CheckpointManagerOptions(preservation_policy=policy)
        self._being_saved = (0, 0)  # The step, and the bytes of its state.
        self._orbax = ocp.CheckpointManager(self.directory, options=self._options)
        # An error in a thread of Orbax is raised here as a sentence, so its traceback is not logged.
        logging.getLogger("absl").addFilter(_not_an_error_of_orbax)
        if reads:  # another process may be saving
            return
        self._remove_unfinished()
        ocp.multihost.sync_global_processes("jaxnas: unfinished checkpoints are removed")

    def steps(self) -> list[int]:
        """The steps that are saved, in increasing order; waits for the one being saved."""
        self.wait()
        return sorted(self._orbax.all_steps())

    def save(
        self, step: int, state: Any, metadata: Mapping[str, Any], finite: Any = (), score: float | None = None
    ) -> bool:
        """Begins to save a step, and returns whether it was not saved before; deletes what is not kept.

        The state may be changed or donated when this returns; the files are written in the background.

        Args:
          step: not below the latest one saved.
          state: a pytree of arrays and numbers.
          metadata: a dict that JSON can hold.
          finite: the part of the state that must be finite, or NotFinite is raised.
          score: of the state, higher is better; None if it was not measured.
        """
        steps = self.steps()
        if step in steps:
            return False
        if wrong := _not_finite(finite):
            last = f"The last checkpoint is that of step {steps[-1]}." if steps else "There is none yet."
            raise NotFinite(f"step {step} is not saved: {wrong} holds a NaN or an infinity. {last}")
        stored = _stored(state)
        record = dict(step=step, metadata=metadata, score=score, leaves=_types(state))
        record = files.plain(record | {"checksums": checksums(stored)})
        self._scores[step] = record["score"]
        self._by_score(steps)  # Reads the scores now: Orbax asks for them while it saves.
        self._being_saved = step, sum(getattr(leaf, "nbytes", 8) for leaf in jax.tree.leaves(stored))
        with self._errors_as_sentences():
            return self._orbax.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(stored),
                    record=ocp.args.JsonSave({"record": record, "sha256": _digest_json(record)}),
                ),
            )

    def restore(
        self, example: Any, differ: Callable[[Mapping[str, Any]], list[str]] | None = None, best: bool = False
    ) -> tuple[int, Any, dict[str, Any]] | None:
        """The latest step that is whole, or that of the best score, its state and metadata; None for none.

        Damaged steps that come before it are renamed `corrupt-<step>`, and a warning says why.

        Args:
          example: a state of the same structure, shapes and types, of arrays or `jax.ShapeDtypeStruct`; its
            shardings are those of the result.
          differ: from the metadata of a step to lines as of `files.diff`, of what is different now.
          best: take the step of the best score.

        Raises:
          ConfigMismatch: something differs.
          CheckpointError: other leaves, damage of all (nothing is renamed), a best one that is not known.
        """
        damaged: dict[int, str] = {}
        steps = self.steps()
        if best and steps and not (steps := self._by_score(steps)):
            raise CheckpointError(
                f"no checkpoint in {self.directory} has a score: nothing was measured when they were saved. "
                "Take the latest. A training is measured every evaluate_every steps, of which "
                "checkpoint_every should be a multiple; one with architecture parameters never is."
            )
        for step in reversed(steps):
            try:
                record = self._read_record(step)
                # Refusals come first, so that another config renames nothing.
                self._check(step, record, example, differ)
                stored = self._read_state(step, record, example)
            except _Damaged as reason:
                damaged[step] = str(reason)
                continue
            if damaged:
                self._set_aside(damaged, step)
            return step, jax.tree.map(_with_empty, stored, example), record["metadata"]
        if not damaged:
            return None
        reasons = "\n".join(f"  checkpoint {step}: {why}" for step, why in damaged.items())
        what, advice = f"no checkpoint in {self.directory}", "move the directory away"
        if best:
            what, advice = f"no checkpoint with a score in {self.directory}", "take the latest"
        raise CheckpointError(f"{what} is whole: bring the files back, or {advice}.\n{reasons}")

    def standing(self) -> tuple[int, dict[str, Any]] | None:
        """The last step whose record is whole, and its metadata; None if there is none."""
        for step in reversed(self.steps()):
            with contextlib.suppress(_Damaged):
                return step, self._read_record(step)["metadata"]
        return None

    def cut(self, step: int) -> int | None:
        """Removes the checkpoints from a step on, and returns the last one that is left, if any."""
        steps = self.steps()
        for one in steps:
            if one >= step:
                self._orbax.delete(one)
        return max((one for one in steps if one < step), default=None)

    def wait(self) -> None:
        """Returns when the last `save` is on disk; raises CheckpointError if it could not be written."""
        with self._errors_as_sentences():
            self._orbax.wait_until_finished()

    def close(self) -> None:
        """Waits for the last `save` and ends Orbax's threads; raises as `wait` does."""
        try:
            self.wait()
        finally:
            self._orbax.close()
            logging.getLogger("absl").removeFilter(_not_an_error_of_orbax)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _by_score(self, steps: Sequence[int]) -> list[int]:
        """Those of some steps that have a score, the best one last; of equal ones the first is better."""
        for step in steps:
            if step not in self._scores:
                self._scores[step] = None  # as one whose record is damaged
                with contextlib.suppress(_Damaged):
                    self._scores[step] = self._read_record(step).get("score")
        scores = {step: score for step in steps if (score := self._scores[step]) is not None}
        return sorted(scores, key=lambda step: (scores[step], -step))

    def _read_record(self, step: int) -> dict[str, Any]:
        """The JSON of a step, or raises _Damaged."""
        with _errors_as_damage():
            sealed = self._orbax.restore(step, args=ocp.args.Composite(record=ocp.args.JsonRestore()))[
                "record"
            ]
            record = sealed["record"]
            if sealed["sha256"] != _digest_json(record):
                raise _Damaged("the content of its record has changed")
            if record["step"] != step:
                raise _Damaged(f"it holds step {record['step']}")
            return record

    def _check(
        self,
        step: int,
        record: Mapping[str, Any],
        example: Any,
        differ: Callable[[Mapping[str, Any]], list[str]] | None,
    ) -> None:
        """Raises for a checkpoint of another training, or of a state of another form."""
        where = self.directory / str(step)
        if lines := differ(record["metadata"]) if differ is not None else []:
            raise ConfigMismatch(
                f"the checkpoint {where} was made by another training:{files.indented(lines, len(lines))}"
                "\nRestore these to resume, or choose another workdir to begin anew.",
                lines,
            )
        if lines := files.diff(record["leaves"], _types(example)):
            raise CheckpointError(
                f"the checkpoint {where} holds another state:{files.indented(lines)}"
                "\nStart with the network and training that it was made with, or choose another workdir."
            )

    def _read_state(self, step: int, record: Mapping[str, Any], example: Any) -> Any:
        """The leaves of a step as they were stored, or raises _Damaged."""
        with _errors_as_damage():
            args = ocp.args.Composite(state=ocp.args.StandardRestore(_stored(example)))
            stored = self._orbax.restore(step, args=args)["state"]
            for name, checksum in checksums(stored).items():
                if checksum != record["checksums"][name]:
                    raise _Damaged(f"the content of {name} has changed")
            return stored

    def _remove_unfinished(self) -> None:
        """Removes what a save left that was killed or failed.

        Orbax can do so too, but in a thread that outlives this object.
        """
        deadline = time.monotonic() + 5  # The other threads of a save that failed may still write.
        while leftovers := list(self.directory.glob(f"*{ocp.utils.TMP_DIR_SUFFIX}*")):
            for leftover in leftovers if jax.process_index() == 0 else ():
                with contextlib.suppress(OSError):
                    leftover.rmtree()
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)

    def _set_aside(self, damaged: Mapping[int, str], good: int) -> None:
        """Renames damaged steps to corrupt-<step>, or corrupt-<step>-2 if that exists, and so on."""
        for step in damaged:
            self._scores[step] = None
        for step, why in damaged.items() if jax.process_index() == 0 else ():
            names = (f"corrupt-{step}", *(f"corrupt-{step}-{number}" for number in range(2, 1000)))
            aside = next(path for name in names if not (path := self.directory / name).exists())
            (self.directory / str(step)).rename(aside)
            _logger.warning(
                f"checkpoint {step} in {self.directory} is damaged ({why}): it is now {aside.name}, "
                f"and the run goes back to checkpoint {good}"
            )
        ocp.multihost.sync_global_processes("jaxnas: damaged checkpoints are set aside")
        self._orbax.reload()

    @contextlib.contextmanager
    def _errors_as_sentences(self) -> Iterator[None]:
        """Turns errors of a save into a CheckpointError, and removes what the save left."""
        try:
            yield
        except (OSError, ValueError) as error:  # TensorStore raises ValueError for a full disk.
            step, size = self._being_saved
            with contextlib.suppress(OSError, ValueError):  # It raises its last error again.
                self._orbax.close()
            self._remove_unfinished()
            self._orbax = ocp.CheckpointManager(self.directory, options=self._options)
            full = next((reason for reason in _NO_ROOM if reason in str(error)), "")
            advice = (
                f" It takes up to {-(-size // 10**6)} MB beside the checkpoints that are kept. Delete "
                "something, or move the workdir to a larger disk."
            )
            raise CheckpointError(
                f"checkpoint {step} could not be written to {self.directory}: {full or _reason(error)}."
                f"{advice if full else ''} Started again, the run resumes from the last whole checkpoint."
            ) from error


@dataclasses.dataclass(frozen=True)
class _LatestAndBest:
    """Preserves the latest checkpoints, and the best of all.

    Orbax's `BestN` reads a file of metrics, and a damaged one keeps the directory from being opened.
    """

    count: int
    by_score: Callable[[Sequence[int]], list[int]]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """One answer for each checkpoint, which are in the order of their steps."""
        del context
        steps = [one.step for one in checkpoints]
        kept = {*steps[-self.count :], *self.by_score(steps)[-1:]}
        return [step in kept for step in steps]


@contextlib.contextmanager
def _errors_as_damage() -> Iterator[None]:
    """Turns whatever Orbax and TensorStore raise on reading changed files into _Damaged."""
    try:
        yield
    except (_Damaged, MemoryError, jax.errors.JaxRuntimeError):
        raise  # A device that is too small is no damage.
    except Exception as error:
        raise _Damaged(_reason(error.__cause__ or error)) from error


def _reason(error: BaseException) -> str:
    """The first line of an error without what TensorStore adds to it, with its type if it says little."""
    text = str(error).partition("\n")[0].partition(" [tensorstore_spec")[0][:300].rstrip(". ")
    return text if " " in text else f"{type(error).__name__} {text}".strip()


def _not_an_error_of_orbax(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR or "orbax" not in record.pathname


def _is_empty(leaf: Any) -> bool:
    return getattr(leaf, "size", 1) == 0


def _stored(state: Any) -> Any:
    """A state with placeholders for arrays without elements (a memory of no layers), which Orbax refuses."""
    return jax.tree.map(lambda leaf: np.zeros(1, np.int32) if _is_empty(leaf) else leaf, state)


def _with_empty(leaf: Any, like: Any) -> Any:
    if not _is_empty(like):
        return leaf
    leaf, sharding = np.zeros(like.shape, like.dtype), getattr(like, "sharding", None)
    return leaf if sharding is None else jax.device_put(leaf, sharding)


def _leaves(tree: Any) -> dict[str, Any]:
    """{"params/w": leaf}."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _types(state: Any) -> dict[str, str]:
    """{"params/w": "float32[3, 4]", "step": "int"} of a state or of its abstract form."""
    return {
        name: f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else type(leaf).__name__
        for name, leaf in _leaves(state).items()
    }


def checksums(state: Any) -> dict[str, list[int]]:
    """Fletcher's sums of each leaf, modulo 2**32: of its words, and of its words times their positions.

    Sums of integers do not depend on their order, so each process sums what it holds, in whatever shards. Any
    change of one word changes the first sum; words that trade places change the second.
    """
    leaves = _leaves(state)
    sums = np.stack([_sums(leaf) for leaf in leaves.values()])
    if jax.process_count() > 1:
        sums = np.asarray(multihost_utils.process_allgather(sums)).sum(axis=0, dtype=np.uint32)
    return dict(zip(leaves, sums.tolist(), strict=True))


def _sums(leaf: Any) -> np.ndarray:
    """The two sums over the part of a leaf that this process holds, uint32 [2]."""
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
        parts = [(leaf, (slice(None),) * leaf.ndim)] if jax.process_index() == 0 else []
    else:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        # Of equal copies on several devices, one has the number 0.
        parts = [(part.data, part.index) for part in leaf.addressable_shards if part.replica_id == 0]
    total, weighted = 0, 0
    for data, index in parts:
        array = np.asarray(data, order="C")[..., None]
        # Words have 32 bits at most: a larger element is several, in the last axis.
        words = array.view(f"uint{8 * min(array.itemsize, 4)}")
        total += int(np.sum(words, dtype=np.uint32))
        # A position is a sum over axes, of places times strides, and so is the product with it.
        stride, sizes = 1, (*leaf.shape, words.shape[-1])
        for axis in reversed(range(words.ndim)):
            others = tuple(other for other in range(words.ndim) if other != axis)
            places = np.arange(sizes[axis], dtype=np.uint32)[(*index, slice(None))[axis]]
            products = np.sum(words, others, dtype=np.uint32) * places
            weighted += stride * int(np.sum(products, dtype=np.uint32))
            stride *= sizes[axis]
    return np.array([total % 2**32, weighted % 2**32], np.uint32)


def _digest_json(value: Any) -> str:
    return files.sha256(json.dumps(value, sort_keys=True).encode())


@jax.jit
def _all_finite(leaves: dict[str, Any]) -> dict[str, jax.Array]:
    return {name: jnp.isfinite(leaf).all() for name, leaf in leaves.items()}


def _not_finite(tree: Any) -> str:
    """The name of a leaf with a NaN or an infinity, or ""."""
    floats = {
        x: leaf for x, leaf in _leaves(tree).items() if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
    }
    return next((name for name, good in jax.device_get(_all_finite(floats)).items() if not good), "")
