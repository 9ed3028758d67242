"""Strategies with a zero-cost proxy for `jaxnas compare`, on the cells of NAS-Bench-201; see `proxies`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm, rankdata

import jaxnas
from benchmarks.nasbench201_network import NasBench201
from jaxnas import predictors, proxies, search
from jaxnas.experiments import strategies
from jaxnas.tabular import Table


@functools.cache
def synflow() -> np.ndarray:
    """The synaptic flow of all cells, in networks of one cell a stage; float32 [15,625] by `place`."""
    net = NasBench201(cells=1)
    every = net.space.enumerate()
    batch = proxies.Batch(jnp.ones((1, 32, 32, 3)))
    variables = jaxnas.init(net, jax.random.key(0), batch.inputs)
    scores = np.asarray(proxies.score(net, variables, every, batch, ("synflow",))["synflow"])
    found = np.empty_like(scores)
    found[np.asarray(jax.vmap(place)(every))] = scores
    return found


def place(arch: Any) -> jax.Array:
    """The number of a cell, int32 []."""
    powers = jnp.asarray([5**i for i in range(6)], jnp.int32)
    return jnp.sum(arch["op"] * powers, dtype=jnp.int32)


def gaussian_process_synflow(table: Table, evaluations: int) -> Any:
    """The search by a Gaussian process, which also sees a cell's normal quantile by synaptic flow."""
    scores, features = synflow(), strategies.features_of(table)
    quantiles = jnp.asarray(norm.ppf(rankdata(scores) / (len(scores) + 1)), jnp.float32)

    def with_synflow(arch: Any) -> dict[str, jax.Array]:
        return {**features(arch), "synflow": quantiles[place(arch)][None]}

    return strategies.guided(table, evaluations, predictors.GaussianProcess(), with_synflow)


def _beginning_with(scores: np.ndarray, table: Table, evaluations: int) -> Any:
    """Regularized evolution that begins with the 50 best cells by scores [15,625], one of each network."""
    every = table.space.enumerate()
    codes = np.asarray(table.space.encode(jax.vmap(table.canonical)(every)))
    codes = codes[np.argsort(-scores[np.asarray(jax.vmap(place)(every))], kind="stable")]
    _, first = np.unique(codes, axis=0, return_index=True)
    best = search.Pool(codes[np.sort(first)[:50]])
    return search.RegularizedEvolution(unique=True, first=best, **strategies.common(table, evaluations))


def evolution_synflow(table: Table, evaluations: int) -> Any:
    """Regularized evolution that begins with the best by synaptic flow."""
    return _beginning_with(synflow(), table, evaluations)


def evolution_parameters(table: Table, evaluations: int) -> Any:
    """Regularized evolution that begins with the largest."""
    places = np.asarray(jax.vmap(place)(table.space.decode(jnp.asarray(table.codes))))
    params = np.full(len(places), -np.inf)
    params[places] = table.metrics["params"]
    return _beginning_with(params, table, evaluations)
