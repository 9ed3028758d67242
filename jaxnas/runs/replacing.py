"""An architecture by replacing one place of a network at a time; see `jaxnas.search.knapsack`."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import search
from jaxnas.cost import Cost
from jaxnas.recipes.distillation import kl
from jaxnas.report.result import Budgeted, ReplacementsOf
from jaxnas.search.bounds import check_bounds
from jaxnas.search.knapsack import Replacements, not_a_sum
from jaxnas.search.random_search import Listed
from jaxnas.space import Arch
from jaxnas.tasks import Metric, Task
from jaxnas.tasks.task import Batch, Call, Sums, check_predicts
from jaxnas.training.evaluate import calibrated

_log = logging.getLogger(__name__)
METRIC = Metric("kl", "nats", "min", lambda sums: sums["kl"] / sums["predictions"])


@dataclasses.dataclass(frozen=True, eq=False)
class Imitation:
    """A task whose metric is KL(reference, network), the mean over predictions.

    It needs no labels, and a change of a network shows in it long before it shows in an accuracy. The
    reference is `net` with `variables` at `arch`, None if it has only one architecture. What is not defined
    here, such as data and inputs, is that of `task`.
    """

    task: Task
    net: Any
    variables: Any
    arch: Arch | None = None

    metrics = (METRIC,)

    def __post_init__(self) -> None:
        check_predicts(self.task)

    def __getattr__(self, name: str) -> Any:
        if name == "task":  # of an object that is only being made, as by `copy`
            raise AttributeError(name)
        return getattr(self.task, name)

    def evaluation(self, role: str, batch_size: int | None, limit: int | None) -> Batch:
        """The task's batches, each with the reference network's logits, float32 [batches, rows, ...]."""
        batches = self.task.evaluation(role, batch_size, limit)
        count, rows = jax.tree.leaves(batches)[0].shape[:2]
        carry, found = self.carry(self.net, rows), []
        for number in range(count):
            batch = jax.tree.map(lambda x, i=number: jnp.asarray(x[i]), batches)
            logits, carry = self._reference(self.variables, self.arch, batch, carry)
            found.append(np.asarray(logits))
        return {"batch": batches, "reference": np.stack(found)}

    @functools.cached_property
    def _reference(self) -> Any:
        def predict(variables: Any, arch: Any, batch: Any, carry: Any) -> tuple[jax.Array, Any]:
            made, carry = self.task.predict(Call(self.net, variables, arch, batch, carry))
            return made.logits, carry

        return jax.jit(predict)

    def preprocess(self, batch: Batch) -> Any:
        """See `Task`."""
        return self.task.preprocess(batch["batch"] if "reference" in batch else batch)

    def loss(self, call: Call) -> tuple[jax.Array, tuple[Any, Sums]]:
        """The mean divergence in nats; the sums hold "kl" and "predictions"."""
        made, carry = self.task.predict(dataclasses.replace(call, batch=call.batch["batch"]))
        total = jnp.sum(kl(call.batch["reference"], made.logits) * made.weight)
        count = jnp.sum(made.weight)
        return total / jnp.maximum(count, 1), (carry, {"kl": total, "predictions": count})


_NEAR = 0.9  # of an upper bound, that random architectures cost at least
_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)  # of the largest network's cost


@dataclasses.dataclass(frozen=True)
class Replacing:
    """The replacements of a network, and the task that compares them with the largest architecture."""

    task: Any
    replaced: Replacements

    def strategies(self, cost: Cost, bounds: Any, samples: int, batch: int) -> dict[str, Any]:
        """The evaluation of all replacements, and random search within the bounds if it has `samples`."""
        space, pool = self.replaced.space, search.Pool(self.replaced.codes)
        for name in bounds:
            if fault := not_a_sum(self.replaced, cost, name):
                _log.warning("%s The combination that is found may be refused for that.", fault)
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

        `history` has the evaluations of the replacements, in their order; `evaluate` gives the score of an
        architecture. Bounds that no combination keeps, and an evaluation that failed, raise a ValueError.
        """
        scores = [math.nan if line["score"] is None else line["score"] for line in history]
        pick = functools.partial(search.knapsack, self.replaced, scores, cost)
        arch = pick(bounds)
        whole = float(np.asarray(cost(self.replaced.base)[budget]))
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
    """The replacements of places of a network, compared with its largest architecture."""
    replaced = search.replacements(net.space)
    own = calibrated(task, net, variables, replaced.base)  # as evaluators see the others
    return Replacing(Imitation(task, task.evaluated(net), own, replaced.base), replaced)
