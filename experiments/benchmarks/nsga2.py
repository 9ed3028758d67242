"""How much of the exact front of NAS-Bench-201 a budget finds: NSGA-II, random search and pymoo's.

  python -m experiments.benchmarks.nsga2 --data_dir=tabular --out=nsga2.json

Two objectives of the 15,625 cells on CIFAR-10 are minimised: validation error after 200 epochs (the
mean of the runs there are), and latency on one device. For each method: the hypervolume of what it
evaluated over that of the exact front, with the worst values of the table as reference, over seeds.
The searches of jaxnas are one program for all seeds, whose compilation is in its seconds. pymoo is
compared where it is installed, in two forms: integers with its defaults (SBX and polynomial mutation,
rounded), and integers with uniform crossover and options drawn anew, which is what jaxnas does.
"""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax

from experiments import binary
from jaxnas import files, search, tabular
from jaxnas.search import pareto

_DATA = flags.DEFINE_string("data_dir", None, "Where the tables are; by default $JAXNAS_DATA.")
_LATENCY = flags.DEFINE_string("latency", "latency_raspi4", "The table's name of the latency.")
_SEEDS = flags.DEFINE_integer("seeds", 200, "Searches of each kind.")
_TOGETHER = flags.DEFINE_integer("together", 20, "How many of them run side by side, under vmap.")
_PYMOO_SEEDS = flags.DEFINE_integer("pymoo_seeds", 100, "Searches of pymoo's; 0 for none.")
_EVALUATIONS = flags.DEFINE_integer("evaluations", 500, "Of each search.")
_POPULATION = flags.DEFINE_integer("population", 50, "Of each generation.")
_CROSSOVER = flags.DEFINE_float("crossover_probability", 0.9, "Of jaxnas's NSGA-II.")
_MUTATION = flags.DEFINE_float("mutation_probability", None, "Of jaxnas's NSGA-II; default 0.05.")
_OUT = flags.DEFINE_string("out", None, "JSON file to write.")

_PLACES = 5 ** np.arange(6)


def scores_of(table: tabular.Table, latency: str) -> np.ndarray:
    """Returns the scores of all cells, higher is better, at the place of their code; [15625, 2]."""
    table.metric(latency)  # refuses what is none
    accuracy, times = table.metrics["validation_accuracy"], table.metrics[latency]
    scores = np.full((5**6, 2), np.nan, np.float32)
    scores[table.codes @ _PLACES] = np.stack([accuracy - 100, -times], axis=1)
    if not np.isfinite(scores).all():
        raise ValueError(f"The table {table.name} lacks validation accuracy or {latency} of some cells.")
    return scores


def run_many(strategy: search.Strategy, cells: jax.Array, seeds: int) -> jax.Array:
    """Returns the scores of what as many searches evaluated, float32 [seeds, evaluations, 2]."""
    places = jnp.asarray(_PLACES, jnp.int32)

    def evaluate(archs: Any) -> jax.Array:
        found = cells[strategy.space.encode(archs) @ places]
        # What random search is told does not matter.
        return found[:, 0] if strategy.objectives is None else found

    def one(key: jax.Array) -> jax.Array:
        state = search.scan(strategy, evaluate, key)
        used = jnp.arange(strategy.evaluations) < state.size
        return jnp.where(used[:, None], cells[state.codes @ places], jnp.nan)

    keys = jax.random.split(jax.random.key(0), seeds)
    return lax.map(one, keys, batch_size=min(_TOGETHER.value, seeds))


def run_pymoo(categorical: bool, cells: np.ndarray, seeds: int) -> np.ndarray:
    """Returns the scores seen by as many of pymoo's searches, float32 [seeds, evaluations, 2]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pymoo.algorithms.moo.nsga2 import NSGA2 as Theirs
        from pymoo.core.mutation import Mutation
        from pymoo.core.problem import Problem
        from pymoo.operators.crossover.sbx import SBX
        from pymoo.operators.crossover.ux import UniformCrossover
        from pymoo.operators.mutation.pm import PM
        from pymoo.operators.repair.rounding import RoundingRepair
        from pymoo.operators.sampling.rnd import IntegerRandomSampling
        from pymoo.optimize import minimize

    class Cells(Problem):
        def __init__(self):
            super().__init__(n_var=6, n_obj=2, xl=0, xu=4, vtype=int)
            self.seen = []

        def _evaluate(self, x, out, *args, **kwargs):
            scores = cells[np.asarray(x, np.int64) @ _PLACES]
            self.seen.append(scores)
            out["F"] = -scores.astype(np.float64)

    class Anew(Mutation):
        def _do(self, problem, X, random_state: Any = None, **kwargs):
            change = random_state.random(X.shape) < 1 / X.shape[1]
            return np.where(change, random_state.integers(0, 5, X.shape), X)

    def operators() -> dict[str, Any]:
        if categorical:
            return {"crossover": UniformCrossover(prob=0.9), "mutation": Anew(prob=1.0)}
        return {
            "crossover": SBX(prob=0.9, eta=15, vtype=float, repair=RoundingRepair()),
            "mutation": PM(eta=20, vtype=float, repair=RoundingRepair()),
        }

    results = []
    for seed in range(seeds):
        problem = Cells()
        minimize(
            problem,
            Theirs(
                pop_size=_POPULATION.value,
                sampling=IntegerRandomSampling(),
                eliminate_duplicates=True,
                **operators(),
            ),
            ("n_eval", _EVALUATIONS.value),
            seed=seed,
        )
        seen = np.concatenate(problem.seen)[: _EVALUATIONS.value]
        rest = np.full((_EVALUATIONS.value - len(seen), 2), np.nan, np.float32)
        results.append(np.concatenate([seen, rest]))
    return np.stack(results)


def measure() -> dict[str, Any]:
    """Runs the benchmark and returns what goes into the JSON file."""
    table = tabular.load("nasbench201", _DATA.value)
    scores = scores_of(table, _LATENCY.value)
    reference, cells = jnp.asarray(scores.min(axis=0)), jnp.asarray(scores)
    exact = float(pareto.hypervolume(cells, reference))
    evaluations, population = _EVALUATIONS.value, _POPULATION.value
    ours = search.NSGA2(
        table.space,
        evaluations=evaluations,
        population=population,
        crossover_probability=_CROSSOVER.value,
        mutation_probability=_MUTATION.value,
    )
    methods: dict[str, Callable[[], Any]] = {}
    for name, strategy in (
        ("jaxnas NSGA2", ours),
        ("jaxnas random", search.RandomSearch(table.space, evaluations=evaluations, batch=population)),
    ):
        methods[name] = functools.partial(
            jax.jit(run_many, static_argnums=(0, 2)), strategy, cells, _SEEDS.value
        )
    if _PYMOO_SEEDS.value:
        try:
            import pymoo  # noqa: F401
        except ImportError:
            print("pymoo is not installed: left out.")
        else:
            for name, categorical in (("pymoo, SBX and PM", False), ("pymoo, uniform", True)):
                methods[name] = functools.partial(run_pymoo, categorical, scores, _PYMOO_SEEDS.value)
    result: dict[str, Any] = {
        "table": len(table),
        "latency": _LATENCY.value,
        "evaluations": evaluations,
        "population": population,
        "front": int(pareto.pareto_front(cells).sum()),
        "hypervolume": exact,
        "reference": [float(x) for x in reference],
        "methods": {},
    }
    volume = jax.jit(jax.vmap(lambda found: pareto.hypervolume(found, reference)))
    for name, method in methods.items():
        start = time.perf_counter()
        found = jnp.asarray(jax.block_until_ready(method()))
        seconds = time.perf_counter() - start
        ratios = (np.asarray(volume(found), np.float64) / exact).tolist()
        result["methods"][name] = {
            "mean": statistics.mean(ratios),
            "min": min(ratios),
            "deviation": statistics.stdev(ratios) if len(ratios) > 1 else 0.0,
            "seeds": len(ratios),
            "seconds": seconds,
        }
    return result


def show(result: dict[str, Any]) -> str:
    """The table that is printed."""
    lines = [
        f"{result['table']:,} cells, error and {result['latency']}, {result['evaluations']} "
        f"evaluations in generations of {result['population']}; exact front of "
        f"{result['front']} cells",
        f"  {'hypervolume / exact':22s} {'mean':>8s} {'+-':>8s} {'std':>8s} {'min':>8s} "
        f"{'seeds':>6s} {'seconds':>8s}",
    ]
    for name, row in result["methods"].items():
        lines.append(
            f"  {name:22s} {row['mean']:8.5f} {row['deviation'] / row['seeds'] ** 0.5:8.5f} "
            f"{row['deviation']:8.5f} {row['min']:8.5f} {row['seeds']:6d} "
            f"{row['seconds']:8.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    result = measure()
    print(show(result))
    if _OUT.value is not None:
        files.write_json(_OUT.value, result)


if __name__ == "__main__":
    binary.run(main)
