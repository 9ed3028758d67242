"""The strategies that `experiments.compare` knows by name, as functions of a table and a budget."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from jaxnas import search
from jaxnas.choice import nearest
from jaxnas.tabular import Table

Make = Callable[[Table, int], Any]


def common(table: Table, evaluations: int) -> dict[str, Any]:
    """What every strategy is given: the space, the budget, and which networks are equal."""
    return dict(space=table.space, evaluations=evaluations, canonical=table.canonical)


def random(table: Table, evaluations: int) -> Any:
    return search.RandomSearch(population=10, **common(table, evaluations))


def local(table: Table, evaluations: int) -> Any:
    return search.LocalSearch(**common(table, evaluations))


def regularized_evolution(table: Table, evaluations: int) -> Any:
    return search.RegularizedEvolution(space=table.space, evaluations=evaluations)


def regularized_evolution_unique(table: Table, evaluations: int) -> Any:
    return search.RegularizedEvolution(**common(table, evaluations))


def evolution(table: Table, evaluations: int) -> Any:
    return search.Evolution(**common(table, evaluations))


def reinforce(table: Table, evaluations: int) -> Any:
    return search.Reinforce(learning_rate=0.05, **common(table, evaluations))


def reinforce_transformer(table: Table, evaluations: int) -> Any:
    policy = search.TransformerPolicy()
    return search.Reinforce(policy=policy, learning_rate=3e-3, **common(table, evaluations))


def ppo_transformer(table: Table, evaluations: int) -> Any:
    policy = search.TransformerPolicy()
    return search.PPO(policy=policy, learning_rate=1e-3, **common(table, evaluations))


STRATEGIES: dict[str, Make] = {
    make.__name__: make
    for make in (
        random,
        local,
        regularized_evolution,
        regularized_evolution_unique,
        evolution,
        reinforce,
        reinforce_transformer,
        ppo_transformer,
    )
}


def find(name: str) -> Make:
    """A strategy by its name here, or "module:function" of a user's own.

    The function takes the table and the number of evaluations and returns a strategy.

    Raises:
      ValueError: no such strategy, module or function.
    """
    if ":" not in name:
        if name not in STRATEGIES:
            raise ValueError(
                f"{name!r} is not a strategy{nearest(name, STRATEGIES)} There are: "
                f"{', '.join(STRATEGIES)}; and module:function for one of your own."
            )
        return STRATEGIES[name]
    module, function = name.split(":", 1)
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{name!r} could not be imported: {error}. Expected module:function, the module on "
            "PYTHONPATH, the function from (table, evaluations) to a strategy."
        ) from error
