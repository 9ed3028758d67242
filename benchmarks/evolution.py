"""A thousand searches as one program, compared with a Python loop and with NumPy.

  python -m benchmarks.evolution --data_dir=tabular --out=evolution.json

Regularized evolution on NAS-Bench-201 (CIFAR-10), 500 evaluations, three ways: a vmapped scan over all
seeds, divided over the cores; a plain Python loop, one search after the other; and NumPy with an axis of
searches. The last two use nothing of jaxnas but the table. The three alternate. A two-sample
Kolmogorov-Smirnov test compares what they find.
"""

from __future__ import annotations

import collections
import functools
import math
import os
import random
import statistics
import time
from typing import Any

import jax
import numpy as np
from absl import flags
from scipy import stats

from jaxnas import files, search, tabular
from jaxnas.experiments import binary
from jaxnas.tabular.anytime import anytime

_DATA = flags.DEFINE_string("data_dir", None, "Where the tables are; by default $JAXNAS_DATA.")
_SEEDS = flags.DEFINE_integer("seeds", 1000, "Searches of the program and of NumPy.")
_LOOPS = flags.DEFINE_integer("loops", 200, "Searches of the Python loop in total.")
_EVALUATIONS = flags.DEFINE_integer("evaluations", 500, "Evaluations per search.")
_DEVICES = flags.DEFINE_integer("devices", os.cpu_count(), "CPU devices that share the searches.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Runs of each of the three.")
_REPORT = flags.DEFINE_string("report_metric", "test_accuracy", "Metric of the incumbent that is compared.")
_OUT = flags.DEFINE_string("out", None, "JSON file to write.")
POPULATION, SAMPLE = 50, 10


def plain_loop(scores: dict[tuple[int, ...], float], evaluations: int, seed: int) -> list[tuple[int, ...]]:
    """Regularized evolution as one would write it for a table that is a dictionary."""
    generator = random.Random(seed)
    sample, draw, places = generator.sample, generator.randrange, range(POPULATION)
    population: collections.deque = collections.deque()  # of (score, cell); the oldest goes first
    history = []
    while len(history) < evaluations:
        if len(population) < POPULATION:
            child = tuple(draw(5) for _ in range(6))
        else:
            _, parent = max(population[i] for i in sample(places, SAMPLE))
            edge = draw(6)
            child = (*parent[:edge], (parent[edge] + 1 + draw(4)) % 5, *parent[edge + 1 :])
            population.popleft()
        population.append((scores[child], child))
        history.append(child)
    return history


def in_numpy(scores: np.ndarray, evaluations: int, searches: int, seed: int) -> np.ndarray:
    """The same for many searches at once: the cells of each, int [searches, evaluations, 6].

    Args:
      scores: of all cells, float [5, 5, 5, 5, 5, 5].
      evaluations: of each search.
      searches: how many.
      seed: of the random numbers.
    """
    generator = np.random.default_rng(seed)
    every = np.arange(searches)
    cells = np.empty((searches, evaluations, 6), np.int8)
    cells[:, :POPULATION] = generator.integers(0, 5, (searches, POPULATION, 6))
    known = np.empty((searches, evaluations), np.float32)
    known[:, :POPULATION] = scores[tuple(np.moveaxis(cells[:, :POPULATION], -1, 0))]
    for turn in range(POPULATION, evaluations):
        # Of a row of random numbers the places of the smallest are a sample without replacement.
        keys = generator.random((searches, POPULATION), np.float32)
        drawn = np.argpartition(keys, SAMPLE, axis=1)[:, :SAMPLE] + (turn - POPULATION)
        parent = drawn[every, np.argmax(known[every[:, None], drawn], axis=1)]
        child = cells[every, parent]
        edge = generator.integers(0, 6, searches)
        child[every, edge] = (child[every, edge] + generator.integers(1, 5, searches)) % 5
        cells[:, turn] = child
        known[:, turn] = scores[tuple(child.T)]
    return cells


def measure() -> dict[str, Any]:
    """Runs all three and returns what goes into the JSON file."""
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
    by_cell = {
        tuple(code): float(score)
        for code, score in zip(table.codes.tolist(), scores[tuple(table.codes.T)], strict=True)
    }
    loops_at_once = max(_LOOPS.value // _REPEATS.value, 1)
    cells: dict[str, list[np.ndarray]] = {"program": [], "loop": [], "numpy": []}
    times: dict[str, list[float]] = {name: [] for name in cells}
    jax.block_until_ready(program(keys))
    for repeat in range(_REPEATS.value):
        start = time.perf_counter()
        state = jax.block_until_ready(program(keys))
        times["program"].append((time.perf_counter() - start) / _SEEDS.value)
        cells["program"] = [np.asarray(state.codes)]
        start = time.perf_counter()
        found = [
            plain_loop(by_cell, _EVALUATIONS.value, seed)
            for seed in range(repeat * loops_at_once, (repeat + 1) * loops_at_once)
        ]
        times["loop"].append((time.perf_counter() - start) / loops_at_once)
        cells["loop"].append(np.asarray(found, np.int32))
        start = time.perf_counter()
        made = in_numpy(scores, _EVALUATIONS.value, _SEEDS.value, repeat)
        times["numpy"].append((time.perf_counter() - start) / _SEEDS.value)
        cells["numpy"] = [made.astype(np.int32)]
    curves = {}
    for name, parts in cells.items():
        codes = np.concatenate(parts)
        found = scores[tuple(np.moveaxis(codes, -1, 0))]
        curves[name] = anytime(table, codes, found, "validation_accuracy", _REPORT.value)
    at = [n for n in (50, 100, 200, 500) if n <= _EVALUATIONS.value]
    early = {name: c.reported[:, at[1] - 1] for name, c in curves.items()}
    seconds = {name: statistics.median(values) for name, values in times.items()}
    return {
        "device": jax.devices()[0].device_kind,
        "devices": len(devices),
        "seeds": _SEEDS.value,
        "evaluations": _EVALUATIONS.value,
        "repeats": _REPEATS.value,
        "load": os.getloadavg()[0],
        "seconds_per_search": seconds,
        "fastest_and_slowest": {name: [min(values), max(values)] for name, values in times.items()},
        "ratio": {name: seconds[name] / seconds["program"] for name in seconds},
        "compile_seconds": compiling,
        "reported": {
            name: {str(n): float(c.reported[:, n - 1].mean()) for n in at} for name, c in curves.items()
        },
        "standard_error": {
            name: {str(n): float(c.reported[:, n - 1].std() / len(c.reported) ** 0.5) for n in at}
            for name, c in curves.items()
        },
        "compared_at": at[1],
        "kolmogorov_smirnov_p": {
            name: float(stats.ks_2samp(early["program"], values).pvalue) for name, values in early.items()
        },
    }


def main() -> None:
    jax.config.update("jax_num_cpu_devices", _DEVICES.value)
    result = measure()
    print(
        f"{result['evaluations']} evaluations, {result['seeds']} searches, {result['devices']} x "
        f"{result['device']}, load {result['load']:.1f}; the program was compiled in "
        f"{result['compile_seconds']:.1f} s"
    )
    for name, seconds in result["seconds_per_search"].items():
        low, high = result["fastest_and_slowest"][name]
        errors = result["standard_error"][name]
        print(
            f"  {name:8s} {1e6 * seconds:7.0f} us a search ({1e6 * low:.0f} to {1e6 * high:.0f}): "
            f"{result['ratio'][name]:5.1f} x the program's; {_REPORT.value} "
            + "  ".join(f"@{n} {v:.3f}+-{errors[n]:.3f}" for n, v in result["reported"][name].items())
            + f"; same as the program's at {result['compared_at']}: "
            + f"p = {result['kolmogorov_smirnov_p'][name]:.2f}"
        )
    if _OUT.value:
        files.write_json(_OUT.value, result)


if __name__ == "__main__":
    binary.run(main)
