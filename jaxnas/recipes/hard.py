"""Recipes: which architectures a training step trains, and what they learn from.

All recipes leave weights unused by the step's architectures bit-for-bit unchanged, unless
`training.freeze_inactive` is off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.checks import check_counts, check_numbers
from jaxnas.cost import Cost
from jaxnas.recipes.distillation import Distillation, Teacher
from jaxnas.recipes.recipe import Gradients, Problem, Read, Recipe, Region, TrainState, Watches, region_of
from jaxnas.recipes.samplers import Random, Sampler, draw
from jaxnas.recipes.together import Given, train_alone, train_together
from jaxnas.space import Arch, Space


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sampling(Recipe):
    """Recipes that train hard architectures on the training batches.

    Attributes:
      distill: how networks learn from a teacher; None to learn from the labels alone.
    """

    distill: Distillation | None = None

    @property
    def teacher(self) -> Teacher | None:
        """The trained network that the networks of a step learn from."""
        found = None if self.distill is None else self.distill.teacher
        assert not isinstance(found, str)  # `loaded` has read it
        return found

    def loaded(self, read: Read) -> Self:
        distill = None if self.distill is None else self.distill.loaded(read)
        return self if distill is self.distill else dataclasses.replace(self, distill=distill)

    def check(self, space: Space, cost: Cost | None) -> None:
        if self.distill is not None and self.distill.teacher is None:
            raise ValueError(
                f"{type(self).__name__}: the distillation has no teacher, and without the largest network in "
                "each step there is none: give Distillation(teacher=...) a trained network, or take the "
                "recipe Sandwich."
            )

    def init(self, space: Space) -> tuple[Any, Any]:
        """Keeps the variables of a trained teacher."""
        return (), () if self.teacher is None else {"teacher": self.teacher.variables}

    def given(self, problem: Problem, state: TrainState, batches: Mapping[str, Any], key: jax.Array) -> Given:
        """The inputs of the networks of a step, with the logits of a trained teacher."""
        batch, carry, taught = batches["train"], state.carry["train"], None
        if self.teacher is not None:
            assert problem.teach is not None
            taught = problem.teach(self.teacher.net, state.recipe["teacher"], batch, carry, key)
        return Given(problem, state.params, batch, carry, key, state.recipe, taught)

    def train(self, given: Given, archs: Arch) -> Gradients:
        """The gradients of a batch of architectures."""
        if len(next(iter(archs.values()))) == 1:
            return train_alone(given, jax.tree.map(lambda x: x[0], archs), self.distill)
        return train_together(given, archs, distill=self.distill)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uniform(_Sampling):
    """Single-path one-shot training: a random architecture in each step.

    Guo et al., ECCV 2020, section 3.3; AutoFormer, arXiv 2107.00651, section 3.2.

    Attributes:
      architectures: how many are trained on each batch; their gradients are averaged.
      sampler: how they are drawn: `Random`, every option equally likely; `Stratified`, by size; `Attentive`.
      distill: see `Sandwich`; a teacher must be given.

    Example:
      >>> recipe = recipes.Uniform(sampler=recipes.Stratified(cost="params"))  # for `training.fit`
    """

    architectures: int = 1
    sampler: Sampler = Random()

    def __post_init__(self) -> None:
        check_counts(self, "architectures")

    @property
    def needs_cost(self) -> bool:
        return self.sampler.needs_cost

    def check(self, space: Space, cost: Cost | None) -> None:
        super().check(space, cost)
        self.sampler.check(space, cost)

    def gradients(
        self, problem: Problem, state: TrainState, batches: Mapping[str, Any], key: jax.Array
    ) -> Gradients:
        arch_key, loss_key = jax.random.split(key)
        given = self.given(problem, state, batches, loss_key)
        archs = draw(self.sampler, problem, given.loss, arch_key, self.architectures)
        return self.train(given, archs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sandwich(_Sampling):
    """The sandwich rule with in-place distillation: largest, smallest and random networks in each step.

    The largest learns from the labels, or from a trained teacher, and the others learn from the largest
    (Yu et al., BigNAS, arXiv 2003.11142, section 3). Gradients are averaged; published code adds them up, so
    that a learning rate of theirs for plain gradient descent is multiplied by the number of networks.

    Attributes:
      random: how many random architectures there are beside the two ends.
      sampler: how they are drawn; see `Uniform`. `Attentive` is AttentiveNAS's step.
      distill: how they learn from the largest; None to learn from the labels, as it does.
      project_after: share of the training after which the part of the largest one's gradient that points
        against the others' is dropped, 0 to 1 (NASViT, ICLR 2022); None for the plain mean.

    Example:
      >>> labels_only, distilled = recipes.Sandwich(), recipes.Sandwich(distill=recipes.Distillation())
    """

    random: int = 2
    sampler: Sampler = Random()
    distill: Distillation | None = Distillation()
    project_after: float | None = None

    def __post_init__(self) -> None:
        check_counts(self, "random", least=0)
        check_numbers(self, "project_after", least=0, most=1, none=True)

    @property
    def needs_cost(self) -> bool:
        """Whether the sampler asks for it, if there are random architectures."""
        return self.random > 0 and self.sampler.needs_cost

    def check(self, space: Space, cost: Cost | None) -> None:
        if space.cardinality == 1:
            raise ValueError(
                "Sandwich: the network has only one architecture, which would be the largest and the "
                "smallest; train it by Fixed()."
            )
        if self.random:
            self.sampler.check(space, cost)

    def gradients(
        self, problem: Problem, state: TrainState, batches: Mapping[str, Any], key: jax.Array
    ) -> Gradients:
        arch_key, loss_key = jax.random.split(key)
        given, lead = self.given(problem, state, batches, loss_key), self.distill is not None
        archs = [jax.tree.map(lambda x: x[None], arch) for arch in (problem.largest(), problem.smallest())]
        if self.random:
            archs.insert(1, draw(self.sampler, problem, given.loss, arch_key, self.random))
        joined = jax.tree.map(lambda *x: jnp.concatenate(x), *archs)
        project = None
        if self.project_after is not None:
            project = state.step >= round(self.project_after * problem.steps)
        found, losses = train_together(given, joined, distill=self.distill, lead=lead, project=project)
        metrics = {"largest_loss": losses[0], "smallest_loss": losses[-1]}
        return dataclasses.replace(found, metrics=metrics)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fair(_Sampling):
    """Strict fairness: in each step every option of every choice is trained equally often.

    Each element of the architectures passes through its options in its own random order (FairNAS, Chu et al.,
    ICCV 2021, section 3.2). A choice with fewer options than a step has architectures passes through them
    again: where their number does not divide, random ones are trained once more than others. Inactive parts,
    such as a layer beyond the depth, are not trained.

    Attributes:
      architectures: in a step; None for the largest number of options. With the least common multiple of
        the numbers of options, every step is strictly fair.
      distill: see `Sandwich`; a teacher must be given.
    """

    architectures: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, "architectures", none=True)

    def check(self, space: Space, cost: Cost | None) -> None:
        super().check(space, cost)
        most = int(space.sizes.max())
        if self.architectures is not None and self.architectures < most:
            name = next(name for name, choice in space.decisions if int(np.max(choice.sizes)) == most)
            raise ValueError(
                f"Fair: architectures is {self.architectures}, and {name!r} has {most} options: in a step of "
                "fewer architectures some of them would be trained and others not. Take at least as many."
            )

    def gradients(
        self, problem: Problem, state: TrainState, batches: Mapping[str, Any], key: jax.Array
    ) -> Gradients:
        arch_key, loss_key = jax.random.split(key)
        count = int(problem.space.sizes.max()) if self.architectures is None else self.architectures
        given = self.given(problem, state, batches, loss_key)
        return self.train(given, fair(problem, arch_key, count))


def fair(problem: Problem, key: jax.Array, count: int) -> Arch:
    """A batch of architectures; how often the options of an element occur differs by at most one."""
    sizes, widest = jnp.asarray(problem.region.sizes), problem.region.options.shape[1]
    places, elements = jnp.arange(count)[:, None], jnp.arange(len(sizes))[None]
    order = jax.random.uniform(key, (count, len(sizes), widest))  # a round for each network is enough
    order = jnp.argsort(jnp.where(jnp.arange(widest)[None] < sizes[:, None], order, 2.0), axis=-1)
    numbers = order[places // sizes[None], elements, places % sizes[None]]  # [count, length]
    codes = jax.vmap(problem.region.at)(numbers)
    return jax.vmap(lambda code: problem.space.canonical(problem.space.decode(code)))(codes)


@dataclasses.dataclass(frozen=True, eq=False)
class Fixed(_Sampling):
    """The training of one architecture: a retraining, or a trial of a candidate alone.

    Attributes:
      arch: an architecture of the network, hard or soft; None for a network that has only one.
      distill: see `Sandwich`; a teacher must be given.
    """

    arch: Arch | None = None
    # By identity, since an architecture is arrays; the base class would compare all other fields.
    __eq__, __hash__ = object.__eq__, object.__hash__

    @property
    def watches(self) -> Watches:
        return "network"

    def init(self, space: Space) -> tuple[Any, Any]:
        """Keeps the architecture in the state, so that one program trains any of them."""
        if self.arch is None:
            if space.cardinality > 1:
                raise ValueError(
                    f"Fixed: the network has {space.cardinality:,} architectures, so the recipe needs one: "
                    "Fixed(arch), or train an extracted network."
                )
            return super().init(space)
        space.check(self.arch)
        logits, own = super().init(space)
        return logits, {**(own or {}), "arch": self.arch}

    def gradients(
        self, problem: Problem, state: TrainState, batches: Mapping[str, Any], key: jax.Array
    ) -> Gradients:
        arch = None if self.arch is None else state.recipe["arch"]
        return train_alone(self.given(problem, state, batches, key), arch, self.distill)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progressive(Recipe):
    """Progressive shrinking: a schedule of spaces, from the largest network to all of them.

    Each phase draws from a part of the space that holds the part before (Cai et al., Once-for-All, ICLR 2020,
    section 3.3). "Largest" and "smallest" of the inner recipe are those of the phase.

    Attributes:
      phases: pairs of the first step of a phase and its space, as `Space.restrict` makes it of the network's.
        The first one starts at step 0.
      recipe: how the architectures of a phase are trained.
      sort: whether the hidden channels of each layer are put in the order of their importance when a phase
        begins, so that narrow networks begin with those that count most.
    """

    phases: tuple[tuple[int, Space], ...]
    recipe: Uniform | Sandwich | Fair = Uniform()
    sort: bool = True

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.phases]
        whole = all(isinstance(start, int | np.integer) for start in starts)
        if not whole or starts[:1] != [0] or starts != sorted(set(starts)):
            raise ValueError(
                f"Progressive: the phases start at the steps {starts}; expected 0 first, and each later than "
                "the one before."
            )

    @property
    def needs_cost(self) -> bool:
        return self.recipe.needs_cost

    def check(self, space: Space, cost: Cost | None) -> None:
        self.recipe.check(space, cost)
        before: dict[str, set[Any]] = {}
        for start, part in self.phases:
            region_of(space, part)
            for name, choice in part.decisions:
                if lost := before.get(name, set()) - set(choice.options):
                    raise ValueError(
                        f"Progressive: the phase from step {start} has no option {min(lost, key=str)!r} of "
                        f"{name!r}, which the phase before had; a phase holds all that was trained before it."
                    )
                before[name] = set(choice.options)

    def loaded(self, read: Read) -> Self:
        return dataclasses.replace(self, recipe=self.recipe.loaded(read))

    def init(self, space: Space) -> tuple[Any, Any]:
        return self.recipe.init(space)

    def begin(self, problem: Problem, state: TrainState) -> TrainState:
        """Sorts channels where a phase after the first begins."""
        if not self.sort or problem.sort is None:
            return state
        starts = jnp.array([start for start, _ in self.phases[1:]])
        return jax.lax.cond(jnp.any(state.step == starts), problem.sort, lambda state: state, state)

    def gradients(
        self, problem: Problem, state: TrainState, batches: Mapping[str, Any], key: jax.Array
    ) -> Gradients:
        regions = [region_of(problem.space, part) for _, part in self.phases]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *regions)
        starts = jnp.array([start for start, _ in self.phases])
        phase = jnp.searchsorted(starts, state.step, side="right") - 1
        part: Region = jax.tree.map(lambda x: x[phase], stacked)
        found = self.recipe.gradients(dataclasses.replace(problem, part=part), state, batches, key)
        return dataclasses.replace(found, metrics={**found.metrics, "phase": phase.astype(jnp.float32)})
