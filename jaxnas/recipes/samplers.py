"""Samplers: how the architectures of a training step are drawn, where a recipe draws them at random."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jaxnas.checks import check_counts
from jaxnas.cost import Cost
from jaxnas.recipes.recipe import Problem, check_cost
from jaxnas.space import Arch, Space

# Of an architecture, on the batch of the step.
BatchLoss = Callable[[Arch], jax.Array]


class Sampler(Protocol):
    """A way of drawing architectures. Keys are consumed."""

    @property
    def needs_cost(self) -> bool:
        """Whether it asks for the cost of architectures."""
        return False

    def check(self, space: Space, cost: Cost | None) -> None:
        """Raises ValueError for a space or costs that the sampler cannot work with."""
        del space, cost

    def alike(self, problem: Problem, loss: BatchLoss, key: jax.Array, count: int) -> Arch:
        """A batch of `count` architectures that are fair to compare, such as those of one size; traceable."""
        ...


@dataclasses.dataclass(frozen=True)
class Random(Sampler):
    """Every option of every choice is equally likely."""

    def alike(self, problem: Problem, loss: BatchLoss, key: jax.Array, count: int) -> Arch:
        keys = key[None] if count == 1 else jax.random.split(key, count)
        return jax.vmap(problem.sample)(keys)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stratified:
    """Every size is trained equally often: a cost is drawn first, then an architecture near to it.

    Uniform options make hardly any small or large network. Here a cost is drawn uniformly between those of
    the smallest and the largest network, and the nearest one is taken of random architectures, in each of
    which another share of the elements has its least or greatest option. SPOS's code draws a bin of products
    first (Guo et al., ECCV 2020).

    Attributes:
      cost: its name, as "macs" or "params".
      candidates: architectures to choose from; more come nearer to the cost that was drawn.

    Example:
      >>> recipe = recipes.Uniform(sampler=recipes.Stratified(cost="macs", candidates=64))
    """

    cost: str = "macs"
    candidates: int = 64

    needs_cost = True

    def __post_init__(self) -> None:
        check_counts(self, "candidates", least=2)

    def check(self, space: Space, cost: Cost | None) -> None:
        known = {} if cost is None else cost(space.largest())
        check_cost("Stratified", self.cost, known)
        assert cost is not None
        if not known[self.cost] > cost(space.smallest())[self.cost]:
            raise ValueError(
                f"Stratified: the largest network has {self.cost} of {known[self.cost]}, and the smallest "
                "too; there are no sizes to draw from."
            )

    def alike(self, problem: Problem, loss: BatchLoss, key: jax.Array, count: int) -> Arch:
        space, total = problem.space, max(self.candidates, count)
        ends = jnp.stack([problem.region.smallest, problem.region.largest])

        def cost(arch: Arch) -> jax.Array:
            assert problem.cost is not None  # asked for by `needs_cost`
            return jnp.asarray(problem.cost(arch)[self.cost], jnp.float32)

        def candidate(key: jax.Array) -> Arch:
            sample_key, end_key, share_key, mix_key = jax.random.split(key, 4)
            end = ends[jax.random.bernoulli(end_key).astype(jnp.int32)]
            at_end = jax.random.bernoulli(mix_key, jax.random.uniform(share_key), end.shape)
            code = jnp.where(at_end, end, space.encode(problem.sample(sample_key)))
            return space.canonical(space.decode(code))

        candidates_key, target_key = jax.random.split(key)
        archs = jax.vmap(candidate)(jax.random.split(candidates_key, total))
        costs = jax.vmap(cost)(archs)
        # Options that are names need not be listed by their cost, so that others may be beyond the two ends.
        low = jnp.minimum(cost(problem.smallest()), jnp.min(costs))
        high = jnp.maximum(cost(problem.largest()), jnp.max(costs))
        target = jax.random.uniform(target_key, minval=low, maxval=high)
        _, rows = lax.top_k(-jnp.abs(costs - target), count)
        return jax.tree.map(lambda x: x[rows], archs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attentive:
    """Trains the one of some comparable architectures that has the least, or greatest, loss on the batch.

    AttentiveNAS (Wang et al., CVPR 2021, section 3.3), with the loss on the batch in place of a predictor.

    Attributes:
      pick: "best" (BestUp) or "worst" (WorstUp).
      candidates: how many there are to pick from.
      sampler: of the candidates; `Stratified` ones are of one size, as in the paper.
    """

    pick: Literal["best", "worst"] = "best"
    candidates: int = 3
    sampler: Random | Stratified = Stratified()

    def __post_init__(self) -> None:
        if self.pick not in ("best", "worst"):
            raise ValueError(f"Attentive: pick is {self.pick!r}, expected 'best' or 'worst'.")
        check_counts(self, "candidates", least=2)

    @property
    def needs_cost(self) -> bool:
        return self.sampler.needs_cost

    def check(self, space: Space, cost: Cost | None) -> None:
        self.sampler.check(space, cost)

    def alike(self, problem: Problem, loss: BatchLoss, key: jax.Array, count: int) -> Arch:
        archs = self.sampler.alike(problem, loss, key, max(self.candidates, count))
        losses = lax.map(loss, archs)  # one after another, each at its own size
        _, rows = lax.top_k(-losses if self.pick == "best" else losses, count)
        return jax.tree.map(lambda x: x[rows], archs)


def draw(sampler: Sampler, problem: Problem, loss: BatchLoss, key: jax.Array, count: int) -> Arch:
    """A batch of `count` architectures, each drawn independently."""
    keys = [key] if count == 1 else jax.random.split(key, count)
    each = [sampler.alike(problem, loss, own, 1) for own in keys]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *each)
