"""Successive halving and Hyperband: many cheap evaluations, and dear ones for the best of them.

Jamieson and Talwalkar (AISTATS 2016); Li et al. (JMLR 2018). A fidelity is an index: 0 is the
cheapest (few epochs), the last one is what counts.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas.space import Arch, Space


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Races:
    """What a race found, in the order of the evaluations; N is static.

    Attributes:
      codes: evaluated architectures, int32 [N, L].
      fidelity: of each evaluation, int32 [N].
      scores: float32 [N], higher is better.
      seconds: what has been spent up to and with each evaluation, float32 [N].
      counted: whether the evaluation was within the budget, bool [N].
    """
    codes: jax.Array
    fidelity: jax.Array
    scores: jax.Array
    seconds: jax.Array
    counted: jax.Array

    def best(self) -> jax.Array:
        """The row of the best score at the highest fidelity reached within the budget, int32 []."""
        usable = self.counted & ~jnp.isnan(self.scores)
        top = jnp.max(jnp.where(usable, self.fidelity, -1))
        there = usable & (self.fidelity == top)
        return jnp.argmax(jnp.where(there, self.scores, -jnp.inf)).astype(jnp.int32)


Evaluate = Callable[[Arch, int], tuple[jax.Array, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Hyperband:
    """Races of successive halving that start at each fidelity in turn; as long as the budget lasts.

    A race that starts at fidelity f draws architectures, evaluates them at f, and takes the best
    1 / `eta` of them to the next fidelity, up to the last. With `starts=(0,)` every race starts at the
    cheapest: that is successive halving.

    Attributes:
      space: the search space.
      fidelities: how many there are.
      budget: simulated seconds; an evaluation counts if it ends within them.
      eta: one in `eta` goes on.
      first: architectures at the start of a race from the cheapest fidelity.
      races: how many at most.
      starts: the fidelities where races start, in turn; by default all.
    """
    space: Space
    fidelities: int
    budget: float
    eta: int = 3
    first: int = 27
    races: int = 20
    starts: tuple[int, ...] | None = None

    def __post_init__(self):
        if self.fidelities < 1 or self.eta < 2 or self.first < 1 or self.races < 1:
            raise ValueError("Hyperband: fidelities, first and races are at least 1 and eta at least "
                             f"2; got {self.fidelities}, {self.first}, {self.races}, {self.eta}.")
        if not self.budget > 0:
            raise ValueError(f"Hyperband: the budget is {self.budget} seconds, expected more than 0.")
        bad = [f for f in self.starts or () if not 0 <= f < self.fidelities]
        if bad:
            raise ValueError(f"Hyperband: starts holds {bad}, expected fidelities from 0 to "
                             f"{self.fidelities - 1}.")

    def rungs(self, start: int) -> list[int]:
        """How many architectures a race evaluates at each fidelity from `start`."""
        entering = max(-(-self.first // self.eta ** start), 1)
        counts = [entering]
        while len(counts) < self.fidelities - start:
            counts.append(max(counts[-1] // self.eta, 1))
        return counts

    def run(self, evaluate: Evaluate, key: jax.Array) -> Races:
        """Runs the races; pure, for jit and vmap over keys.

        Args:
          evaluate: from a batch of architectures [n, ...] and a fidelity (a Python int) to scores and
            the seconds that each evaluation takes beyond what the lower fidelities took, float32 [n].
          key: consumed.
        """
        starts = tuple(range(self.fidelities)) if self.starts is None else self.starts

        def race(spent: jax.Array, key: jax.Array, start: int) -> tuple[jax.Array, Races]:
            counts, parts = self.rungs(start), []
            codes = self.space.encode(self.space.sample(key, counts[0]))
            for rung, count in enumerate(counts):
                codes = codes[:count]
                scores, seconds = evaluate(self.space.decode(codes), start + rung)
                total = spent + jnp.cumsum(seconds)
                fidelity = jnp.full((count,), start + rung, jnp.int32)
                parts.append(Races(codes, fidelity, scores, total, total <= self.budget))
                spent = total[-1]
                order = jnp.argsort(-jnp.where(jnp.isnan(scores), -jnp.inf, scores))
                codes = codes[order]
            return spent, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

        def sweep(spent: jax.Array, key: jax.Array) -> tuple[jax.Array, Races]:
            found = []
            for start, one in zip(starts, jax.random.split(key, len(starts)), strict=True):
                spent, races = race(spent, one, start)
                found.append(races)
            return spent, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *found)

        sweeps = -(-self.races // len(starts))
        _, found = jax.lax.scan(sweep, jnp.float32(0), jax.random.split(key, sweeps))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)


def incumbent_at(races: Races, seconds: Any) -> np.ndarray:
    """The row of the best at the highest fidelity when `seconds` were spent; -1 before the first."""
    spent, scores, fidelity = (np.asarray(x) for x in (races.seconds, races.scores, races.fidelity))
    rows = []
    for limit in np.atleast_1d(seconds):
        there = (spent <= limit) & np.isfinite(scores)
        there &= fidelity == (fidelity[there].max() if there.any() else -1)
        rows.append(int(np.argmax(np.where(there, scores, -np.inf))) if there.any() else -1)
    return np.asarray(rows)
