"""A thousand searches as one program, against the same algorithm as a plain loop.

  python -m experiments.benchmarks.evolution --data_dir=tabular --out=evolution.json

Regularized evolution on NAS-Bench-201 (CIFAR-10), 500 evaluations: the vmapped scan over all seeds,
shared by the cores, and a loop in Python and NumPy written here without anything of jaxnas but the
table. Times are taken in turns; the distributions of what both found are compared by a two-sample
Kolmogorov-Smirnov test.
"""

from __future__ import annotations

import collections
import functools
import json
import math
import os
import statistics
import time
from typing import Any

import jax
import numpy as np
from absl import app, flags
from scipy import stats

from jaxnas import search, tabular
from jaxnas.tabular.anytime import anytime

_DATA = flags.DEFINE_string("data_dir", None, "Where the tables are; by default $JAXNAS_DATA.")
_SEEDS = flags.DEFINE_integer("seeds", 1000, "Searches of the program.")
_LOOPS = flags.DEFINE_integer("loops", 200, "Searches of the plain loop.")
_EVALUATIONS = flags.DEFINE_integer("evaluations", 500, "Of each search.")
_DEVICES = flags.DEFINE_integer("devices", os.cpu_count(), "CPU devices that share the searches.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Times the program runs.")
_OUT = flags.DEFINE_string("out", None, "JSON file to write.")
POPULATION, SAMPLE = 50, 10


def plain_loop(scores: np.ndarray, evaluations: int, seed: int) -> list[tuple[int, ...]]:
    """Regularized evolution as one would write it for a table: scores is float [5, 5, 5, 5, 5, 5]."""
    random = np.random.default_rng(seed)
    population: collections.deque = collections.deque()
    history = []
    while len(history) < evaluations:
        if len(population) < POPULATION:
            child = tuple(random.integers(0, 5, 6).tolist())
        else:
            drawn = random.choice(POPULATION, SAMPLE, replace=False)
            parent = max((population[i] for i in drawn), key=lambda member: member[1])[0]
            changed = list(parent)
            edge = random.integers(6)
            changed[edge] = (changed[edge] + random.integers(1, 5)) % 5
            child = tuple(changed)
        population.append((child, scores[child]))
        if len(population) > POPULATION:
            population.popleft()
        history.append(child)
    return history


def measure() -> dict[str, Any]:
    """Runs both and returns what goes into the JSON file."""
    table = tabular.load("nasbench201", _DATA.value)
    strategy = search.RegularizedEvolution(
        table.space, evaluations=_EVALUATIONS.value, population=POPULATION, sample=SAMPLE
    )
    metric = table.metric("validation_accuracy")
    many = jax.jit(jax.vmap(functools.partial(search.scan, strategy, jax.vmap(metric))))
    # Searches know nothing of each other: each device runs its share, all of them the same number.
    devices = jax.devices()[: math.gcd(_SEEDS.value, jax.device_count())]
    mesh = jax.sharding.Mesh(np.array(devices), ("searches",))
    share = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("searches"))
    keys = jax.device_put(jax.random.split(jax.random.key(0), _SEEDS.value), share)
    start = time.perf_counter()
    program = many.lower(keys).compile()
    compiling = time.perf_counter() - start
    scores = np.zeros((5,) * 6, np.float32)
    scores[tuple(table.codes.T)] = table.metrics["validation_accuracy"]
    jax.block_until_ready(program(keys))
    plain_loop(scores, _EVALUATIONS.value, 0)
    times: dict[str, list[float]] = {"program": [], "loop": []}
    loops_at_once = _LOOPS.value // _REPEATS.value
    histories = []
    for repeat in range(_REPEATS.value):
        start = time.perf_counter()
        state = jax.block_until_ready(program(keys))
        times["program"].append((time.perf_counter() - start) / _SEEDS.value)
        start = time.perf_counter()
        for seed in range(repeat * loops_at_once, (repeat + 1) * loops_at_once):
            histories.append(plain_loop(scores, _EVALUATIONS.value, seed))
        times["loop"].append((time.perf_counter() - start) / loops_at_once)
    loops = np.asarray(histories, np.int32)
    curves = {}
    for name, codes in (("program", np.asarray(state.codes)), ("loop", loops)):
        found = scores[tuple(np.moveaxis(codes, -1, 0))]
        curves[name] = anytime(table, codes, found, "validation_accuracy", "test_accuracy")
    at = [n for n in (50, 100, 200, 500) if n <= _EVALUATIONS.value]
    test = stats.ks_2samp(curves["program"].reported[:, at[1] - 1], curves["loop"].reported[:, at[1] - 1])
    seconds = {name: statistics.median(values) for name, values in times.items()}
    return {
        "device": jax.devices()[0].device_kind,
        "devices": len(devices),
        "seeds": _SEEDS.value,
        "evaluations": _EVALUATIONS.value,
        "seconds_per_search": seconds,
        "ratio": seconds["loop"] / seconds["program"],
        "compile_seconds": compiling,
        "test_accuracy": {
            name: {n: float(c.reported[:, n - 1].mean()) for n in at} for name, c in curves.items()
        },
        "standard_error": {
            name: {n: float(c.reported[:, n - 1].std() / len(c.reported) ** 0.5) for n in at}
            for name, c in curves.items()
        },
        "kolmogorov_smirnov_p": float(test.pvalue),
    }


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}")
    jax.config.update("jax_num_cpu_devices", _DEVICES.value)
    result = measure()
    seconds = result["seconds_per_search"]
    print(
        f"{result['evaluations']} evaluations on {result['device']}: program of {result['seeds']} "
        f"searches {1e6 * seconds['program']:.0f} us each (compiled in {result['compile_seconds']:.1f} s), "
        f"loop {1e6 * seconds['loop']:.0f} us: {result['ratio']:.0f} x"
    )
    for name, values in result["test_accuracy"].items():
        errors = result["standard_error"][name]
        print(f"  {name:8s} test " + "  ".join(f"@{n} {v:.3f}+-{errors[n]:.3f}" for n, v in values.items()))
    print(f"  same distribution: Kolmogorov-Smirnov p = {result['kolmogorov_smirnov_p']:.2f}")
    if _OUT.value:
        with open(_OUT.value, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)


if __name__ == "__main__":
    app.run(main)
