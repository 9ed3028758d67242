"""The strategies that `jaxnas compare` knows by name, as functions of a table and a budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnas import predictors, search
from jaxnas.choice import nearest
from jaxnas.experiments.tables import own_function
from jaxnas.predictors.features import ChainCell, EdgeCell, path_features, path_tokens
from jaxnas.space import Space
from jaxnas.tabular import Table, nasbench201, nasbench_graph

Make = Callable[[Table, int], Any]


def common(table: Table, evaluations: int) -> dict[str, Any]:
    """Arguments of every strategy: the space, the budget, and which networks are equal."""
    return dict(space=table.space, evaluations=evaluations, canonical=table.canonical)


def _of(strategy: Any, **settings: Any) -> Make:
    """A function from a table and a number of evaluations to a strategy with these settings."""
    return lambda table, evaluations: strategy(**settings, **common(table, evaluations))


def paths_of(space: Space) -> tuple[Callable[[Any], Any], int, int] | None:
    """For a space of cells: what runs along a cell's paths, kinds of operations, length of sequences."""
    if space == nasbench201.SPACE:
        edges = tuple((int(a), int(b)) for a, b in nasbench201.EDGES)
        edge_cell = EdgeCell(edges, len(nasbench201.OPS), none=0, identity=1)
        return lambda arch: edge_cell.paths(arch["op"]), edge_cell.kinds, 3
    if space in (nasbench_graph.SPACE, nasbench_graph.PROTEINS_SPACE):
        links = [[int(digit) for digit in str(option)] for option in space["links"].options]
        options = space["op"].options
        chain_cell = ChainCell(4, len(options), options.index("skip"))
        sources = jnp.asarray(np.asarray(links, np.int32))
        return lambda arch: chain_cell.paths(sources[arch["links"]], arch["op"]), chain_cell.kinds, 2
    return None


def features_of(table: Table) -> Callable[[Any], Any]:
    """Inputs of a predictor: the table's own features, counts along paths of cells, or decisions.

    Of a cell that is a tree both: its paths do not tell which of them share a node, nor where a skip ends.
    """
    if table.features is not None:
        return table.features
    found = paths_of(table.space)
    if found is None:
        return predictors.one_hot(table.space)
    paths, kinds, length = found
    decisions = None if table.space == nasbench201.SPACE else predictors.one_hot(table.space)

    def features(arch: Any) -> dict[str, jax.Array]:
        groups = path_features(kinds, *paths(arch), length=length)
        return groups if decisions is None else {**groups, "decisions": decisions(arch)}

    return features


def tokens_of(table: Table) -> Callable[[Any], dict[str, jax.Array]]:
    """Inputs of a Transformer: the table's own tokens, steps of the paths of cells, or decisions."""
    if table.tokens is not None:
        return table.tokens
    found = paths_of(table.space)
    if found is None:
        return predictors.tokens(table.space)
    paths = found[0]
    return lambda arch: path_tokens(*paths(arch)[:2])


def guided(table: Table, evaluations: int, predictor: Any, features: Any, **settings: Any) -> Any:
    # What has no row, such as a cell of nothing but skips, would fail again and again: none knows its score.
    pool = search.Pool(table.codes)
    return search.PredictorGuided(
        predictor=predictor, features=features, pool=pool, **settings, **common(table, evaluations)
    )


def gaussian_process(table: Table, evaluations: int) -> Any:
    return guided(table, evaluations, predictors.GaussianProcess(), features_of(table))


def transformer_predictor(table: Table, evaluations: int) -> Any:
    """Its encoders first learn the table's architectures, without their scores."""
    features, tokens = features_of(table), tokens_of(table)
    archs = table.space.decode(jnp.asarray(table.codes))
    every = jax.jit(jax.vmap(tokens))(archs)
    kinds, places = (int(jnp.max(every[name])) + 1 for name in ("kind", "place"))
    predictor = predictors.TransformerPredictor(kinds, places, steps=2500)

    def raw(arch: Any) -> dict[str, Any]:
        return {"tokens": tokens(arch), "features": features(arch)}

    print(f"transformer_predictor: learns the {len(table.codes):,} architectures first", flush=True)
    weights = jax.jit(predictor.pretrain)(jax.random.key(0), jax.jit(jax.vmap(raw))(archs))

    def encoded(arch: Any) -> Any:
        one = predictor.encode(weights, jax.tree.map(lambda x: x[None], raw(arch)))
        return jax.tree.map(lambda x: x[0], one)

    return guided(table, evaluations, predictor, encoded)


def pool_random(table: Table, evaluations: int) -> Any:
    """Random architectures of a pool, for tables that hold a sample of a larger space."""
    initial = max(len(table.codes), 2)
    unused = predictors.GaussianProcess(steps=0), lambda arch: jnp.zeros((1,))
    return guided(table, evaluations, *unused, initial=initial)


def seconds_of(table: Table) -> list[str]:
    """The names of the seconds that a training takes at each fidelity, cheapest first; [] for none.

    Those of `training_seconds_12` are of a training of its own, 12 epochs long for example; the full one's
    are `training_seconds`.
    """
    stem = "training_seconds"
    numbers = [name.removeprefix(f"{stem}_") for name in table.metrics if name.startswith(f"{stem}_")]
    lengths = sorted(filter(str.isdecimal, numbers), key=int)
    return [*(f"{stem}_{length}" for length in lengths), stem] if lengths and stem in table.metrics else []


def fidelities_of(table: Table, metric: str) -> list[tuple[str, str]]:
    """The names of a metric and of its seconds at each fidelity: `accuracy_12` and `training_seconds_12`."""
    names = [(name.replace("training_seconds", metric, 1), name) for name in seconds_of(table)]
    missing = [name for name, _ in names if name not in table.metrics]
    if missing or not names:
        why = f"it lacks {', '.join(missing)}" if names else "every network has one result"
        raise ValueError(
            f"{table.name} has no fidelities of {metric!r} ({why}), which hyperband and "
            f"successive_halving race over. A table with fidelities has, for example, {metric}_12 and "
            "training_seconds_12 beside the full training's, as nasbench201."
        )
    return names


def full_seconds(table: Table) -> float:
    """The mean time of a full training: the unit of budgets in seconds."""
    return float(np.nanmean(table.metrics[seconds_of(table)[-1]]))


def hyperband(table: Table, evaluations: int, starts: tuple[int, ...] | None = None) -> Any:
    """Races within the seconds of so many full trainings.

    One in `eta` is promoted, the ratio of the seconds, so that every rung of a race takes as long as the
    others (Li et al. 2018, section 3): nothing is tuned.
    """
    names = seconds_of(table)
    if not names:
        raise ValueError(f"{table.name} has one result for every network; hyperband races over fidelities.")
    low, high = (np.nanmean(table.metrics[names[k]]) for k in (0, -1))
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


_policy = search.TransformerPolicy()
STRATEGIES: dict[str, Make] = {
    "random": _of(search.RandomSearch, batch=10),
    "local": _of(search.LocalSearch),
    "regularized_evolution": lambda table, n: search.RegularizedEvolution(table.space, evaluations=n),
    "regularized_evolution_unique": _of(search.RegularizedEvolution),
    "evolution": _of(search.Evolution),
    "reinforce": _of(search.Reinforce, learning_rate=0.05),
    "reinforce_transformer": _of(search.Reinforce, policy=_policy, learning_rate=3e-3),
    "ppo_transformer": _of(search.PPO, policy=_policy, learning_rate=1e-3),
    "gaussian_process": gaussian_process,
    "mlp_ensemble": lambda table, n: guided(
        table, n, predictors.MlpEnsemble(), features_of(table), initial=10
    ),
    "transformer_predictor": transformer_predictor,
    "hyperband": hyperband,
    "successive_halving": lambda table, n: hyperband(table, n, starts=(0,)),
    "pool_random": pool_random,
}


def find(name: str) -> Make:
    """The function from a table and a number of evaluations to a strategy, by name or module:function."""
    if ":" in name:
        return own_function("--strategies", name, "from (table, evaluations) to a strategy")
    if name not in STRATEGIES:
        raise ValueError(
            f"--strategies: {name!r} is not a strategy{nearest(name, STRATEGIES)} `jaxnas` lists all; "
            "module:function is one of your own."
        )
    return STRATEGIES[name]
