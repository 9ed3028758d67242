"""Checkpoints that survive a kill at any moment and notice damage: orbax inside, a seal around.

Layout of a directory of checkpoints:

    120/state/          what orbax wrote
    120/metadata.json   {"step", "metadata", "leaves": {path: "float32[3, 4]"}}
    120/manifest.json   {"files": {path: {"bytes", "sha256"}}} of all the other files
    corrupt-110/        set aside by `restore_latest`; never read and never deleted
    tmp-*               unfinished work of a killed run; deleted by the next save

A step is written whole, manifest included, under a temporary name and then renamed: a directory
whose name is a number is complete, or was damaged later. That is why orbax's `Checkpointer` is
used and not its `CheckpointManager`, which commits a step before a manifest could be in it.
"""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxnas.training import sealing, workdir

_logger = logging.getLogger(__name__)
_METADATA, _STATE = "metadata.json", "state"


class CheckpointError(RuntimeError):
    """Checkpoints exist, but none can be restored."""


class ConfigMismatch(CheckpointError):
    """A checkpoint was made with another config; `differences` names the fields."""

    def __init__(self, message: str, differences: list[str]) -> None:
        super().__init__(message)
        self.differences = differences


class Checkpointer:
    """The checkpoints of one run, in one directory, by one process.

    A state is any pytree of JAX arrays (sharded, typed keys), NumPy arrays and Python numbers.
    """

    def __init__(self, directory: str | os.PathLike, max_to_keep: int = 3) -> None:
        """Opens or creates a directory of checkpoints.

        Args:
          directory: where they are.
          max_to_keep: how many of the latest steps stay; at least 2, so that there is one to fall
            back to.
        """
        if max_to_keep < 2:
            raise ValueError(f"max_to_keep is {max_to_keep}: at least 2, to have one to fall back")
        if jax.process_count() > 1:
            raise NotImplementedError(
                f"checkpoints by {jax.process_count()} processes at once are not supported yet; "
                "run one process with all its devices"
            )
        self.directory = pathlib.Path(directory).absolute()
        self.max_to_keep = max_to_keep
        self.directory.mkdir(parents=True, exist_ok=True)
        self._orbax = ocp.Checkpointer(ocp.StandardCheckpointHandler())

    def steps(self) -> list[int]:
        """The steps that are saved, in increasing order."""
        names = (entry.name for entry in self.directory.iterdir() if entry.is_dir())
        return sorted(int(name) for name in names if name.isascii() and name.isdecimal())

    def save(self, step: int, state: Any, metadata: Mapping[str, Any]) -> bool:
        """Saves a step and deletes the oldest beyond `max_to_keep`; returns when it is on disk.

        Args:
          step: not below the latest one saved.
          state: a pytree of arrays and numbers.
          metadata: what JSON can hold; "config" in it is compared when restoring.

        Returns:
          False if this step is saved already (nothing is written), else True.
        """
        steps = self.steps()
        if step in steps:
            return False
        if steps and step < steps[-1]:
            raise ValueError(f"step {step} comes before the latest checkpoint, {steps[-1]}")
        for leftover in self.directory.glob("tmp-*"):
            shutil.rmtree(leftover)
        temporary = self.directory / f"tmp-saving-{step}"
        temporary.mkdir()
        state = _without_numpy_scalars(state)
        self._orbax.save(temporary / _STATE, args=ocp.args.StandardSave(_without_empty(state)))
        record = {"step": step, "metadata": metadata, "leaves": _leaves(state)}
        workdir.write_json_atomic(temporary / _METADATA, record)
        sealing.seal(temporary)
        os.rename(temporary, self.directory / str(step))
        workdir.fsync(self.directory)
        for old in self.steps()[: -self.max_to_keep]:
            # Renamed first: a kill halfway through must not leave half a step under its number.
            doomed = self.directory / f"tmp-deleting-{old}"
            os.rename(self.directory / str(old), doomed)
            shutil.rmtree(doomed)
        return True

    def restore_latest(
        self, example: Any, config: Mapping[str, Any] | None = None, may_differ: tuple = ()
    ) -> tuple[int, Any, dict[str, Any]] | None:
        """Restores the latest step that is whole.

        Damaged steps after it are renamed `corrupt-<step>` and a warning says why.

        Args:
          example: a state of the same structure, shapes and types, of arrays or
            `jax.ShapeDtypeStruct`; its shardings are those of the result.
          config: the config of now, compared with metadata["config"]; None compares nothing.
          may_differ: fields (dotted) of the config that may differ.

        Returns:
          The step, the state and the metadata; None if there is no checkpoint.

        Raises:
          ConfigMismatch: the checkpoint was made with another config.
          CheckpointError: all are damaged (nothing is renamed), or the state has other leaves.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self.steps()):
            try:
                record = _read(self.directory / str(step))
            except sealing.Damaged as reason:
                damaged[step] = str(reason)
                continue
            # Refusals come first, so that a wrong config renames nothing.
            _check_config(self.directory / str(step), record, config, may_differ)
            _check_leaves(self.directory / str(step), record, example)
            for bad, why in damaged.items():
                aside = _set_aside(self.directory / str(bad))
                _logger.warning(
                    "checkpoint %d in %s is damaged (%s): it is now %s, and the run goes back to "
                    "checkpoint %d",
                    bad,
                    self.directory,
                    why,
                    aside.name,
                    step,
                )
            state = self._orbax.restore(
                self.directory / str(step) / _STATE,
                args=ocp.args.StandardRestore(_without_empty(_without_numpy_scalars(example))),
            )
            state = jax.tree.map(_with_empty, state, example)
            return step, state, record["metadata"]
        if damaged:
            reasons = "\n".join(f"  checkpoint {step}: {why}" for step, why in damaged.items())
            raise CheckpointError(
                f"no checkpoint in {self.directory} is whole:\n{reasons}\n"
                "Bring the files back, or move the directory away to start again from step 0."
            )
        return None

    def close(self) -> None:
        """Ends orbax's threads."""
        self._orbax.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _without_numpy_scalars(state: Any) -> Any:
    """Orbax saves NumPy scalars but cannot restore them; arrays of no axes it can."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, np.generic) else x, state)


def _is_empty(leaf: Any) -> bool:
    return getattr(leaf, "size", 1) == 0


def _without_empty(state: Any) -> Any:
    """Orbax refuses arrays without elements (a memory of no layers): something stands for them."""
    return jax.tree.map(lambda x: np.zeros(1, np.int32) if _is_empty(x) else x, state)


def _with_empty(leaf: Any, like: Any) -> Any:
    if not _is_empty(like):
        return leaf
    leaf, sharding = np.zeros(like.shape, like.dtype), getattr(like, "sharding", None)
    return leaf if sharding is None else jax.device_put(leaf, sharding)


def _leaves(state: Any) -> dict[str, str]:
    """{"params/w": "float32[3, 4]", "step": "int"} of a state or of its abstract form."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (
            f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else type(leaf).__name__
        )
        for path, leaf in leaves
    }


def _read(step: pathlib.Path) -> dict[str, Any]:
    """Verifies every byte of a step and returns its metadata record, or raises Damaged."""
    if _METADATA not in sealing.verify(step):
        raise sealing.Damaged(f"{sealing.MANIFEST} does not list {_METADATA}")
    record = workdir.read_json(step / _METADATA)
    if str(record["step"]) != step.name:
        raise sealing.Damaged(f"it holds step {record['step']}")
    return record


def _check_config(
    step: pathlib.Path, record: dict, config: Mapping[str, Any] | None, may_differ: tuple
) -> None:
    if config is None:
        return
    lines = workdir.diff(record["metadata"].get("config", {}), config)
    lines = [line for line in lines if line.split(": ", 1)[0] not in may_differ]
    if lines:
        raise ConfigMismatch(
            f"the checkpoint {step} was made with another config:\n  "
            + "\n  ".join(lines)
            + "\nStart with that config to resume, or choose another workdir to start anew.",
            lines,
        )


def _check_leaves(step: pathlib.Path, record: dict, example: Any) -> None:
    lines = workdir.diff(record["leaves"], _leaves(_without_numpy_scalars(example)))
    if lines:
        more = f"\n  and {len(lines) - 10} more" if len(lines) > 10 else ""
        raise CheckpointError(
            f"the checkpoint {step} holds another state:\n  " + "\n  ".join(lines[:10]) + more
        )


def _set_aside(step: pathlib.Path) -> pathlib.Path:
    """Renames a damaged step to corrupt-<step>, or corrupt-<step>-2 if that exists, and so on."""
    aside = step.with_name(f"corrupt-{step.name}")
    number = 1
    while aside.exists():
        number += 1
        aside = step.with_name(f"corrupt-{step.name}-{number}")
    os.rename(step, aside)
    return aside
