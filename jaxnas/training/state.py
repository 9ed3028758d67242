"""The state of a training: one pytree, whatever is trained and however."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax


@flax.struct.dataclass
class TrainState:
    """All that a training needs to go on.

    Attributes:
      step: steps done, int32 [].
      variables: Flax's collections; parameters are float32, at their maximal sizes.
      opt_state: the optimizer's.
      carry: by role, what the task hands from batch to batch.
      logits: architecture parameters, float32 [..., options] by name; () where a recipe has none.
      recipe: what else the recipe keeps.
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
        """What must hold numbers only for the state to be worth keeping."""
        return self.variables, self.opt_state, self.logits, self.average

    def evaluated(self) -> Any:
        """The variables to evaluate with: with the average of the parameters where one is kept."""
        return self.variables if self.average == () else {**self.variables, "params": self.average}
