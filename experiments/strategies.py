"""The strategies that `experiments.compare` knows by name, as functions of a table and a budget."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import predictors, search
from jaxnas.choice import nearest
from jaxnas.tabular import Table, nasbench201

Make = Callable[[Table, int], Any]


def common(table: Table, evaluations: int) -> dict[str, Any]:
    """What every strategy is given: the space, the budget, and which networks are equal."""
    return dict(space=table.space, evaluations=evaluations, canonical=table.canonical)


def random(table: Table, evaluations: int) -> Any:
    return search.RandomSearch(batch=10, **common(table, evaluations))


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


def paths_of(table: Table) -> tuple[Callable[[Any], Any], int, int] | None:
    """For a table of cells: what runs along a cell's paths, kinds of operations, length of sequences."""
    if table.name.startswith("nasbench201"):
        edges = tuple((int(a), int(b)) for a, b in nasbench201.EDGES)
        edge_cell = predictors.EdgeCell(edges, len(nasbench201.OPS), none=0, identity=1)
        return lambda arch: edge_cell.paths(arch["op"]), edge_cell.kinds, 3
    if table.name.startswith("nasbench_graph"):
        links = [[int(digit) for digit in str(option)] for option in table.space["links"].options]
        options = table.space["op"].options
        chain_cell = predictors.ChainCell(4, len(options), options.index("skip"))
        sources = jnp.asarray(np.asarray(links, np.int32))
        return (
            lambda arch: chain_cell.paths(sources[arch["links"]], arch["op"]),
            chain_cell.kinds,
            2,
        )
    return None


def features_of(table: Table) -> Callable[[Any], Any]:
    """What a predictor is given: counts along paths for cells, one-hot decisions for others."""
    found = paths_of(table)
    if found is None:
        return predictors.one_hot(table.space)
    paths, kinds, length = found
    return lambda arch: predictors.path_features(kinds, *paths(arch), length=length)


def guided(table: Table, evaluations: int, predictor: Any, features: Any, **settings: Any) -> Any:
    pool = search.Pool(table.codes) if table.pool else None
    return search.PredictorGuided(
        predictor=predictor, features=features, pool=pool, **settings, **common(table, evaluations)
    )


def gaussian_process(table: Table, evaluations: int) -> Any:
    return guided(table, evaluations, predictors.GaussianProcess(), features_of(table))


def mlp_ensemble(table: Table, evaluations: int) -> Any:
    return guided(table, evaluations, predictors.MlpEnsemble(), features_of(table), initial=10)


def transformer_predictor(table: Table, evaluations: int) -> Any:
    """Its encoders first learn the table's architectures, without their scores."""
    features, found = features_of(table), paths_of(table)
    if found is None:
        tokens = predictors.tokens(table.space)
        kinds, places = int(max(table.space.sizes)), table.space.length
    else:
        paths, kinds, _ = found
        places = 4
        tokens = lambda arch: predictors.path_tokens(*paths(arch)[:2])  # noqa: E731
    predictor = predictors.TransformerPredictor(kinds, places, steps=2500)

    def raw(arch: Any) -> dict[str, Any]:
        return {"tokens": tokens(arch), "features": features(arch)}

    archs = table.space.decode(jnp.asarray(table.codes))
    print(f"transformer_predictor: learns the {len(table.codes):,} architectures first", flush=True)
    weights = jax.jit(predictor.pretrain)(jax.random.key(0), jax.jit(jax.vmap(raw))(archs))

    def encoded(arch: Any) -> Any:
        one = predictor.encode(weights, jax.tree.map(lambda x: x[None], raw(arch)))
        return jax.tree.map(lambda x: x[0], one)

    return guided(table, evaluations, predictor, encoded)


def pool_random(table: Table, evaluations: int) -> Any:
    """Random architectures of a pool, for tables that hold a sample of a larger space."""
    process = predictors.GaussianProcess(steps=0)
    return search.PredictorGuided(
        predictor=process,
        features=lambda arch: jnp.zeros((1,)),
        initial=max(len(table.codes), 2),
        pool=search.Pool(table.codes),
        **common(table, evaluations),
    )


# Tables with fidelities: what the names of a metric and of the seconds end with at each, cheapest first.
# Each is a training of its own, whose full time counts.
FIDELITIES = {"nasbench201": ("_12", "")}


def fidelities_of(table: Table, metric: str = "validation_accuracy") -> list[tuple[str, str]]:
    """The names of the metric and of the seconds it takes at each fidelity, cheapest first.

    Raises:
      ValueError: the table has no fidelities, or not of this metric.
    """
    endings = FIDELITIES.get(table.name, ())
    names = [(metric + ending, "training_seconds" + ending) for ending in endings]
    missing = [name for pair in names for name in pair if name not in table.metrics]
    if not names or missing:
        why = f"it lacks {', '.join(missing)}" if missing else "every network has one result"
        raise ValueError(
            f"{table.name} has no fidelities of {metric!r} ({why}), which hyperband and "
            f"successive_halving race over. Tables with fidelities: {', '.join(FIDELITIES)}."
        )
    return names


def full_seconds(table: Table, metric: str = "validation_accuracy") -> float:
    """The mean time of a full training: the unit of budgets in seconds."""
    return float(np.nanmean(table.metrics[fidelities_of(table, metric)[-1][1]]))


def hyperband(table: Table, evaluations: int, starts: tuple[int, ...] | None = None) -> Any:
    """Races within the seconds of so many full trainings.

    One in `eta` goes on, the ratio of the seconds, so that every rung of a race takes as long as the
    others (Li et al. 2018, section 3): nothing is tuned.
    """
    names = fidelities_of(table)
    low, high = (np.nanmean(table.metrics[names[k][1]]) for k in (0, -1))
    steps = len(names) - 1
    eta = max(round(float(high / low) ** (1 / steps)), 2)
    # Room for what fits the budget: as many as a race from the cheapest has for its seconds, where
    # every rung takes those of one full training, and half as many again for cheap networks.
    most = (eta**steps + 1) * evaluations * 3 // (2 * len(names)) + eta**steps
    return search.Hyperband(
        fidelities=len(names),
        eta=eta,
        first=eta**steps,
        starts=starts,
        budget=evaluations * full_seconds(table),
        **common(table, most),
    )


def successive_halving(table: Table, evaluations: int) -> Any:
    return hyperband(table, evaluations, starts=(0,))


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
        gaussian_process,
        mlp_ensemble,
        transformer_predictor,
        hyperband,
        successive_halving,
        pool_random,
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
