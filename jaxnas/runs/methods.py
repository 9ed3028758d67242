"""How an architecture is found with the weights of a supernet: the methods, and their budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from jaxnas.checks import check_counts, check_increasing, check_numbers
from jaxnas.recipes.recipe import check_cost
from jaxnas.search.runner import check_strategy
from jaxnas.space import Arch

_GROUP = "search.method"


@dataclasses.dataclass(frozen=True)
class ByStrategy:
    """Evaluates architectures within the budget by a strategy.

    Attributes:
      strategy: of `jaxnas.search`, or a user's own; its space, cost and bounds are those of the run. None for
        evolution.
      baseline: whether random search with as many evaluations runs beside the strategy, unless the strategy
        does not learn from scores.
      finalists: how many of the best architectures are trained alone; the best of these is then found, as in
        AutoAttend (ICML 2021, section 5.1.2). 0 for none.
      finalist_steps: of each of these trainings; None for as many as a retraining has.
    """

    strategy: Any = None
    baseline: bool = True
    finalists: int = 0
    finalist_steps: int | None = None
    name: ClassVar[str] = "strategy"

    def __post_init__(self) -> None:
        if self.strategy is not None:
            check_strategy(self.strategy)
        check_counts(self, "finalists", least=0, group=_GROUP)
        check_counts(self, "finalist_steps", none=True, group=_GROUP)


@dataclasses.dataclass(frozen=True)
class Replacements:
    """Changes one place of the largest network at a time, and takes the best combination within the budget.

    The combination is that whose predictions should change least, by the sum of its replacements' divergences
    (Puzzle, arXiv 2411.19146).

    Attributes:
      samples: evaluations of random search beside it; 0 for none.
    """

    samples: int = 16
    name: ClassVar[str] = "replacements"

    def __post_init__(self) -> None:
        check_counts(self, "samples", least=0, group=_GROUP)


@dataclasses.dataclass(frozen=True)
class Argmax:
    """Takes the most probable option of each decision."""

    name: ClassVar[str] = "argmax"


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Draws architectures from the probabilities, and takes the best with the supernet's weights.

    Attributes:
      samples: draws.
      explore: share of the draws for which all options are equally probable.
      slack: where the recipe has a target, draws cost at most that, and at least 1 - `slack` times it.
    """

    samples: int = 16
    explore: float = 0.0
    slack: float = 1.0
    name: ClassVar[str] = "sampling"

    def __post_init__(self) -> None:
        check_counts(self, "samples", group=_GROUP)
        check_numbers(self, "explore", least=0, most=1, group=_GROUP)
        check_numbers(self, "slack", above=0, most=1, group=_GROUP)


@dataclasses.dataclass(frozen=True)
class Trials(Sampling):
    """Draws architectures as `Sampling`, and trains each alone, in rungs of successive halving.

    Attributes:
      steps: of each rung.
      eta: one in `eta` is promoted to the next rung.
      canonical: from an architecture to the one that stands for all that are equal to it when trained alone;
        or None.
    """

    steps: tuple[int, ...] = (300,)
    eta: int = 4
    canonical: Callable[[Arch], Arch] | None = None
    name: ClassVar[str] = "trials"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "eta", least=2, group=_GROUP)
        check_increasing(self, "steps", group=_GROUP)


@dataclasses.dataclass(frozen=True)
class Perturbation:
    """Takes for each decision in turn the option without which the supernet is worst.

    Rethinking Architecture Selection in Differentiable NAS (Wang et al., ICLR 2021).

    Attributes:
      tune_steps: of training after each decision; 0 for none.
    """

    tune_steps: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "tune_steps", least=0, group=_GROUP)

    @property
    def name(self) -> str:
        """The name of the method in a result."""
        return "perturbation"


@dataclasses.dataclass(frozen=True)
class Pruning(Perturbation):
    """Takes out the weakest of blocks that stand side by side, one in each round.

    Attributes:
      at_once: whether all but the strongest are taken out in a single round.
    """

    at_once: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_once and self.tune_steps:
            raise ValueError(
                f"{_GROUP}.tune_steps is {self.tune_steps}, and {_GROUP}.at_once has one round alone: set "
                "one of them."
            )

    @property
    def name(self) -> str:
        """The name of the method in a result."""
        return "strongest" if self.at_once else "pruning"


METHODS = {
    "strategy": ByStrategy,
    "replacements": Replacements,
    "argmax": Argmax,
    "sampling": Sampling,
    "trials": Trials,
    "perturbation": Perturbation,
    "pruning": Pruning,
}
BY_BUDGET = (ByStrategy, Replacements)  # what `search_space` does; `select` does the others


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """How an architecture is found with the weights of a supernet.

    Attributes:
      method: one of `METHODS`. None for `Argmax` where the recipe has architecture parameters, else for
        `ByStrategy`.
      budget: name of the cost that is bounded, as "params", "macs" or "latency_ms".
      least, most: bounds on it; None for no bound.
      most_share: the upper bound as a share of the largest network's cost, in place of `most`.
      limit: batches of the search role that architectures are evaluated on; None for all.
      latency: rows of a batch whose latency counts as a cost, "latency_ms", by a table that is measured once;
        the found network is then timed from end to end beside the largest and the smallest. 0 for none.
      ranked: random architectures that are also trained alone, to see how well the supernet ranks; 0 for
        none.
      ranked_steps: of each of these trainings; None for as many as a retraining has.
      incomplete: whether the weights of a training that was stopped may be searched.

    Example:
      >>> settings = runs.Search(most_share=0.4, ranked=20)  # of the parameters; tau of 20 networks
      >>> settings.budget
      'params'
    """

    method: Any = dataclasses.field(default=None, kw_only=False, metadata={"classes": METHODS})
    budget: str = "params"
    least: float | None = None
    most: float | None = None
    most_share: float | None = None
    limit: int | None = None
    latency: int = 0
    ranked: int = 0
    ranked_steps: int | None = None
    incomplete: bool = False

    def __post_init__(self) -> None:
        group = "search"
        if not isinstance(self.method, (type(None), *METHODS.values())):
            expected = ", ".join(f"runs.{method.__name__}()" for method in METHODS.values())
            raise TypeError(f"search.method is {self.method!r}, expected one of {expected}.")
        check_counts(self, "latency", "ranked", least=0, group=group)
        check_counts(self, "ranked_steps", "limit", none=True, group=group)
        check_numbers(self, "least", "most", none=True, group=group)
        check_numbers(self, "most_share", above=0, most=1, none=True, group=group)
        if self.ranked == 1:
            raise ValueError("search.ranked is 1, expected 0, or at least 2 architectures to compare.")
        if self.most is not None and self.most_share is not None:
            raise ValueError(
                f"search.most is {self.most} and search.most_share {self.most_share}: both are the upper "
                "bound. Give one, and None for the other."
            )

    def bounds(self, reachable: Mapping[str, tuple]) -> dict[str, tuple[float | None, float | None]]:
        """The bounds on costs that are asked for, {} for none, by the (least, most) that each can reach."""
        bounded = (self.least, self.most, self.most_share) != (None, None, None)
        # A network may have other costs than the default's; where nothing is bounded, that does no harm.
        if self.budget not in reachable and (bounded or self.budget != Search.budget):
            check_cost("search.budget", self.budget, reachable)
        most = self.most
        if self.most_share is not None:
            # The last options are not the dearest ones in every space.
            most = self.most_share * reachable[self.budget][1]
            most = math.floor(most) if isinstance(reachable[self.budget][1], int) else most
        return {} if most is None and self.least is None else {self.budget: (self.least, most)}
