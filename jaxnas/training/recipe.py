"""What a recipe is: which architectures a training step trains, and how their gradients are joined.

A recipe is a frozen dataclass whose method `gradients` is a pure function of a problem, the state, the
batches and a key. It knows no kind of data. What is trained alone, as one of many, or together with
architecture parameters is therefore the same step. `recipes.py` and `relaxed.py` have those that there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import flax.struct
import jax
import optax
from jax.sharding import Mesh

from jaxnas.choice import nearest
from jaxnas.cost import Cost
from jaxnas.space import Arch, Space
from jaxnas.tasks import Predictions
from jaxnas.training.region import Region, region_of
from jaxnas.training.state import TrainState

Watches = Literal["architectures", "network", "probabilities"]
# From (parameters, arch, batch, carry, key) to the loss, and what goes on with sums for metrics.
Loss = Callable[[Any, Any, Any, Any, jax.Array], tuple[jax.Array, tuple[Any, Any]]]
# From the same to predictions, and what goes on.
Predict = Callable[[Any, Any, Any, Any, jax.Array], tuple[Predictions, Any]]
# From (network, variables, batch, carry, key) to logits.
Teach = Callable[[Any, Any, Any, Any, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a recipe is given of a training.

    Attributes:
      loss: of the parameters at an architecture, in training.
      space: of the network.
      steps: of the whole training.
      schedule: learning rate of the parameters by step.
      cost: of an architecture, hard or soft; None if the network's costs are not known.
      mesh: of the devices, for recipes that place their architectures on different ones; the rows of the
        batches are divided over all of them.
      predict: what the loss is computed from, for distillation; see `Task.predict`.
      teach: what another trained network predicts for the same augmented batch.
      part: of the space, that a step draws architectures from; None for all of it.
      sort: of a state, that puts the hidden channels of each layer in the order of their importance.
    """

    loss: Loss
    space: Space
    steps: int
    schedule: optax.Schedule
    cost: Cost | None = None
    mesh: Mesh | None = None
    predict: Predict | None = None
    teach: Teach | None = None
    part: Region | None = None
    sort: Callable[[TrainState], TrainState] | None = None

    @property
    def region(self) -> Region:
        """What a step draws architectures from."""
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
    """What a recipe found in a step.

    Attributes:
      params: gradients of the parameters.
      archs: the hard architectures that were trained, with a leading axis: parameters that none of them
        uses stay as they are. None where all parameters are in use.
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
    """Refuses the name of a cost that a network does not have; `owner` is the class that asks for it.

    Raises:
      ValueError: says which costs there are.
    """
    if name not in known:
        raise ValueError(
            f"{owner}: the network has no cost {name!r}{nearest(name, known) or '.'} It has "
            f"{', '.join(known) or 'none'}."
        )


class Recipe(Protocol):
    """How a training step goes. What inherits it writes `gradients`, and what else differs."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the data that a step takes a batch of."""
        return ("train",)

    @property
    def watches(self) -> Watches:
        """What is looked at meanwhile: architectures of the space, one network, or probabilities."""
        return "architectures"

    @property
    def needs_cost(self) -> bool:
        """Whether gradients ask for the cost of architectures."""
        return False

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
        """Whether a record of the training (see `fit`) says that it is done before its last step."""
        return False
