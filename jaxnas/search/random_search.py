"""Strategies that learn nothing: random search, the baseline of all others, and given architectures."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.choice import nearest
from jaxnas.search.bounds import Cost
from jaxnas.search.proposals import propose
from jaxnas.search.strategy import Pool, State, Strategy, check_pool
from jaxnas.space import Arch, Space

_SLACK = 0.05  # of a cost, by which networks of equal cost may differ


@dataclasses.dataclass(frozen=True)
class RandomSearch(Strategy):
    """Random architectures within bounds, each evaluated once; use as `Strategy`.

    Example:
      >>> strategy = search.RandomSearch(Space(width=Choice(1, 2, 3)), evaluations=3, batch=3)
      >>> archs, state = strategy.ask(strategy.init(jax.random.key(0)))
      >>> sorted(archs["width"].tolist())
      [0, 1, 2]
    """

    name = "random"
    learns = False  # it is what others are compared with
    batch: int = 50  # how many to ask for at a time

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """A batch of architectures and the next state; see `Strategy`."""
        key, ask_key = jax.random.split(state.key)
        return propose(self, dataclasses.replace(state, key=key), ask_key, [])


@dataclasses.dataclass(frozen=True)
class Listed(Strategy):
    """Evaluates the architectures of a pool, `given`, in their order; use as `Strategy`."""

    learns = False
    batch: int = 1
    given: Pool | None = None
    name: str = "listed"

    def __post_init__(self) -> None:
        codes = check_pool(self.given, self.space, "Listed: given")
        object.__setattr__(self, "evaluations", len(codes))
        super().__post_init__()

    @functools.partial(jax.jit, static_argnums=0)
    def ask(self, state: State) -> tuple[Arch, State]:
        """The next architectures and the next state; see `Strategy`."""
        assert self.given is not None
        rows = state.size + jnp.arange(self.batch, dtype=jnp.int32)
        codes = jnp.asarray(self.given.codes, jnp.int32)[jnp.clip(rows, 0, self.evaluations - 1)]
        return self.space.decode(codes), dataclasses.replace(state, valid=rows < self.evaluations)


def similar_cost(
    space: Space, cost: Cost, name: str, arch: Arch, key: jax.Array, *, count: int = 64, fixed: float = 0.0
) -> Arch:
    """Draws different random architectures as dear as a given one: a baseline of equal cost.

    Costs of that name, less the part `fixed` that every network has, may differ by 5 %. Returns a batch of at
    most `count`; of less where the space has no more.
    """
    costs = cost(arch)
    if name not in costs:
        raise ValueError(f"similar_cost: {name!r} is not a cost{nearest(name, costs)}")
    dear = np.asarray(costs[name]).item()
    if fixed > dear:
        raise ValueError(f"similar_cost: fixed is {fixed:,}, and the architecture has {name} of {dear:,}.")
    slack = _SLACK * (dear - fixed)
    bounds = {name: (dear - slack, dear + slack)}
    strategy = RandomSearch(space, cost, bounds, evaluations=count, batch=count)
    archs, state = strategy.ask(strategy.init(key))
    same = jnp.all(space.encode(archs) == space.encode(space.canonical(arch))[None], axis=1)
    rows = np.flatnonzero(state.valid & ~same)
    return jax.tree.map(lambda x: x[rows], archs)
