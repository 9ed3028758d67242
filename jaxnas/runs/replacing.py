"""An architecture by replacing one place of a network at a time; see `jaxnas.search.knapsack`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxnas import search
from jaxnas.cost import Cost
from jaxnas.report.result import Budgeted, ReplacementsOf
from jaxnas.search.bounds import check_bounds
from jaxnas.search.knapsack import Replacements
from jaxnas.search.random_search import Listed
from jaxnas.space import Arch
from jaxnas.tasks import Task
from jaxnas.training.imitation import Imitation

_NEAR = 0.9  # of an upper bound, that random architectures cost at least
_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)  # of the largest network's cost


@dataclasses.dataclass(frozen=True)
class Replacing:
    """The replacements of a network, and how they are evaluated.

    Attributes:
      task: which compares a network with the largest one.
      replaced: the architectures that differ from it in one place.
    """

    task: Imitation
    replaced: Replacements

    def strategies(self, cost: Cost, bounds: Any, samples: int, batch: int) -> dict[str, Any]:
        """The evaluation of all replacements, and random search within the bounds if it has `samples`."""
        space, pool = self.replaced.space, search.Pool(self.replaced.codes)
        listed = Listed(space, cost, given=pool, batch=batch, name="replacements")
        if not samples:
            return {"found": listed}
        # Most architectures within an upper bound are far below it, and worse for that alone.
        near = {
            name: (_NEAR * most if least is None and most is not None else least, most)
            for name, (least, most) in bounds.items()
        }
        try:
            check_bounds(space, cost, near)
        except ValueError:  # None uses so much of the budget.
            near = bounds
        random = search.RandomSearch(space, cost=cost, bounds=near, evaluations=samples, batch=batch)
        return {"found": listed, "random search": random}

    def choose(
        self,
        history: Sequence[Mapping[str, Any]],
        evaluate: Callable[[Arch], float],
        cost: Cost,
        budget: str,
        bounds: Mapping[str, tuple[float | None, float | None]],
    ) -> tuple[Arch, ReplacementsOf]:
        """The best sum of changes within bounds, and what other budgets would cost.

        Args:
          history: the evaluations of the replacements, in their order.
          evaluate: from an architecture to its score.
          cost: of architectures.
          budget: the name of the cost that other budgets bound, as shares of the largest network's.
          bounds: on costs.

        Raises:
          ValueError: bounds that no combination keeps; an evaluation that failed.
        """
        scores = [math.nan if line["score"] is None else line["score"] for line in history]
        pick = functools.partial(search.knapsack, self.replaced, scores, cost)
        arch = pick(bounds)
        whole = int(np.asarray(cost(self.replaced.base)[budget]))
        points, archs = [], [arch]
        for share in _SHARES:
            try:
                archs.append(pick({budget: (None, share * whole)}))
            except ValueError:  # No combination is as small.
                break
            points.append(share)
        drawn = [
            Budgeted(
                share=share,
                cost=float(np.asarray(cost(one)[budget])),
                estimated=-self.replaced.total(scores, one),
                measured=-evaluate(one),
            )
            for share, one in zip([None, *points], archs, strict=True)
        ]
        record = ReplacementsOf(
            metric=self.task.metrics[0].name,
            unit=self.task.metrics[0].unit,
            budget=budget,
            evaluations=len(scores),
            found=drawn[0],
            others=tuple(drawn[1:]),
        )
        return arch, record


def replacing(task: Task, net: Any, variables: Any) -> Replacing:
    """The replacements of places of a network, compared with its largest architecture.

    Raises:
      ValueError: a task without predictions; a place of too many options.
    """
    replaced = search.replacements(net.space)
    return Replacing(Imitation(task, net, variables, replaced.base), replaced)
