"""Describes a run for its result: task, space, network, versions and device."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import flax
import jax
import numpy as np
import optax

import jaxnas
from jaxnas import files
from jaxnas.inputs import describe
from jaxnas.report.result import MetricOf, Network, Result, SpaceOf, TaskOf
from jaxnas.space import Space
from jaxnas.tasks import Task


def describe_run(
    task: Task, space: Space, found: Network, config: Mapping[str, Any] | None, **more: Any
) -> Result:
    """The result of a run on this machine; `more` are further fields of `Result`."""
    return Result(
        task=describe_task(task),
        space=describe_space(space),
        found=found,
        config=config or {},
        versions=versions(),
        device=jax.devices()[0].device_kind,
        **more,
    )


def describe_task(task: Task) -> TaskOf:
    """The task's part of a result; of a text, as many tokens as an evaluation takes."""
    most = getattr(task, "evaluation_tokens", None)
    sizes = {x: n if x == "train" or most is None else min(n, most) for x, n in task.sizes.items()}
    return TaskOf(
        name=task.name,
        examples=task.examples,
        sizes=sizes,
        metrics=tuple(MetricOf(name=m.name, unit=m.unit, direction=m.direction) for m in task.metrics),
        details=files.plain(dict(task.details())),
        inputs=f"{describe(task.inputs)}, with any number of rows, {task.preparation()}",
    )


def describe_space(space: Space) -> SpaceOf:
    """The space's part of a result."""
    return SpaceOf(cardinality=str(space.cardinality), choices=space.to_json())


def versions() -> dict[str, str]:
    """Versions of what decides numbers."""
    return {
        "jaxnas": jaxnas.__version__,
        "jax": jax.__version__,
        "flax": flax.__version__,
        "optax": optax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
