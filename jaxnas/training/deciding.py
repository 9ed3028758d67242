"""Fingerprints of trainings and searches, which are compared before a run resumes.

Digests are the same in every process: no address, order of a set or place in the source is in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.extend import core

from jaxnas import files
from jaxnas.recipes.hard import Fixed
from jaxnas.recipes.recipe import Recipe, TrainState
from jaxnas.subnet import init
from jaxnas.tasks import Call, Task
from jaxnas.training.checkpoint import checksums
from jaxnas.training.plain import field_names, to_dict
from jaxnas.training.settings import Training
from jaxnas.training.step import Optimizer, Setup

_BYTES = 2**22  # of the examples that stand for a role; small data are compared whole
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def deciding(task: Task, net: nn.Module, training: Training, recipe: Recipe) -> dict[str, Any]:
    """The task, data, network, recipe and settings of a training, and the program of its loss."""
    network = to_dict(net)
    network.pop("remat", None)  # only trades time for memory
    return {
        "task": _settings(task),
        "data": {role: _data(task, role) for role in recipe.roles},
        "network": network,
        "recipe": to_dict(recipe),
        "training": training.deciding(),
        "program": _loss_program(task, net, recipe.roles[0]),
    }


def scoring(task: Task, variables: Any, limit: int | None = None) -> dict[str, Any]:
    """Fingerprint of the scores of architectures with these weights on the role "search"."""
    return {"weights": weights_digest(variables), "data": _evaluated(task, "search"), "limit": limit}


def scoring_alone(task: Task, net: nn.Module, training: Training) -> str:
    """Fingerprint of the scores of architectures that are trained alone."""
    record = {**deciding(task, net, training, Fixed()), "search": _evaluated(task, "search")}
    record["program"] = record["program"]["digest"]
    return files.digest(files.plain(record))


def fingerprint(setup: Setup, state: TrainState) -> dict[str, Any]:
    """All that decides the weights of a training, which `fit` keeps in its checkpoints."""
    options = setup.options
    given, cost = options.variables, options.cost if setup.recipe.needs_cost else None
    return {
        **deciding(setup.task, setup.net, setup.training, setup.recipe),
        "seed": setup.seed,
        "stream": options.stream,
        "variables": None if given is None else weights_digest(given),
        "optimizer": None if options.optimizer is None else _optimizer_digest(options.optimizer, state),
        "cost": None if cost is None else files.plain(cost(setup.net.space.largest())),
    }


def compared_with(
    now: Mapping[str, Any], may_differ: tuple[str, ...] = ()
) -> Callable[[Mapping[str, Any]], list[str]]:
    """From a checkpoint's metadata to what differs now, as `Checkpointer.restore` takes it."""
    plain = files.plain(now)

    def differ(metadata: Mapping[str, Any]) -> list[str]:
        lines = differences(metadata.get("decided_by", {}), plain)
        return [line for line in lines if line.partition(": ")[0] not in may_differ]

    return differ


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names what differs between two records, as `files.diff` does, in the fields that both have.

    Other versions of JAX and other backends trace another program of the same code, which is not compared.
    Other settings change the program too; it is named only where nothing else differs.
    """
    shared = {name: value for name, value in now.items() if name in before}
    lines = files.diff({name: before[name] for name in shared}, shared)
    others = [line for line in lines if not line.startswith("program.")]
    if others or not lines or before["program"]["traced_by"] != now["program"]["traced_by"]:
        return others
    digests = (record["program"]["digest"] for record in (before, now))
    return ["program: {} (checkpoint) / {} (now), by changed code of the network or task".format(*digests)]


def weights_digest(variables: Any) -> str:
    """A digest of variables, whatever devices hold them."""
    return files.digest(checksums(variables))


def _optimizer_digest(optimizer: Optimizer, state: TrainState) -> dict[str, str]:
    """Digests of an optimizer's update and of its learning rate."""
    transformation, schedule = optimizer
    params, own = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state.params, state.opt_state)
    )
    update = program_digest(transformation.update, params, own, params)
    return {"update": update["digest"], "schedule": program_digest(schedule, np.int32(0))["digest"]}


def program_digest(function: Callable[..., Any], *arguments: Any) -> dict[str, str]:
    """Digest of a function's jaxpr, and the version and backend that traced it."""
    closed = jax.make_jaxpr(function)(*arguments)
    traced_by = f"jax {jax.__version__} on {jax.default_backend()}"
    return {"digest": _program(closed.jaxpr, closed.consts, {}), "traced_by": traced_by}


def _settings(task: Task) -> dict[str, Any]:
    """The fields of a task but for its data, which are compared by their content, and how it evaluates."""
    settings = to_dict(task)
    if not isinstance(settings, dict):
        return {"type": settings}
    kept = ["type", *(x for x in field_names(task) if x != "data" and not x.startswith("evaluation"))]
    return {name: settings[name] for name in kept}


def _data(task: Task, role: str) -> dict[str, Any]:
    rows = _rows(task, role, task.batches(role, 1, 0).at(0))
    batches = task.batches(role, rows, 0)
    return {"examples": task.sizes.get(role), "digest": files.digest((batches.at(0), batches.at(1)))}


def _evaluated(task: Task, role: str) -> dict[str, Any]:
    rows = _rows(task, role, task.evaluation(role, 1, 1))
    return {"examples": task.sizes.get(role), "digest": files.digest(task.evaluation(role, rows, 1))}


def _rows(task: Task, role: str, one: Any) -> int:
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(one))
    return max(1, min(task.rows(role), _BYTES // max(size, 1)))


def _loss_program(task: Task, net: nn.Module, role: str) -> dict[str, str]:
    if hasattr(net, "remat"):
        net = net.clone(remat=False)
    key, batch = jax.random.key(0), task.batches(role, 1, 0).at(0)
    shapes = jax.eval_shape(lambda key: init(net, key, task.inputs), key), jax.eval_shape(net.space.smallest)

    def loss(variables: Any, arch: Any, batch: Any, carry: Any, key: jax.Array) -> Any:
        return task.loss(Call(net, variables, arch, batch, carry, key))

    return program_digest(loss, *shapes, batch, task.carry(net, 1), key)


def _program(jaxpr: Any, consts: Any, known: dict[int, str]) -> str:
    """A digest of a jaxpr; `known` has those of the jaxprs in its equations that were met before."""
    numbers: dict[Any, int] = {}

    def name(atom: Any) -> str:
        if isinstance(atom, core.Literal):
            return f"{atom.val!r}:{atom.aval}"
        return f"{numbers.setdefault(atom, len(numbers))}:{atom.aval}"

    def text(value: Any) -> str:
        if isinstance(value, core.ClosedJaxpr | core.Jaxpr):
            if id(value) not in known:
                inner = value if isinstance(value, core.Jaxpr) else value.jaxpr
                known[id(value)] = _program(inner, getattr(value, "consts", ()), known)
            return known[id(value)]
        if isinstance(value, tuple | list):
            return f"({','.join(map(text, value))})"
        if isinstance(value, set | frozenset):
            return f"({','.join(sorted(map(text, value)))})"
        # Functions are rules of transformations: what they compute here is in the jaxpr.
        return "function" if callable(value) else _ADDRESS.sub("", repr(value))

    lines = [" ".join(map(name, (*jaxpr.constvars, *jaxpr.invars)))]
    for equation in jaxpr.eqns:
        values = [f"{key}={text(x)}" for key, x in sorted(equation.params.items()) if key != "name"]
        atoms = map(name, (*equation.invars, *equation.outvars))
        lines.append(f"{equation.primitive.name} {' '.join(atoms)} {' '.join(values)}")
    lines.append(" ".join(map(name, jaxpr.outvars)))
    return files.digest((lines, list(consts)))
