"""The evolution of a search space: supernets of one space after another, each with the shifted options.

S3 (Chen et al., NeurIPS 2021, arXiv 2111.14725). A stopped evolution resumes at its turn:
the workdir has a folder for the training of each space, and spaces.json.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from jaxnas import files, processes, search
from jaxnas.checks import check_counts, check_numbers
from jaxnas.choice import nearest
from jaxnas.cost import Cost, cost
from jaxnas.recipes.recipe import Recipe, check_cost
from jaxnas.report.result import SampledSpaceOf, parse
from jaxnas.runs.lab import Lab
from jaxnas.search.bounds import feasible
from jaxnas.search.space_evolution import LEAST_SAMPLE, et_error, shift_options
from jaxnas.space import Arch, Space
from jaxnas.tasks import Task
from jaxnas.trackers import as_log
from jaxnas.training.evaluate import make_evaluator
from jaxnas.training.fit import fit
from jaxnas.training.keys import stream
from jaxnas.training.plain import to_dict
from jaxnas.training.settings import Training
from jaxnas.training.step import Options

NAME = "spaces.json"
_DRAWS = 50  # how often a whole sample is drawn, before a bound is taken for one that leaves too few


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpaceEvolution:
    """How a search space evolves before its last supernet is trained.

    Attributes:
      turns: how often its options move.
      sample: architectures whose errors are measured in each space; all of them within the bound.
      top: of these, how many count for the top-tier error.
      rules: by name of a choice, how it may move.
      fixed: names of choices that do not move.
      budget: name of a cost; only architectures are drawn that cost at most `most`.
      most: see `budget`; None for all.
      steps: of each supernet but the last one; None for as many as that has.
      limit: batches of the search role that each architecture is measured on; None for all.
    """

    turns: int = 2
    sample: int = 1000
    top: int = 50
    rules: Mapping[str, search.ShiftRule] = dataclasses.field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    budget: str = "params"
    most: float | None = None
    steps: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, "turns", "sample", "top", group="evolution")
        check_counts(self, "steps", "limit", none=True, group="evolution")
        check_numbers(self, "most", none=True, group="evolution")


@dataclasses.dataclass(frozen=True)
class Spaces:
    """The spaces of an evolution so far, those that were measured, and the settings that they follow from."""

    spaces: tuple[Space, ...]
    sampled: tuple[SampledSpaceOf, ...] = ()
    config: Any = None

    @property
    def space(self) -> Space:
        """The last one."""
        return self.spaces[-1]

    def write(self, workdir: Any) -> None:
        """Writes spaces.json; in the first process alone."""
        if processes.is_first():
            values = {
                "spaces": [space.to_json() for space in self.spaces],
                "sampled": [dataclasses.asdict(one) for one in self.sampled],
                "config": self.config,
            }
            files.write_json(files.as_path(workdir) / NAME, files.plain(values))
        processes.wait("the spaces are written")


def read_spaces(workdir: str | os.PathLike) -> Spaces | None:
    """The evolution recorded in a workdir; None if there is none."""
    path = files.as_path(workdir) / NAME
    if not path.is_file():
        return None
    values = files.read_json(path)
    sampled = tuple(parse(one, SampledSpaceOf, path) for one in values["sampled"])
    return Spaces(tuple(map(Space.from_json, values["spaces"])), sampled, values["config"])


def evolve(
    task: Task,
    net: nn.Module,
    training: Training,
    recipe: Recipe,
    settings: SpaceEvolution,
    lab: Lab,
    say: Callable[[str], None] = print,
) -> nn.Module:
    """Moves the space to where architectures err less, up to the last space.

    Args:
      task, net, training, recipe: of the supernets; the network has the first space.
      settings: of the evolution.
      lab: of the run; an evolution resumes from its directory.
      say: logs a line.

    Returns:
      The network with the last space.

    Raises:
      Stopped: a signal stopped a training, which is saved; see `fit`.
    """
    root = lab.root
    decided = {"evolution": to_dict(settings), "space": net.space.to_json(), "seed": lab.seed}
    decided, known = files.plain(decided), read_spaces(root)
    if known is None:
        _check(task, net, settings, lab.seed)
        known = Spaces((net.space,), config=decided)
    elif known.config != decided:
        raise ValueError(
            f"{root / NAME} is of another first space, other settings of the evolution or another seed; take "
            "another workdir, or delete this one to begin anew."
        )
    short = training.shortened(settings.steps)
    for turn in range(len(known.spaces) - 1, settings.turns):
        name, net = _name(turn), net.clone(space=known.space)
        folder, options = root / f"space_{name}", Options(log=as_log(lab.log).within(f"space_{name}"))
        trained = fit(task, net, short, recipe=recipe, workdir=folder, seed=lab.seed, options=options)
        archs, errors = _sample(task, net, trained.variables, settings, lab, turn)
        rules = {name: rule for name, rule in settings.rules.items() if name in net.space}
        evolved = search.evolve_space(
            net.space, archs, errors, rules=rules, fixed=settings.fixed, top=settings.top
        )
        measured = SampledSpaceOf(
            name=name, et_error=evolved.et_error, errors=evolved.errors, shifts=evolved.shifts
        )
        known = Spaces((*known.spaces, evolved.space), (*known.sampled, measured), decided)
        known.write(root)
        moved = [shift.name for shift in evolved.shifts if shift.steps]
        say(f"space {name}: E-T error {evolved.et_error:.4f}; moved are {', '.join(moved) or 'none'}")
    return net.clone(space=known.space)


def _name(turn: int) -> str:
    """The name of a space: A, B and so on."""
    return chr(ord("A") + turn)


def _check(task: Task, net: Any, settings: SpaceEvolution, seed: int) -> None:
    """Refuses settings that a space cannot have, before anything is trained."""
    if settings.sample < LEAST_SAMPLE:
        raise ValueError(
            f"evolution.sample is {settings.sample}, expected at least {LEAST_SAMPLE} architectures."
        )
    costs = cost(net, task.inputs)
    check_cost("evolution.budget", settings.budget, costs(net.space.smallest()))
    for what, names in (("fixed", settings.fixed), ("rules", settings.rules)):
        for name in names:
            if name not in net.space:
                raise ValueError(
                    f"evolution.{what} has {name!r}, which is no choice{nearest(name, net.space)} The space "
                    f"has {', '.join(net.space)}."
                )
    for name, rule in settings.rules.items():
        options: Any = net.space[name].options
        shift_options(name, options, 0, rule)
    _draw(net, costs, settings, seed, 0)


def measure_last(task: Task, net: nn.Module, variables: Any, settings: SpaceEvolution, lab: Lab) -> Spaces:
    """Measures a sample of the last space, as those before it, once its supernet is trained."""
    known = read_spaces(lab.root)
    assert known is not None  # written by `evolve`
    if len(known.sampled) > settings.turns:
        return known
    _, errors = _sample(task, net, variables, settings, lab, settings.turns)
    last = SampledSpaceOf(
        name=_name(settings.turns),
        et_error=et_error(errors, top=settings.top),
        errors=tuple(float(x) for x in errors),
    )
    known = dataclasses.replace(known, sampled=(*known.sampled, last))
    known.write(lab.root)
    return known


def _sample(
    task: Task, net: nn.Module, variables: Any, settings: SpaceEvolution, lab: Lab, turn: int
) -> tuple[Arch, np.ndarray]:
    """Random architectures within the bound, and their errors with inherited weights."""
    archs = _draw(net, cost(net, task.inputs), settings, lab.seed, turn)
    evaluate = make_evaluator(task, net, "search", mesh=lab.mesh, limit=settings.limit)
    metric = task.metrics[0]
    values = np.asarray(metric.score(evaluate(variables, archs)[metric.name]), np.float64)
    return archs, 1 - values if metric.direction == "max" else -values


def _draw(net: Any, costs: Cost, settings: SpaceEvolution, seed: int, turn: int) -> Arch:
    """As many architectures [sample] as are asked for, of those that are not above the bound."""
    space, key = net.space, jax.random.fold_in(stream(seed, "spaces"), turn)
    bounds = ((settings.budget, None, settings.most),)
    found = np.zeros((0, space.length), np.int32)
    for draw in range(_DRAWS):
        codes = space.encode(space.sample(jax.random.fold_in(key, draw), settings.sample))
        kept = np.asarray(feasible(space, costs, bounds, codes))
        found = np.concatenate([found, np.asarray(codes)[kept]])
        if len(found) >= settings.sample:
            drawn: Arch = space.decode(found[: settings.sample])
            return drawn
    raise ValueError(
        f"Of {_DRAWS * settings.sample:,} random architectures of space {_name(turn)} only {len(found)} have "
        f"at most {settings.most:,g} {settings.budget}, and evolution.sample is {settings.sample}. Raise "
        "evolution.most, or make evolution.sample smaller."
    )
