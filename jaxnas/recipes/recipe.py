"""The contract of a recipe: which architectures a training step trains, and how their gradients are joined.

A recipe is a frozen dataclass whose method `gradients` is a pure function of a problem, the state, the
batches and a key. It knows no kind of data, so one architecture, many, and architecture parameters are
trained by the same step. `hard.py` and `relaxed.py` have the recipes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, Self

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxnas.choice import nearest
from jaxnas.cost import Cost
from jaxnas.space import Arch, Space
from jaxnas.tasks import Predictions

Watches = Literal["architectures", "network", "probabilities"]
# From (parameters, arch, batch, carry, key) to the loss, and the next carry with sums for metrics.
Loss = Callable[[Any, Any, Any, Any, jax.Array], tuple[jax.Array, tuple[Any, Any]]]
# From the same to predictions, and the next carry.
Predict = Callable[[Any, Any, Any, Any, jax.Array], tuple[Predictions, Any]]
# From the folder of a network to the network and its variables.
Read = Callable[[str], tuple[Any, Any]]
# From (network, variables, batch, carry, key) to logits.
Teach = Callable[[Any, Any, Any, Any, jax.Array], jax.Array]
Array = np.ndarray | jax.Array


@flax.struct.dataclass
class TrainState:
    """The state of a training, whatever is trained.

    Attributes:
      step: steps done, int32 [].
      variables: Flax's collections; parameters are float32, at their maximal sizes.
      opt_state: the optimizer's.
      carry: by role, what the task hands from batch to batch.
      logits: architecture parameters, float32 [..., options] by name; () where a recipe has none.
      recipe: the recipe's own state.
      average: exponential average of the parameters; () if none is kept.
      key: typed key of the run; the randomness of step n comes from folding n into it.
    """

    step: jax.Array
    variables: Any
    opt_state: Any
    carry: Any
    logits: Any
    recipe: Any
    average: Any
    key: jax.Array

    @property
    def params(self) -> Any:
        """The parameters among the variables."""
        return self.variables["params"]

    def finite(self) -> Any:
        """The parts that must be finite for the state to be saved."""
        return self.variables, self.opt_state, self.logits, self.average

    def evaluated(self) -> Any:
        """The variables to evaluate with: with the average of the parameters where one is kept."""
        return self.variables if self.average == () else {**self.variables, "params": self.average}


@flax.struct.dataclass
class Region:
    """The options of each element of an encoded architecture that a step may draw.

    Regions are arrays, so a schedule of spaces picks one by the number of the step in one program. An element
    has the first `sizes` of its row of `options`, int32 [length] and [length, widest]; `smallest` and
    `largest` are codes of the architectures of least and greatest values, int32 [length].
    """

    sizes: Array
    options: Array
    smallest: Array
    largest: Array

    def sample(self, space: Space, key: jax.Array) -> Arch:
        """A canonical architecture whose elements are uniform over the options of the region."""
        # One draw for all elements, as `Space.sample` makes it.
        drawn = jax.random.randint(key, self.sizes.shape, 0, self.sizes, jnp.int32)
        return space.canonical(space.decode(self.at(drawn)))

    def at(self, numbers: jax.Array) -> jax.Array:
        """The code of an architecture, int32 [length], from numbers of the region's own options."""
        return jnp.take_along_axis(jnp.asarray(self.options), numbers[:, None], axis=1)[:, 0]


@functools.cache
def region_of(space: Space, part: Space | None = None) -> Region:
    """The region of a space, or of a part of it as `Space.restrict` makes it, as NumPy arrays."""
    part = space if part is None else part
    if set(part) != set(space):
        raise ValueError(
            f"a part of the space with the choices {list(space)} has the same choices; got {list(part)}."
        )
    rows = []
    for name, choice in space.decisions:
        own = part[name]
        for position in range(math.prod(choice.shape)):
            known = choice.options_at(position)
            # Positions beyond the depth of the part are never active.
            there = own.length is None or position < own.length
            options = own.options_at(position) if there else known[:1]
            if strange := [option for option in options if option not in known]:
                raise ValueError(
                    f"a part of the space has {strange[0]!r} as an option of {name!r}, where the space has "
                    f"{known}."
                )
            rows.append([known.index(option) for option in options])
    with jax.ensure_compile_time_eval():  # also within a compiled step
        ends = [space.from_dict(part.to_dict(arch)) for arch in (part.smallest(), part.largest())]
        smallest, largest = (np.asarray(space.encode(arch)) for arch in ends)
    widest = int(space.sizes.max())
    options = np.array([row + [0] * (widest - len(row)) for row in rows], np.int32)
    sizes = np.array([len(row) for row in rows], np.int32)
    return Region(sizes, options, smallest, largest)


@dataclasses.dataclass(frozen=True)
class Problem:
    """The part of a training that a recipe sees.

    Attributes:
      loss: of the parameters at an architecture, in training.
      space: of the network.
      steps: of the whole training.
      schedule: learning rate of the parameters by step.
      cost: of an architecture, hard or soft; None if the network's costs are not known.
      predict: what the loss is computed from, for distillation; see `Task.predict`.
      teach: what another trained network predicts for the same augmented batch.
      part: of the space, that a step draws architectures from; None for all of it.
      sort: sorts the hidden channels of each layer in a state by importance.
    """

    loss: Loss
    space: Space
    steps: int
    schedule: optax.Schedule
    cost: Cost | None = None
    predict: Predict | None = None
    teach: Teach | None = None
    part: Region | None = None
    sort: Callable[[TrainState], TrainState] | None = None

    @property
    def region(self) -> Region:
        """The region that a step draws architectures from."""
        return region_of(self.space) if self.part is None else self.part

    def sample(self, key: jax.Array) -> Arch:
        """A random architecture: every option that a step may draw is equally likely."""
        return self.region.sample(self.space, key)

    def smallest(self) -> Arch:
        """The architecture of least values among those that a step may draw."""
        return self.space.decode(self.region.smallest)

    def largest(self) -> Arch:
        """The architecture of greatest values among those that a step may draw."""
        return self.space.decode(self.region.largest)


@flax.struct.dataclass
class Gradients:
    """The result of a recipe's step.

    Attributes:
      params: gradients of the parameters.
      archs: the trained hard architectures, with a leading axis: parameters that none of them uses are left
        unchanged. None where all parameters are in use.
      carry: by role, for the next step.
      loss: float32 [].
      sums: for the task's metrics.
      logits, recipe: of the next state.
      metrics: the recipe's own, float32 [] by name.
    """

    params: Any
    archs: Any
    carry: Any
    loss: jax.Array
    sums: Any
    logits: Any = ()
    recipe: Any = ()
    metrics: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)


def check_cost(owner: str, name: str, known: Mapping[str, Any]) -> None:
    """Raises ValueError for the name of a cost that a network does not have; `owner` asks for it."""
    if name not in known:
        measured = " Give search.latency, the rows of a batch that is timed." if name == "latency_ms" else ""
        raise ValueError(
            f"{owner}: the network has no cost {name!r}{nearest(name, known)} It has "
            f"{', '.join(known) or 'none'}.{measured}"
        )


def standard(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of optax under JAX's standard promotion of dtypes, whichever the user has.

    Schedules and bias corrections mix floats with whole numbers of steps, which strict promotion refuses.
    """

    def call(*args: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return function(*args)

    return call


class Recipe(Protocol):
    """How a training step goes. A subclass writes `gradients`, and overrides what else differs."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the data that a step takes a batch of."""
        return ("train",)

    @property
    def watches(self) -> Watches:
        """The evaluation during training: of architectures of the space, one network, or probabilities."""
        return "architectures"

    @property
    def needs_cost(self) -> bool:
        """Whether gradients ask for the cost of architectures."""
        return False

    def loaded(self, read: Read) -> Self:
        """The recipe with the networks that it names read. It is called once, before a step is traced."""
        del read
        return self

    def check(self, space: Space, cost: Cost | None) -> None:
        """Raises ValueError for a space or costs that the recipe cannot work with."""
        del space, cost

    def init(self, space: Space) -> tuple[Any, Any]:
        """Architecture parameters and the recipe's own state at the start; () for none."""
        return (), ()

    def begin(self, problem: Problem, state: TrainState) -> TrainState:
        """The state that the gradients of a step are computed at: the given one, or with weights moved."""
        return state

    def gradients(
        self, problem: Problem, state: TrainState, batches: Mapping[str, Any], key: jax.Array
    ) -> Gradients:
        """The gradients of a step; `batches` are by role."""
        ...

    def numbers(self, step: int) -> Mapping[str, int]:
        """For each role the number of its batch at a step."""
        return dict.fromkeys(self.roles, step)

    def done(self, record: Mapping[str, Any]) -> bool:
        """Whether a record of the training (see `fit`) ends it before its last step."""
        return False
